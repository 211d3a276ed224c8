"""What is compiled is compiled once: later processes, copies of the package and other processors find what is theirs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

FUNCTION = """
from numba import njit
from lagreach._util.compiling import kept_on_disk
from neighbour import FACTOR


@kept_on_disk
@njit
def times(values):
    total = 0.0
    for value in values:
        total += FACTOR * value
    return total
"""
SCRIPT = """
import json, sys
import numpy as np
from numba.core import event
compiled = []

class Listener(event.Listener):
    def on_start(self, started):
        compiled.append(str(started.data["dispatcher"].py_func.__name__))
    def on_end(self, ended):
        pass

event.register("numba:compile", Listener())
from times import times
print(json.dumps([compiled, times(np.arange(4, dtype=sys.argv[1]))]) if len(sys.argv) > 1 else "")
"""


@pytest.fixture
def package(tmp_path):
    """A folder with a compiled function, and a constant of its neighbour that is compiled into it."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "times.py").write_text(FUNCTION)
    (folder / "neighbour.py").write_text("FACTOR = 2.0\n")
    return folder


def start(folder: Path, dtype: str = "float32", **environment: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, dtype],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[list[str], float]:
    answer, _ = process.communicate()
    assert process.returncode == 0
    compiled, value = json.loads(answer)
    return compiled, value


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.compiled"))


def test_a_second_process_compiles_nothing_also_where_the_package_was_moved(package, tmp_path):
    assert finish(start(package)) == (["times"], 12.0)
    assert finish(start(package)) == ([], 12.0)
    moved = Path(shutil.copytree(package, tmp_path / "elsewhere"))
    for path in moved.rglob("*.py"):
        os.utime(path, (1, 1))  # as an installer would set them
    assert finish(start(moved)) == ([], 12.0)


@pytest.mark.thorough
def test_processes_that_start_at_once_do_not_mix_up_their_entries(package):
    kinds = ["float32", "float64", "int32", "float32"]
    assert [finish(p)[1] for p in [start(package, kind) for kind in kinds]] == [12.0] * 4
    assert len(entries(package)) == 3
    assert [finish(p) for p in [start(package, kind) for kind in kinds]] == [([], 12.0)] * 4


@pytest.mark.thorough
def test_another_processor_and_a_changed_neighbour_compile_anew(package):
    assert finish(start(package)) == (["times"], 12.0)
    assert finish(start(package, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")) == (["times"], 12.0)
    assert finish(start(package)) == ([], 12.0)
    (package / "neighbour.py").write_text("FACTOR = 3.0\n")
    assert finish(start(package)) == (["times"], 18.0)
    assert len(entries(package)) == 1  # those of older sources are of no use to anybody


@pytest.mark.thorough
def test_a_broken_entry_is_compiled_again(package):
    finish(start(package))
    (entry,) = entries(package)
    entry.write_bytes(entry.read_bytes()[:-10])
    assert finish(start(package)) == (["times"], 12.0)
    assert finish(start(package)) == ([], 12.0)


@pytest.mark.thorough
def test_a_package_that_cannot_be_written_keeps_its_entries_with_the_user(package, tmp_path):
    (package / "__pycache__").write_text(
        "a file where numba would put a folder: as good as no permission, also for root"
    )
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    assert finish(start(package, **home)) == (["times"], 12.0)
    assert finish(start(package, **home)) == ([], 12.0)
    assert entries(tmp_path / "home")


@pytest.mark.thorough
def test_a_second_process_compiles_nothing_for_a_diagnosis():
    script = SCRIPT[: SCRIPT.index("from times")] + (
        "import torch, lagreach\n"
        "x = torch.randn(64, 24, 2)\n"
        "y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rnn, self.out = torch.nn.LSTM(2, 8, batch_first=True), torch.nn.Linear(8, 1)\n"
        "    def forward(self, x):\n"
        "        return self.out(self.rnn(x)[0])\n"
        "lagreach.diagnose(Model(), (x, y), lags=[0, 1, 3, 8])\n"
        "print(json.dumps(compiled))\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
