"""Whole runs: resumed to the identical result after kill -9 at any moment, refused where something would be lost."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr

import lagreach
from lagreach.diagnosis.record_json import encode
from lagreach.errors import InputError, RunError
from lagreach.study.checkpoints import load_tensors
from lagreach.study.config import find_study
from lagreach.study.executors import make_executor
from lagreach.study.export import export_run
from lagreach.study.jobs import DiagnoseJob, diagnose_jobs, shared_memory, summary_row
from lagreach.study.runner import run_study
from lagreach.study.status import run_status
from lagreach.study.store import RunDirectory
from lagreach.study.summary import summarise
from lagreach.study.tables import read_rows, write_rows

pytestmark = pytest.mark.thorough

FILE = Path(__file__).with_name("tiny.yaml")
TINY = find_study(str(FILE)).at_scale("smoke")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_study(TINY, tmp_path_factory.mktemp("runs") / "whole", show_progress=False)


def contents(run):
    """What must not depend on how a run was interrupted: weights, metrics, and diagnoses but for their seconds and day."""
    by_file = {}
    for path in sorted(run.path.rglob("model-*.safetensors")):
        by_file[str(path.relative_to(run.path))] = {n: t.numpy().tobytes() for n, t in load_tensors(path).items()}
    for path in sorted(run.path.rglob("*.parquet")):
        by_file[str(path.relative_to(run.path))] = repr(read_rows(path))
    for path in sorted(run.path.rglob("*.nc")):
        record = encode(lagreach.load(path))
        record["fields"].pop("seconds")
        record["fields"].pop("about")  # which names the day
        by_file[str(path.relative_to(run.path))] = json.dumps(record)
    by_file["claims"] = (run.path / "claims.json").read_text()
    return by_file


def test_a_run_leaves_what_it_promises(finished):
    path = finished.path
    for name in ("RESULTS.md", "report.html", "summary.parquet", "log.txt", "versions.json", "config.yaml"):
        assert (path / name).stat().st_size > 0, name
    diagnoses = sorted(path.rglob("*.nc"))
    assert len(diagnoses) == 8  # 2 variants x 2 seeds x 2 checkpoints
    diagnosis = lagreach.load(diagnoses[0])
    assert diagnosis.labels["study"] == "tiny"
    assert {"variant", "seed", "epoch", "recipe"} <= set(diagnosis.labels)
    rows = read_rows(path / "trainings" / "diag" / "metrics.parquet")
    assert [row["epoch"] for row in rows if row["seed"] == 1] == [1, 2, 3, 4, 5, 6]
    scores = read_rows(path / "trainings" / "diag" / "recovered.parquet")
    assert {row["lag"] for row in scores} == {2, 5}
    text = (path / "RESULTS.md").read_text()
    assert "not tested" in text
    assert "DiagGate reaches farther" in text
    assert all(
        (path / "figures" / f"{name}-all.png").exists() for name in ("envelopes", "windows", "scaling", "spectra")
    )


def test_the_outcome_can_be_kept_without_the_weights(finished, tmp_path):
    write_rows(finished.path / "outcomes.parquet", [{"score": 1.0}], finished.write)  # as a validation study has it
    (finished.path / "mine.parquet").write_text("somebody's")
    written = export_run(finished.path, tmp_path / "kept")
    assert read_rows(tmp_path / "kept" / "outcomes.parquet") == [{"score": 1.0}]
    for name in ("outcomes.parquet", "mine.parquet"):
        (finished.path / name).unlink()
    assert not (tmp_path / "kept" / "mine.parquet").exists()
    assert {path.name for path in written} >= {"RESULTS.md", "summary.parquet", "metrics.parquet", "recovered.parquet"}
    assert not list((tmp_path / "kept").rglob("*.safetensors"))
    rows = read_rows(tmp_path / "kept" / "metrics.parquet")
    assert {(row["variant"], row["seed"], row["epoch"]) for row in rows} == {
        (name, seed, epoch) for name in ("diag", "const") for seed in (0, 1) for epoch in range(1, 7)
    }
    for link in re.findall(r"\]\((figures/[^)]+)\)", (tmp_path / "kept" / "RESULTS.md").read_text()):
        assert (tmp_path / "kept" / link).stat().st_size > 0
    unfinished = RunDirectory.create(tmp_path / "begun", TINY)
    with pytest.raises(RunError, match="only a finished run"):
        export_run(unfinished.path, tmp_path / "nothing")


def test_the_log_tells_how_long_a_run_was_worked_on(tmp_path):
    run = RunDirectory.create(tmp_path / "run", TINY)
    lines = [
        "2026-01-01 23:59:00 start: `one`, 1 process, processor",
        "2026-01-02 00:01:30 diag: epoch 2 of 6 saved",  # and then it was killed
        "a line that is none",
        "2026-01-03 10:00:00 start: `two`, 2 processes, NVIDIA H200",
        "2026-01-03 10:00:10 finished",
    ]
    (run.path / "log.txt").write_text("\n".join(lines))
    assert [(s.what.split(",")[0], s.seconds) for s in run.sessions()] == [("`one`", 150.0), ("`two`", 10.0)]


def test_one_group_of_a_study():
    later = find_study("livi-later").at_scale("smoke")
    assert {v.group for v in later.only_group("AdamW").variants} == {"AdamW"}
    with pytest.raises(InputError, match="no such group"):
        later.only_group("Adam")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_with_other_workers(finished, tmp_path):
    with make_executor("local", workers=2) as pool:
        again = run_study(TINY, tmp_path / "again", executor=pool, show_progress=False)
    assert contents(again) == contents(finished)
    assert run_status(again.path).state == "finished"


def test_a_finished_run_is_not_run_over(finished):
    before = (finished.path / "RESULTS.md").stat().st_mtime_ns
    with pytest.raises(RunError, match="finished run"):
        run_study(TINY, finished.path, show_progress=False)
    assert (finished.path / "RESULTS.md").stat().st_mtime_ns == before


def test_a_damaged_diagnosis_is_made_again(finished, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished.path, copy)
    job = diagnose_jobs(finished, TINY)[0]
    victim = RunDirectory(copy).diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    victim.write_bytes(victim.read_bytes()[:500])
    again = run_study(TINY, copy, resume=True, show_progress=False)
    whole = finished.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    xr.testing.assert_equal(lagreach.load(victim).to_xarray(), lagreach.load(whole).to_xarray())
    assert contents(again) == contents(finished)


def start(out, *options):
    command = [
        sys.executable,
        "-m",
        "lagreach",
        "study",
        "run",
        str(FILE),
        "--scale",
        "smoke",
        "--out",
        str(out),
        *options,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def killed_and_resumed(out, kills, rng, workers):
    """Kill the run at random moments, then let it finish; return how many of its processes were really killed."""
    killed = 0
    for attempt in range(kills):
        process = start(out, "--workers", str(workers), *(["--resume"] if attempt else []))
        deadline = time.monotonic() + 60
        while not (out / "config.yaml").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            process.wait(rng.uniform(0.0, 4.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
    process = start(out, "--workers", str(workers), "--resume")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return killed


def test_a_killed_run_resumes_to_the_identical_result(finished, tmp_path):
    assert killed_and_resumed(tmp_path / "run", 2, random.Random(1), 1) >= 1
    assert contents(RunDirectory(tmp_path / "run")) == contents(finished)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_many_times_resumes_to_the_identical_result(finished, tmp_path, seed):
    assert killed_and_resumed(tmp_path / "run", 5, random.Random(100 + seed), 1 + seed % 2) >= 1
    assert contents(RunDirectory(tmp_path / "run")) == contents(finished)


def test_status_tells_how_far_an_interrupted_run_is(finished, tmp_path):
    run = RunDirectory.create(tmp_path / "run", TINY)
    status = run_status(run.path)
    assert status.state == "interrupted"
    assert status.epochs == {"diag": (0, 6), "const": (0, 6)}
    assert "--resume" in str(status)
    assert run_status(finished.path).epochs == {"diag": (6, 6), "const": (6, 6)}
    with run.lock():
        assert run_status(run.path).state == "running"
    with pytest.raises(RunError, match="no run in this folder"):
        run_status(tmp_path)


@pytest.mark.slow
def test_a_real_ray_cluster_runs_a_study_to_the_same_result(finished, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    with make_executor("ray", workers=2) as cluster:
        again = run_study(TINY, tmp_path / "ray", executor=cluster, show_progress=False)
    assert contents(again) == contents(finished)


def test_jobs_are_small_and_printable(finished):
    job = DiagnoseJob(str(finished.path), "diag", 0, 6, "exact")
    assert "diag" in str(job)
    assert len(diagnose_jobs(finished, TINY)) == 12


def test_command_line(finished, tmp_path):
    process = start(finished.path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"--overwrite" in errors
    command = [sys.executable, "-m", "lagreach", "study", "status", str(finished.path), "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert shown["state"] == "finished"


def test_rows_of_a_run_that_says_form_for_recipe_are_still_read(finished, tmp_path):
    job = next(job for job in diagnose_jobs(finished, TINY) if job.recipe == "paper")
    now = summary_row(finished, job, (100,))
    old = RunDirectory(tmp_path)
    path = old.diagnosis_path(job.variant, job.seed, job.epoch, job.recipe)
    path.parent.mkdir()
    write_rows(path, [{("form" if name == "recipe" else name): value for name, value in now.items()}])
    np.testing.assert_equal(summary_row(old, job, (100,)), now | {"form": "paper"})


def test_the_slope_is_over_the_gain_that_was_carried(generator):
    x = torch.randn(64, 24, 2, generator=generator)
    model = lagreach.GatedRNN("diag_gate", 2, 6, 1, generator=generator)
    for transport in ("exact", "first-order"):
        diagnosis = lagreach.diagnose(model, (x, x.roll(2, 1)[..., :1]), lags=[1, 2, 3, 5, 8], transport=transport)
        gains = diagnosis.layers[0].fidelity
        carried = (gains.log10_exact if transport == "exact" else gains.log10_first_order).numpy()
        needed = diagnosis.layers[0].window.required_if_present().sequences
        expected = np.polyfit(-carried * np.log(10), np.log(needed), 1)[0]
        assert summarise(diagnosis, (100,))["slope"] == pytest.approx(expected)


def test_summary_rows_hold_what_the_diagnoses_say(finished):
    rows = read_rows(finished.path / "summary.parquet")
    row = next(
        r for r in rows if r["recipe"] == "exact" and r["variant"] == "diag" and r["seed"] == 1 and r["epoch"] == 6
    )
    diagnosis = lagreach.load(finished.diagnosis_path("diag", 1, 6, "exact"))
    np.testing.assert_allclose(row["n_probe"], diagnosis.layers[0].window.required_if_present().sequences)
    assert row["windows"][0] == pytest.approx(diagnosis.window(100).lag or float("nan"), nan_ok=True)


def test_processes_share_the_memory_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    assert shared_memory("cpu", 4) is None
    assert shared_memory("cuda", 1) is None
    assert 4 * shared_memory("cuda", 4) == 40 * 2**30
