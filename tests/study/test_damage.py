"""A resumed run makes again what is damaged or lies in another's place, to the identical result."""

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lagreach.errors import InputError
from lagreach.study.config import find_study
from lagreach.study.jobs import diagnose_jobs, is_diagnosed, is_trained
from lagreach.study.manifest import MANIFEST
from lagreach.study.runner import run_study
from lagreach.study.status import run_status
from lagreach.study.store import FIRST_LINE, RunDirectory
from lagreach.study.tables import read_rows, write_rows
from tests.reliability.runs import one_figure
from tests.study.test_runs import contents

pytestmark = pytest.mark.thorough

SMALL = find_study(str(Path(__file__).parent.parent / "reliability" / "small.yaml")).at_scale("smoke")
OTHER = SMALL.variants[0].model_copy(update={"name": "b", "training": {"lr": 0.1}})
CONFIG = SMALL.model_copy(update={"variants": (*SMALL.variants, OTHER)})
UNLISTED = (".lock", "log.txt", MANIFEST)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with one_figure():
        return run_study(CONFIG, tmp_path_factory.mktemp("runs") / "whole", show_progress=False)


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def resumed(run):
    with one_figure():
        return run_study(CONFIG, run.path, resume=True, show_progress=False)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << at % 8
    path.write_bytes(content)


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def unfinished(run):
    """Names of the pieces of work that a resumed run would do."""
    left = [v.name for v in CONFIG.variants if not is_trained(run, CONFIG, v)]
    return left + [f"{j.variant}-{j.recipe}" for j in diagnose_jobs(run, CONFIG) if not is_diagnosed(run, j)]


def test_a_flipped_bit_in_any_file_is_noticed(run):
    rng = random.Random(0)
    paths = [p for p in sorted(run.path.rglob("*")) if p.is_file() and p.name not in UNLISTED]
    assert len(paths) > 15
    assert all(run.is_whole(path) for path in paths)
    for path in paths:
        whole = path.read_bytes()
        for _ in range(8):
            flip(path, rng.randrange(8 * len(whole)))
            assert not run.is_whole(path)
            path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("trainings/a/metrics.parquet", ["a"]),
        ("trainings/a/recovered.parquet", ["a"]),
        ("trainings/a/model-000002.safetensors", ["a"]),
        ("diagnoses/a-0-000002-exact.nc", ["a-exact"]),
        ("diagnoses/a-0-000002-paper.parquet", ["a-paper"]),
    ],
)
def test_damaged_and_swapped_files_are_made_again(run, name, left):
    path, other = run.path / name, run.path / name.replace("a/", "b/").replace("/a-", "/b-")
    assert unfinished(run) == []
    whole = path.read_bytes()
    flip(path, len(whole) // 3)
    assert unfinished(run) == left
    path.write_bytes(whole)
    swap(path, other)
    assert unfinished(run) == [*left, *(one.replace("a", "b", 1) for one in left)]


def test_flipped_bits_are_made_good_to_the_identical_result(run, finished):
    for name in ("trainings/a/metrics.parquet", "trainings/b/recovered.parquet", "diagnoses/a-0-000002-paper.parquet"):
        path = run.path / name
        flip(path, path.stat().st_size // 3)
    swap(run.path / "diagnoses" / "a-0-000002-exact.nc", run.path / "diagnoses" / "b-0-000002-exact.nc")
    flip(run.config_path, 200)
    with pytest.raises(InputError, match=r"config\.yaml"):
        run_status(run.path)
    assert contents(resumed(run)) == contents(finished)
    noted = (run.path / "log.txt").read_text()
    assert "trainings/a/metrics.parquet is damaged: it is made again" in noted
    assert resumed(run).config() == CONFIG


@pytest.mark.parametrize("damage", ["missing", "empty", "title"])
def test_without_its_manifest_a_run_vouches_for_nothing(run, finished, damage):
    swap(run.path / "trainings/a/metrics.parquet", run.path / "trainings/b/metrics.parquet")
    manifest = run.path / MANIFEST
    if damage == "title":
        flip(manifest, 5)
    else:
        manifest.write_bytes(b"") if damage == "empty" else manifest.unlink()
    assert set(unfinished(run)) >= {"a", "b"}
    if damage == "missing":  # the others are the same to the reader
        assert contents(resumed(run)) == contents(finished)
        assert f"{MANIFEST} is missing or damaged" in (run.path / "log.txt").read_text()


def test_a_run_of_version_0_1_is_gone_on_with(run, finished):
    (run.path / MANIFEST).unlink()
    run.config_path.write_text(run.config_path.read_text().removeprefix(FIRST_LINE))
    swap(run.path / "diagnoses" / "a-0-000002-exact.nc", run.path / "diagnoses" / "b-0-000002-exact.nc")
    assert unfinished(run) == ["a-exact", "b-exact"]  # by the labels in the files
    before = (run.path / "trainings/a/model-000002.safetensors").stat().st_mtime_ns
    assert contents(resumed(run)) == contents(finished)
    assert (run.path / "trainings/a/model-000002.safetensors").stat().st_mtime_ns == before  # nothing was trained again
    flip(run.path / "trainings/a/metrics.parquet", 99)
    assert unfinished(run) == ["a"]  # now it has a list


def test_a_table_carries_a_checksum_of_its_own(tmp_path):
    path = tmp_path / "t.parquet"
    rows = [{"epoch": k, "loss": k * 0.37} for k in range(200)]
    write_rows(path, rows)
    assert pq.read_table(path).to_pylist() == rows  # other programs read it as it is
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        flip(path, at)
        with pytest.raises(InputError, match="this file is damaged"):
            read_rows(path)
        path.write_bytes(whole)
    pq.write_table(pa.Table.from_pylist(rows), path)  # as version 0.1.0 did
    assert read_rows(path) == rows
