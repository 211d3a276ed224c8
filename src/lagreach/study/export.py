"""The outcome of a run without its weights: small enough to keep in a repository, enough to draw every figure again."""

from __future__ import annotations

import os
from pathlib import Path

from lagreach._util.disk import checksum, is_file, is_folder, make_folder, read_whole, write_whole
from lagreach.errors import RunError
from lagreach.study.layout import FOLDERS
from lagreach.study.manifest import OF_AN_OUTCOME, Manifest
from lagreach.study.store import FIRST_LINE, RunDirectory, shown
from lagreach.study.tables import Row, read_rows, write_rows

COPIED = ("config.yaml", "versions.json", "claims.json", "RESULTS.md")
TABLES = ("metrics", "recovered")  # of each training, put together


def export_run(folder: str | Path, to: str | Path) -> list[Path]:
    """Copy configuration, log, tables, figures and RESULTS.md of a finished run; return what was written.

    ``metrics.parquet`` and ``recovered.parquet`` hold the rows of all variants, ``summary.parquet`` a row for each diagnosis;
    a validation study has its ``outcomes.parquet`` and ``predictors.parquet``. ``manifest.txt`` lists them. Files that an earlier
    export of the study wrote are replaced; others that are in the way are left alone, and nothing is written.
    """
    run, target = RunDirectory(folder), Path(to)
    run.config()  # refuses what is no run
    if not run.finished:
        raise RunError(
            "only a finished run has an outcome", got=str(run.path), fix="go on with `lagreach study run --resume`"
        )
    contents = outcome_of(run)
    manifest = Manifest(target, OF_AN_OUTCOME)
    in_the_way = [
        name
        for name, content in contents.items()
        if os.path.lexists(target / name) and not _may_replace(target, name, content, manifest)
    ]
    if in_the_way or _is_run(target):
        raise RunError(
            "this folder holds something else than an earlier outcome of this study",
            got=f"{target}, with {shown(in_the_way or [name for name in FOLDERS if is_folder(target / name)])}",
            fix="choose another folder, or move these files away; nothing was touched",
        )
    make_folder(target / "figures")
    manifest.tidy(lines_kept=2)
    for name, content in contents.items():
        manifest.add(name, checksum(content))
        write_whole(target / name, content)
    manifest.tidy(lines_kept=1)
    return [target / name for name in contents]


def outcome_of(run: RunDirectory) -> dict[str, bytes]:
    """Return the files of a run's outcome by name; damaged ones are refused, files of somebody else's left out."""
    tables = sorted(path.name for path in run.path.glob("*.parquet"))
    pictures = sorted(f"figures/{path.name}" for path in (run.path / "figures").glob("*.png"))
    names = [*COPIED, *tables, *pictures]
    contents = {name: run.read(run.path / name) for name in names if run.lists(name) and is_file(run.path / name)}
    contents["config.yaml"] = contents["config.yaml"].removeprefix(FIRST_LINE.encode())  # the outcome is no run
    if is_file(run.path / "log.txt"):
        contents["log.txt"] = read_whole(run.path / "log.txt")
    variants = run.config().variants
    for table in TABLES:
        rows: list[Row] = []
        for variant in variants:
            path = run.training(variant.name) / f"{table}.parquet"
            rows += [{"variant": variant.name, "group": variant.group} | row for row in read_rows(path, read=run.read)]
        if rows:
            write_rows(Path(f"{table}.parquet"), rows, lambda path, content: contents.update({path.name: content}))
    return contents


def _may_replace(target: Path, name: str, content: bytes, manifest: Manifest) -> bool:
    """Whether a file is the same already, or was written by an earlier export."""
    if not is_file(target / name) or (target / name).is_symlink():
        return False
    present = read_whole(target / name)
    return present == content or manifest.vouches(name, checksum(present))


def _is_run(target: Path) -> bool:
    """Whether a folder holds a run, which has trainings or experiments of its own."""
    return any(is_folder(target / name) for name in FOLDERS if name != "figures")
