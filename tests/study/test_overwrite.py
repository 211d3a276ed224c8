"""What somebody else put into a folder, or changed in it, is never removed or written over."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from lagreach.errors import InputError, RunError
from lagreach.study.config import find_study
from lagreach.study.export import export_run
from lagreach.study.manifest import MANIFEST, Manifest
from lagreach.study.runner import run_study
from lagreach.study.store import FIRST_LINE, RunDirectory

pytestmark = pytest.mark.thorough

CONFIG = find_study(str(Path(__file__).parent.parent / "reliability" / "small.yaml")).at_scale("smoke")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_study(CONFIG, tmp_path_factory.mktemp("runs") / "whole", show_progress=False)


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def everything(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def as_before_manifests(run):
    """Make a run look like one of version 0.1.0."""
    (run.path / MANIFEST).unlink()
    text = run.config_path.read_text()
    run.config_path.write_text(text.removeprefix(FIRST_LINE))
    return run


def refused(folder, *names, match="not a run", **options):
    before = everything(folder)
    with pytest.raises(RunError, match=match) as caught:
        RunDirectory.create(folder, CONFIG, **options)
    assert everything(folder) == before
    for name in names:
        assert name in str(caught.value)


def test_a_project_with_a_configuration_of_its_own_is_no_run(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "config.yaml").write_text("lr: 0.1")
    (tmp_path / "experiments" / "thesis.txt").write_text("years of work")
    (tmp_path / "figures" / "mine.png").write_text("a picture")
    for options in ({"overwrite": True}, {"resume": True}, {}):
        refused(tmp_path, "config.yaml", "experiments/thesis.txt", "figures/mine.png", **options)
    (tmp_path / "config.yaml").unlink()  # folders with the names of a run's are no run either
    for options in ({"overwrite": True}, {"resume": True}, {}):
        refused(tmp_path, "experiments/thesis.txt", "figures/mine.png", **options)


def test_a_study_that_somebody_wrote_is_no_run(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG.model_dump(mode="json")))
    for options in ({"overwrite": True}, {"resume": True}, {}):
        refused(tmp_path, "config.yaml", **options)


def test_lists_of_files_that_others_made_are_theirs(tmp_path):
    (tmp_path / MANIFEST).write_text("d41d8cd98f00b204e9800998ecf8427e  mine.txt\n")
    refused(tmp_path, MANIFEST)
    refused(tmp_path, MANIFEST, overwrite=True)


@pytest.mark.parametrize("of_before", [False, True])
@pytest.mark.parametrize(
    "name", ["mine.txt", "figures/mine.png", "trainings/a/state-mine.safetensors", "diagnoses/x.nc"]
)
def test_a_file_of_somebodys_in_a_run_is_named_and_nothing_is_touched(run, name, of_before):
    if of_before:
        as_before_manifests(run)
    (run.path / name).write_text("mine")
    refused(run.path, name, match="not a run's, or were changed", overwrite=True)


def test_a_changed_file_of_a_run_is_named_and_nothing_is_touched(run):
    results = run.path / "RESULTS.md"
    results.write_text(results.read_text() + "\nWhat I think of it\n")
    refused(run.path, "RESULTS.md", match="changed since", overwrite=True)


def test_links_are_not_followed(run, tmp_path):
    (tmp_path / "figures").mkdir()
    for picture in (run.path / "figures").iterdir():
        picture.rename(tmp_path / "figures" / picture.name)
    (run.path / "figures").rmdir()
    (run.path / "figures").symlink_to(tmp_path / "figures")
    refused(run.path, "figures", match="not a run's", overwrite=True)
    assert len(list((tmp_path / "figures").iterdir())) > 4


@pytest.mark.parametrize("of_before", [False, True])
def test_a_run_and_nothing_else_is_overwritten(run, of_before):
    if of_before:
        as_before_manifests(run)
    (run.path / "notes").mkdir()
    (run.path / "trainings" / "a" / ".writing-x").touch()  # left by a process that was killed
    other = CONFIG.model_copy(update={"seeds": 2})
    again = RunDirectory.create(run.path, other, overwrite=True)
    assert again.config() == other
    assert set(everything(run.path)) == {".lock", "config.yaml", "versions.json", MANIFEST}
    assert (run.path / "notes").is_dir()


def test_an_overwriting_that_was_stopped_halfway_is_gone_on_with(run, monkeypatch):
    as_before_manifests(run)
    unlink, left = Path.unlink, [10]

    def stopping(path, **options):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", stopping)
        with pytest.raises(KeyboardInterrupt):
            RunDirectory.create(run.path, CONFIG, overwrite=True)
    assert not run.finished
    assert RunDirectory.create(run.path, CONFIG, overwrite=True).config() == CONFIG
    assert set(everything(run.path)) == {".lock", "config.yaml", "versions.json", MANIFEST}


def test_a_start_that_was_stopped_is_no_obstacle(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("lagreach.study.store.yaml.safe_dump", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            RunDirectory.create(tmp_path / "run", CONFIG)
    assert RunDirectory.create(tmp_path / "run", CONFIG).config() == CONFIG


def test_the_manifest_lists_every_file_as_b2sum_does(run):
    listed = run.manifest.checksums()
    assert set(listed) == set(everything(run.path)) - {".lock", "log.txt", MANIFEST}
    assert all(len(checksums) == 1 for checksums in listed.values())
    if shutil.which("b2sum") is not None:
        check = ["b2sum", "--length", "128", "--check", "--quiet", "--strict", MANIFEST]
        assert subprocess.run(check, cwd=run.path, check=False).returncode == 0
        (run.path / "RESULTS.md").write_text("other")
        assert subprocess.run(check, cwd=run.path, check=False, capture_output=True).returncode == 1


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    manifest = Manifest(tmp_path)
    manifest.tidy(lines_kept=1)
    for name in ("a", "b"):
        (tmp_path / name).touch()
    manifest.add("a", "0" * 32)
    with manifest.path.open("a") as file:
        file.write("1" * 20)  # the process is killed here
    other = Manifest(tmp_path)
    assert other.checksums() == {"a": ["0" * 32]}
    other.add("b", "2" * 32)
    assert manifest.checksums() == other.checksums() == {"a": ["0" * 32], "b": ["2" * 32]}


def test_an_outcome_replaces_only_what_an_earlier_one_left(finished, tmp_path):
    target = tmp_path / "kept"
    export_run(finished.path, target)
    export_run(finished.path, target)
    assert Manifest(target).exists is False  # it is the list of an outcome, not of a run
    refused(target, "config.yaml", overwrite=True)
    before = everything(target)
    (target / "log.txt").write_text("my own notes")
    (target / "claims.json").write_text("[]  ")
    with pytest.raises(RunError, match="something else than an earlier outcome") as caught:
        export_run(finished.path, target)
    assert "claims.json, log.txt" in str(caught.value)
    assert {n: c for n, c in everything(target).items() if before[n] != c}.keys() == {"claims.json", "log.txt"}


def test_an_outcome_does_not_replace_what_lies_beside_a_configuration_of_the_study(finished, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_bytes(finished.config_path.read_bytes().removeprefix(FIRST_LINE.encode()))
    (tmp_path / "mine" / "RESULTS.md").write_text("a year of notes")
    before = everything(tmp_path / "mine")
    with pytest.raises(RunError, match=r"RESULTS\.md"):
        export_run(finished.path, tmp_path / "mine")
    assert everything(tmp_path / "mine") == before


def test_a_log_that_is_not_the_runs_is_left_alone(run):
    (run.path / "log.txt").write_text("my own notes")
    refused(run.path, "log.txt", match="not a run's", overwrite=True)


def test_an_outcome_is_not_put_into_a_run_or_among_other_files(finished, run, tmp_path):
    for target in (finished.path, run.path):
        before = everything(target)
        with pytest.raises(RunError, match="something else than an earlier outcome"):
            export_run(finished.path, target)
        assert everything(target) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log.txt").write_text("mine")
    with pytest.raises(RunError, match=r"log\.txt"):
        export_run(finished.path, tmp_path / "mine")
    assert everything(tmp_path / "mine") == {"log.txt": b"mine"}


def test_a_damaged_run_has_no_outcome(run, tmp_path):
    table = run.path / "summary.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(InputError, match="checksum is not in the manifest"):
        export_run(run.path, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
