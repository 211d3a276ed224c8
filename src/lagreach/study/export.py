"""The outcome of a run without its weights: small enough to keep in a repository, enough to draw every figure again."""

from __future__ import annotations

import shutil
from pathlib import Path

from lagreach._util.disk import disk_errors, make_folder
from lagreach.errors import RunError
from lagreach.study.rows import Row, read_rows, write_rows
from lagreach.study.store import RunDirectory

COPIED = ("config.yaml", "versions.json", "log.txt", "claims.json", "RESULTS.md")
TABLES = ("metrics", "recovered")  # of each training, put together


def export_run(folder: str | Path, to: str | Path) -> list[Path]:
    """Copy configuration, log, tables, figures and RESULTS.md of a finished run; return what was written.

    ``metrics.parquet`` and ``recovered.parquet`` hold the rows of all variants, ``summary.parquet`` a row for each diagnosis;
    a validation study has its ``outcomes.parquet`` and ``predictors.parquet``.
    """
    run, target = RunDirectory(folder), Path(to)
    config = run.config()
    if not run.finished:
        raise RunError(
            "only a finished run has an outcome", got=str(run.path), fix="go on with `lagreach study run --resume`"
        )
    make_folder(target)
    written = []
    with disk_errors(target):
        tables = sorted(path.name for path in run.path.glob("*.parquet"))
        for name in (*COPIED, *tables):
            if (run.path / name).exists():
                written.append(Path(shutil.copyfile(run.path / name, target / name)))
        make_folder(target / "figures")
        for picture in sorted((run.path / "figures").glob("*.png")):
            written.append(Path(shutil.copyfile(picture, target / "figures" / picture.name)))
    for table in TABLES:
        rows: list[Row] = []
        for variant in config.variants:
            path = run.training(variant.name) / f"{table}.parquet"
            rows += [{"variant": variant.name, "group": variant.group} | row for row in read_rows(path)]
        if rows:
            write_rows(target / f"{table}.parquet", rows)
            written.append(target / f"{table}.parquet")
    return written
