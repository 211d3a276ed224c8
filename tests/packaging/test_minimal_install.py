"""With the core packages alone everything works but what the extras are for, and that says what to install."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
EXTRAS = [
    "accelerate", "beartype", "lightning", "mambapy", "minGRU_pytorch", "pmdarima", "pytorch_lightning", "ray",
    "s5", "sklearn", "statsmodels", "transformers", "triton",
]  # fmt: skip


def run_without(modules, code, cwd=None):
    """Run code in a fresh interpreter in which these modules cannot be imported."""
    before = f"import sys\nfor name in {modules!r}:\n    sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False, cwd=cwd)


def printed(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


DIAGNOSIS = """
import torch, lagreach
x = torch.randn(64, 12, 2, generator=torch.Generator().manual_seed(0))
y = torch.roll(x[..., :1], 3, dims=1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.read = torch.nn.LSTM(2, 8, batch_first=True), torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.read(self.lstm(x)[0])
torch.manual_seed(0)
diagnosis = lagreach.diagnose(Net(), (x, y), lags=[0, 1, 3])
print(diagnosis.window(64).sequences)
"""


MISSING = """
import torch, lagreach
def train(name):
    lagreach.tasks.make_task(name).sample(4, torch.Generator())
def spread():
    from lagreach.study.executors import make_executor  # itself part of an extra
    make_executor("ray")
tries = {
    "lightning": lambda: lagreach.callbacks.LightningCallback(),
    "transformers": lambda: lagreach.callbacks.TrainerCallback(None),
    "digits": lambda: train("digits"),
    "series": lambda: train("series"),
    "ray": spread,
}
for name, attempt in tries.items():
    try:
        attempt()
    except lagreach.LagreachError as error:
        print(name, "|", " ".join(str(error).split()))
"""


WITHOUT_PAGES = ["jinja2", "matplotlib", "markupsafe", "pyarrow", "pydantic", "yaml"]


def test_a_diagnosis_needs_no_packages_for_pages_and_studies(tmp_path):
    code = (
        DIAGNOSIS
        + """
diagnosis.save("run.nc")
print(str(lagreach.load("run.nc")) == str(diagnosis))
import lagreach.cli
from pathlib import Path
from lagreach.cli.demo import run_demo
tries = {
    "page": lambda: diagnosis.report("run.html"),
    "study": lambda: lagreach.train,
    "figure": lambda: lagreach.plan(beta=1.0, sequences=1000).figure(),
    "demo": lambda: run_demo(Path("demo")),
}
for name, attempt in tries.items():
    try:
        attempt()
    except lagreach.LagreachError as error:
        print(name, "|", " ".join(str(error).split()))
"""
    )
    _, same, *messages = printed(run_without([*EXTRAS, *WITHOUT_PAGES], code, tmp_path))
    assert same == "True"
    expected = {"page": "report", "study": "study", "figure": "report", "demo": "report"}
    for line, (name, extra) in zip(messages, expected.items(), strict=True):
        assert line.startswith(f"{name} | ")
        assert f'pip install "lagreach[{extra}]"' in line


COMMAND = """
import sys, torch
from pathlib import Path
from lagreach.cli.main import run
Path("my_models.py").write_text("from torch import nn\\nclass Net(nn.Module):\\n"
    "    def __init__(self):\\n        super().__init__()\\n        self.gru = nn.GRU(2, 4, batch_first=True)\\n"
    "    def forward(self, x):\\n        return self.gru(x)[0][..., :1]\\n")
x = torch.randn(64, 12, 2, generator=torch.Generator().manual_seed(0))
torch.save({"x": x, "y": torch.roll(x[..., :1], 3, dims=1)}, "data.pt")
sys.argv = ["lagreach", *%r, "--model", "my_models:Net", "--data", "data.pt", "--lags", "0,1,3"]
run()
"""


def test_commands_answer_without_the_packages_for_pages(tmp_path):
    without = [*EXTRAS, *(name for name in WITHOUT_PAGES if name != "pydantic")]  # which newer versions of typer bring
    done = run_without(without, COMMAND % ["diagnose", "--out", "run"], tmp_path)
    assert "With 64 sequences" in "\n".join(printed(done))
    assert 'pip install "lagreach[report]"' in done.stderr
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["diagnosis.nc"]
    refused = run_without(without, COMMAND % ["forecast", "--report", "page.html"], tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert 'pip install "lagreach[report]"' in refused.stderr


def test_every_module_loads_without_the_extras():
    code = """
import importlib, pkgutil, lagreach
for module in pkgutil.walk_packages(lagreach.__path__, "lagreach."):
    if not module.name.startswith(("lagreach.kernels.gpu.", "lagreach.__main__")):
        importlib.import_module(module.name)
        print(module.name)
"""
    loaded = printed(run_without(EXTRAS, code))
    assert {
        "lagreach.diagnosis.diagnose",
        "lagreach.kernels.gpu",
        "lagreach.study.runner",
        "lagreach.callbacks",
    } <= set(loaded)


def test_a_diagnosis_its_file_and_its_pages_without_the_extras(tmp_path):
    code = (
        DIAGNOSIS
        + """
diagnosis.save("run.nc")
again = lagreach.load("run.nc")
again.report("run.html")
print(str(again) == str(diagnosis), "<html" in open("run.html").read())
from lagreach.report.gallery import export
print(len(export([again], "figures")[0]) > 0)
"""
    )
    sequences, same, figures = printed(run_without(EXTRAS, code, tmp_path))
    assert (float(sequences), same, figures) == (64.0, "True True", "True")


def test_the_extras_say_what_to_install():
    messages = dict(line.split(" | ", 1) for line in printed(run_without(EXTRAS, MISSING)))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, extra in {
        "lightning": "lightning", "transformers": "transformers", "digits": "data", "series": "data", "ray": "ray",
    }.items():  # fmt: skip
        assert f"lagreach[{extra}]" in messages[name]
        assert extra in declared


def test_without_numba_a_diagnosis_works_and_says_that_it_is_slow():
    done = run_without(["numba"], DIAGNOSIS)
    assert printed(done) == ["64.0"]
    assert "numba is not installed" in done.stderr


def test_without_numba_wide_networks_run_in_torch():
    code = """
import torch, lagreach
from lagreach.papers.cayci import streaming, symmetric_init
weights = symmetric_init(4096, 2, 0.5)
x = torch.zeros(64, 32, 2, dtype=torch.float64)
print(streaming.choose_engine("auto", weights, x, streaming.get_activation("tanh")))
print(float(streaming.outputs(weights, x).abs().max()))
"""
    assert printed(run_without(["numba"], code)) == ["torch", "0.0"]
