"""``lagreach bench`` finds the benchmarks of a checkout, and says so when there are none."""

import io
import subprocess
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import author, gpu, gpu_rivals
from lagreach.cli import bench as cli_bench
from lagreach.errors import InputError, UnsupportedError

ROOT = Path(__file__).parents[2]


def test_it_runs_the_benchmarks_of_the_checkout(monkeypatch, tmp_path):
    called = []

    def run(command, cwd, env, check):
        called.append((command[1:], cwd, env.get("LAGREACH_AUTHOR")))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(cli_bench.subprocess, "run", run)
    (tmp_path / cli_bench.AUTHOR_SCRIPT).touch()
    assert cli_bench.run_bench(["transport"], quick=True, out=tmp_path, author=tmp_path) == 3
    words = ["-m", "benchmarks", "transport", "--quick", "--out", str(tmp_path.resolve())]
    assert called == [(words, ROOT, str(tmp_path.resolve()))]


def test_an_installed_package_has_no_benchmarks(monkeypatch, tmp_path):
    monkeypatch.setattr(cli_bench, "__file__", str(tmp_path / "site-packages" / "lagreach" / "cli" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="checkout"):
        cli_bench.find_checkout()


def test_a_folder_without_the_scripts_is_refused(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="learnability"):
        cli_bench.run_bench([], quick=True, out=None, author=tmp_path)
    with pytest.raises(SystemExit, match="learnability"):
        author.check_folder(tmp_path)


def test_scripts_of_another_kind_are_refused(monkeypatch, tmp_path):
    (tmp_path / author.SCRIPT).write_text("build_model = None\n")
    monkeypatch.setenv(author.VARIABLE, str(tmp_path))
    author.scripts.cache_clear()
    with pytest.raises(SystemExit, match="compute_vseq_jvp"):
        author.scripts()
    monkeypatch.delenv(author.VARIABLE)
    author.scripts.cache_clear()
    assert author.scripts() is None


WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_the_device_chooses_the_benchmarks(monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        cli_bench.subprocess,
        "run",
        lambda command, **_: called.append(command[1:]) or subprocess.CompletedProcess(command, 0),
    )
    assert cli_bench.run_bench(["lstm"], quick=True, out=None, author=None, device="cuda") == 0
    assert called == [["-m", "benchmarks.gpu", "lstm", "--quick"]]
    with pytest.raises(InputError, match="--author"):
        cli_bench.run_bench([], quick=True, out=None, author=tmp_path, device="cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="unknown device"):
        cli_bench.run_bench([], quick=True, out=None, author=None, device="tpu")


@WITHOUT_CUDA
def test_without_a_gpu_it_says_so():
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        cli_bench.run_bench([], quick=True, out=None, author=None, device="cuda")
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        gpu.main([])


def test_unknown_cells_are_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["lsmt"])
    assert "lsmt" in capsys.readouterr().err


def test_floors_follow_from_counts_and_rates():
    rates = {"bytes_per_second": 4e12, "float16_flops_per_second": 6e14}
    floors = gpu_rivals.floors("diag_gate", gpu.W1, 132, rates, step_latency_ms=1e-3)
    rows = 132 * 16 * 1024
    # x and h twice; gate and candidate, and their gradients, written and read
    assert floors["memory"] == pytest.approx(1e3 * 4 * rows * (2 * 16 + 2 * 64 + 8 * 64) / 4e12)
    assert floors["products"] == pytest.approx(1e3 * 3 * 2 * rows * 128 * (3 * 64 + 2 * 16) / 6e14)
    assert floors["latency"] == pytest.approx(1.024)


def test_the_table_shows_every_number_beside_ours():
    case = {"cell": "lstm", "workload": "W1", "replicas": 1, "ms": 2.0, **gpu.W1}
    case |= {"rivals_ms": {"eager torch": 1000.0, "cuDNN": 1.5}, "floors_ms": {"memory": 0.02, "latency": 0.5}}
    many = case | {"replicas": 132, "ms": 8.0, "rivals_ms": {}}
    record = {"op": "gpu", "about": "steps", "machine": {"gpu": "H200", "torch": "2"}, "cases": [case, many]}
    printed = io.StringIO()
    gpu.show(record, Console(file=printed, width=120))
    lines = printed.getvalue().splitlines()
    assert any("eager torch" in line and "1 s" in line and "500" in line for line in lines)
    assert any("132 models" in line and "8 ms" in line and "60.6 us" in line for line in lines)
    assert sum("chain of steps" in line for line in lines) == 2
