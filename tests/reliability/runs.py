"""Folders of runs whose files are damaged, missing, or in each other's places: looked at, and resumed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from lagreach.cli.report import files_in
from lagreach.cli.report import read as read_diagnoses
from lagreach.errors import LagreachError
from lagreach.study import figures
from lagreach.study.checkpoints import latest_state
from lagreach.study.config import StudyConfig, find_study
from lagreach.study.jobs import DiagnoseJob, is_diagnosed, is_trained
from lagreach.study.manifest import MANIFEST
from lagreach.study.runner import run_study
from lagreach.study.status import run_status
from lagreach.study.store import RunDirectory
from tests.reliability.counting import Count, Size, explore, scratch
from tests.reliability.damage import flipped
from tests.study.test_runs import contents

GOOD = "it is read or refused"
SMALL = Path(__file__).with_name("small.yaml")


@contextmanager
def one_figure() -> Iterator[None]:
    """Draw one figure only: they take most of the time of a small study."""
    name, draw = next(iter(figures.FIGURES.items()))
    with patch.dict(figures.FIGURES, {name: draw}, clear=True):
        yield


def two_variants() -> StudyConfig:
    """Return the small study with a second variant, whose files can lie in the place of the first one's."""
    config = find_study(str(SMALL)).at_scale("smoke")
    other = config.variants[0].model_copy(update={"name": "b", "training": {"lr": 0.1}})
    return config.model_copy(update={"variants": (*config.variants, other)})


def run_flips(size: Size) -> list[Count]:
    """Flip one bit of any file of a run, or put a file into another's place, and resume it."""
    noticed = Count("files of a run with one flipped bit", "they are known to be damaged before anything reads them")
    resumed = Count(
        "runs with one flipped bit, or two files in each other's places, resumed", "the result is identical"
    )
    config, rng = two_variants(), random.Random(0)
    with scratch() as folder, one_figure():
        whole = run_study(config, folder / "whole", show_progress=False)
        before = contents(whole)
        names = sorted(whole.manifest.checksums())
        copy = RunDirectory(shutil.copytree(whole.path, folder / "copy"))
        for _ in range({"quick": 60, "full": 3000}[size]):
            name = rng.choice(names)
            content = (whole.path / name).read_bytes()
            (copy.path / name).write_bytes(flipped(content, rng.randrange(8 * len(content))))
            unnoticed = copy.is_whole(copy.path / name)
            noticed.add("unnoticed" if unnoticed else "noticed", name if unnoticed else None)
            (copy.path / name).write_bytes(content)
        for _ in range({"quick": 1, "full": 25}[size]):
            shutil.rmtree(folder / "copy")
            copy = RunDirectory(shutil.copytree(whole.path, folder / "copy"))
            one, other = rng.sample([*names, MANIFEST], 2)
            if rng.random() < 0.5:
                content = (copy.path / one).read_bytes()
                (copy.path / one).write_bytes(flipped(content, rng.randrange(8 * len(content))))
                about = f"a bit of {one}"
            else:
                first = (copy.path / one).read_bytes()
                (copy.path / one).write_bytes((copy.path / other).read_bytes())
                (copy.path / other).write_bytes(first)
                about = f"{one} and {other} swapped"
            try:
                same = contents(run_study(config, copy.path, resume=True, show_progress=False)) == before
                resumed.add("identical" if same else "failed", None if same else f"{about}: another result")
            except LagreachError as error:
                resumed.add("failed", f"{about}: {error}")
    return [noticed, resumed]


def run_folders(size: Size) -> list[Count]:
    """Damage files of a finished run, look at it in every way, and resume it to the identical result."""
    looked = Count("runs with damaged files, looked at", GOOD)
    resumed = Count(
        "runs with damaged files, resumed", "the result is identical; a folder in a file's place is refused"
    )
    config = find_study(str(SMALL)).at_scale("smoke")
    resumes = {"quick": 1, "full": 25}[size]
    with scratch() as folder:
        whole = run_study(config, folder / "whole", show_progress=False)
        names = sorted(str(p.relative_to(whole.path)) for p in whole.path.rglob("*") if p.is_file())
        before = contents(whole)
        kinds = st.sampled_from(["damaged", "empty", "missing", "folder", "swapped", "link", "broken link"])
        other = st.sampled_from(names)

        def trial(example: tuple[list[tuple[str, str, str]], Any]) -> None:
            changes, data = example
            copy = folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole.path, copy)
            for name, kind, from_other in changes:
                _damage(copy / name, kind, whole.path / from_other, data)
            looked.attempt(lambda: _look_at(copy), changes)
            if resumed.tried < resumes:
                outcome = []
                # it may be a user's, and is left alone
                in_the_way = any((copy / name).is_dir() for name, *_ in changes) or (copy / ".lock").is_symlink()
                resumed.attempt(
                    lambda: outcome.append(contents(run_study(config, copy, resume=True, show_progress=False))), changes
                )
                if outcome != ([] if in_the_way else [before]) and not resumed.failed:
                    resumed.failed += 1
                    resumed.failures.append(f"{changes}: another result")

        changes = st.lists(st.tuples(other, kinds, other), min_size=1, max_size=3)
        explore(st.tuples(changes, st.binary(max_size=30)), trial, {"quick": 4, "full": 150}[size], size)
    return [looked, resumed]


def _damage(path: Path, kind: str, other: Path, garbage: bytes) -> None:
    if not path.is_file() or path.is_symlink():
        return
    content = path.read_bytes()
    path.unlink()
    if kind == "damaged":
        path.write_bytes(content[: len(content) // 2] + garbage)
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "swapped":
        shutil.copy(other, path)
    elif kind == "link":
        path.symlink_to(other)
    elif kind == "broken link":
        path.symlink_to("nowhere")


def _look_at(folder: Path) -> None:
    run = RunDirectory(folder)
    str(run_status(folder))
    config = run.config()
    for variant in config.variants:
        is_trained(run, config, variant)
        latest_state(run.training(variant.name), lambda _: None)
    for path in sorted(folder.rglob("*.nc")):
        name = path.stem.split("-")
        job = DiagnoseJob(str(folder), name[0], int(name[1]), int(name[2]), name[3])
        is_diagnosed(run, job)
    read_diagnoses(files_in([folder]))
