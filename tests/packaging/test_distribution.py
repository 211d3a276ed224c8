"""The wheel and the sdist hold what they should, and the wheel works in an environment that has never seen the source.

`make dist` builds both and runs this on them; without LAGREACH_DIST they are built here.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lagreach import __version__
from tests.packaging.test_minimal_install import MISSING

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.read = torch.nn.GRU(2, 6, batch_first=True), torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.gru(x)[0])

def build():
    torch.manual_seed(0)
    return Net()
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    if "LAGREACH_DIST" in os.environ:
        return Path(os.environ["LAGREACH_DIST"]).resolve()
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module", params=["", "[all]"], ids=["core", "all"])
def lagreach(dist, tmp_path_factory, request):
    """Run the installed command in an empty folder, with the core dependencies alone and with those of pages and studies."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder / "env")
    (wheel,) = dist.glob("*.whl")
    pip = [folder / "env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", f"{wheel}{request.param}")
    (folder / "work").mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "COV"))}

    def call(*arguments, program="lagreach"):
        return run(folder / "env/bin" / program, *arguments, cwd=folder / "work", env=environment)

    call.folder, call.has_pages_and_studies = folder / "work", bool(request.param)
    return call


def test_the_version_is_in_the_names(dist):
    assert {path.name for path in dist.iterdir()} == {
        f"lagreach-{__version__}-py3-none-any.whl", f"lagreach-{__version__}.tar.gz",
    }  # fmt: skip


def test_the_wheel_holds_the_package_and_its_data_alone(dist):
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "lagreach").rglob("*")
        if path.suffix in (".py", ".pyi", ".yaml", ".j2", ".js", ".css") or path.name == "py.typed"
    }
    assert {"lagreach/py.typed", "lagreach/__init__.pyi", "lagreach/study/protocols/livi-v1.yaml"} <= expected
    assert expected <= names
    assert {name.split("/")[0] for name in names} == {"lagreach", f"lagreach-{__version__}.dist-info"}
    assert f"lagreach-{__version__}.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_what_it_takes_to_test_it(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "conftest.py",
    } <= names
    assert {"tests/test_house.py", "tests/study/tiny.yaml", "theory/notation.md", "src/lagreach/py.typed"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "dist", "docs/_build"))]


def test_it_answers_and_plans(lagreach):
    assert lagreach("--version").strip() == f"lagreach {__version__}"
    assert "Usage" in lagreach("--help")
    plan = lagreach("plan", "--law", "power", "--beta", "1", "--sigma", "5", "--sequences", "8000", "--json")
    assert json.loads(plan)["sequences"] == 8000
    where = lagreach("-c", "import lagreach; print(lagreach.__file__)", program="python")
    assert "site-packages" in where


def test_it_diagnoses_and_reports(lagreach):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 16, 2)).astype(np.float32)
    (lagreach.folder / "my_models.py").write_text(MODEL)
    np.savez(lagreach.folder / "data.npz", x=x, y=np.roll(x[..., :1], 2, axis=1))
    arguments = ("--model", "my_models:build", "--data", "data.npz", "--lags", "0,1,2,8", "--out", "run", "--json")
    assert json.loads(lagreach("diagnose", *arguments))["sequences"] == 64
    page = lagreach.folder / "run" / "report.html"
    assert page.exists() == lagreach.has_pages_and_studies
    assert not page.exists() or "<html" in page.read_text()
    code = "import lagreach; print(lagreach.load('run/diagnosis.nc').window(64).sequences)"
    assert float(lagreach("-c", code, program="python")) == 64


def test_it_runs_a_study(lagreach):
    if not lagreach.has_pages_and_studies:
        with pytest.raises(AssertionError, match=r'pip install "lagreach\[study\]"'):
            lagreach("study", "run", "livi-v1", "--scale", "smoke", "--out", "study")
        return
    lagreach("study", "run", "livi-v1", "--scale", "smoke", "--out", "study")
    assert "livi-v1" in (lagreach.folder / "study" / "RESULTS.md").read_text()


def test_the_extras_are_not_there_and_it_says_so(lagreach):
    said = dict(line.split(" | ", 1) for line in lagreach("-c", MISSING, program="python").splitlines())
    assert set(said) == {"lightning", "transformers", "digits", "series", "ray"}
    assert all("pip install" in message for message in said.values()), said
