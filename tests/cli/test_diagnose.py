"""The commands that answer for a user's model, and their exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lagreach.cli.diagnose import parse_lags, read_tensors
from lagreach.errors import InputError
from tests.cli import running

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.read = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.gru(x)[0])

def build():
    torch.manual_seed(0)
    return Net()
"""


def lagreach(folder, *args):
    code = "from lagreach.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=False, cwd=folder
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("project")
    (path / "my_models.py").write_text(MODEL)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 16, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-2, :1], (0, 0, 2, 0))
    np.savez(path / "data.npz", x=x.numpy(), y=y.numpy())
    save_file({"x": x, "y": y}, path / "data.safetensors")
    torch.save({"x": x, "y": y}, path / "data.pt")
    return path


COMMON = ("diagnose", "--model", "my_models:build", "--lags", "0,1,2,8")


def test_a_model_may_be_named_by_its_file(folder, tmp_path):
    """From another folder, beside what it imports, and whatever else has its name."""
    place = tmp_path / "models"
    place.mkdir()
    (place / "parts.py").write_text(MODEL)
    (place / "json.py").write_text("from parts import build\n")
    model, out = ("--model", place / "json.py:build"), ("--out", tmp_path / "run")
    done = lagreach(folder, "diagnose", *model, "--lags", "0,2", "--data", "data.npz", "--json", *out)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["layers"][0]["dependences"] == [2]


def test_diagnose_writes_and_answers(folder):
    done = lagreach(folder, *COMMON, "--data", "data.npz", "--out", "run", "--json", "--sequences", 100000)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["layers"][0]["dependences"] == [2]
    assert result["sequences"] == 100000
    assert sorted(file.name for file in (folder / "run").iterdir()) == ["diagnosis.nc", "report.html"]
    compared = running.lagreach("compare", "run/diagnosis.nc", "run/diagnosis.nc", "--json", cwd=folder)
    assert [row["name"] for row in json.loads(compared.stdout)] == ["run/diagnosis.nc"] * 2
    assert "reach with" in running.lagreach("compare", "run/diagnosis.nc", cwd=folder).stdout


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["data.safetensors", "data.pt"])
def test_other_kinds_of_data_and_the_gate(folder, data):
    done = lagreach(folder, *COMMON, "--data", data, "--out", "gate", "--require-lag", 8, "--sequences", 10)
    assert done.returncode == 3, done.stderr
    assert "required lag 8: out of reach: one explaining 5 % of the target needs" in done.stdout
    within = lagreach(folder, *COMMON, "--data", data, "--out", "found", "--require-lag", 2, "--error", 0.2)
    assert within.returncode == 0, within.stdout
    assert "required lag 2: within reach: the dependence in the data needs" in within.stdout


@pytest.mark.thorough
def test_dry_run(folder):
    done = lagreach(folder, *COMMON, "--data", "data.npz", "--out", "none", "--dry-run")
    assert done.returncode == 0
    assert "about" in done.stdout
    assert not (folder / "none").exists()


@pytest.mark.thorough
def test_weights(folder):
    sys.path.insert(0, str(folder))
    from my_models import build

    weights = {name: value + 0.1 for name, value in build().state_dict().items()}
    save_file(weights, folder / "w.safetensors")
    torch.save({"wrong": torch.zeros(1)}, folder / "wrong.pt")
    common = (*COMMON, "--data", "data.npz", "--out", "weighted", "--json")
    assert lagreach(folder, *common, "--weights", "w.safetensors").returncode == 0
    done = lagreach(folder, *common, "--weights", "wrong.pt")
    assert done.returncode == 2
    assert "do not fit the model" in done.stderr


@pytest.mark.thorough
def test_a_malicious_file_executes_nothing(folder):
    class Trap:
        def __reduce__(self):
            return Path.touch, (folder / "executed",)

    torch.save({"x": Trap(), "y": 1}, folder / "trap.pt")
    np.savez(folder / "trap.npz", x=np.array([Trap()], dtype=object), y=np.zeros(1))
    for name in ("trap.pt", "trap.npz"):
        done = lagreach(folder, *COMMON, "--data", name, "--out", "trapped")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert not (folder / "executed").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--model", "my_models", "--data", "data.npz"), "package.module:factory"),
        (("--model", "my_models:nothing", "--data", "data.npz"), "could not be imported"),
        (("--model", "missing.py:build", "--data", "data.npz"), "could not be imported"),
        (("--model", "nowhere:build", "--data", "data.npz"), "could not be imported"),
        (("--model", "torch:tensor", "--data", "data.npz"), ""),
        (("--model", "my_models:build", "--data", "missing.npz"), "no such file"),
        (("--model", "my_models:build", "--data", "my_models.py"), "unknown kind of file"),
        (("--model", "my_models:build", "--data", "data.npz", "--lags", "one"), "lags could not be read"),
    ],
)
def test_bad_input_exits_with_2(folder, args, complaint):
    done = lagreach(folder, "diagnose", *args, "--out", "bad")
    assert done.returncode == 2 or "torch:tensor" in args
    assert complaint in done.stderr


@pytest.mark.parametrize("command", ["diagnose", "forecast"])
def test_code_that_ends_itself_does_not_end_the_command_without_a_word(tmp_path, command):
    """Its exit code was that of the command, and nothing was printed."""
    (tmp_path / "ending_script.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "ending_factory.py").write_text("def build():\n    raise SystemExit(7)\n")
    (tmp_path / "ending_model.py").write_text(
        "import torch\n\n\nclass Build(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 1)\n\n"
        "    def forward(self, x):\n        raise SystemExit(7)\n"
    )
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(32, 6, 2)), y=np.arange(32.0)[:, None])
    for spec, said in (
        ("ending_script:build", "could not be imported"),
        ("ending_factory:build", "the factory of the model failed"),
        ("ending_model:Build", "the model does not run on the data"),
    ):
        out = ("--out", "ended") if command == "diagnose" else ()
        done = running.lagreach(command, "--model", spec, "--data", "data.npz", *out, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "SystemExit: 7" in done.stderr


def test_lags_as_text():
    assert parse_lags("0:8:2") == [0, 2, 4, 6]
    with pytest.raises(InputError):
        parse_lags("0:x")
    with pytest.raises(InputError, match="no such file"):
        read_tensors(Path("nowhere.pt"))


def test_plan(tmp_path):
    common = ("plan", "--law", "power", "--beta", 1, "--signal", 1, "--sigma", 5, "--alpha", 1.7, "--sequences", 8000)
    table = running.lagreach(*common, "--error", 0.05)
    assert table.returncode == 0, table.stderr
    assert "8,000" in table.stdout or "8000" in table.stdout
    result = json.loads(running.lagreach(*common, "--json", "--figure", "plan.png", cwd=tmp_path).stdout)
    assert result
    assert (tmp_path / "plan.png").stat().st_size > 5000
    assert running.lagreach("plan", "--law", "cubic", "--sigma", 1).returncode == 2


@pytest.mark.parametrize("command", ["plan", "diagnose", "compare"])
def test_help_has_an_example(command):
    done = running.lagreach(command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("language")
    config = transformers.GPT2Config(
        vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokens = torch.randint(0, 9, (48, 10), generator=torch.Generator().manual_seed(0))
    tokens[:, 3:] = torch.where(
        torch.rand(48, 7, generator=torch.Generator().manual_seed(1)) < 0.8, tokens[:, :-3], tokens[:, 3:]
    )
    np.savez(folder / "tokens.npz", input_ids=tokens.numpy(), labels=tokens.numpy())
    return folder


@pytest.mark.thorough
def test_a_folder_of_a_hugging_face_model(language_model):
    common = ("diagnose", "--model", "hf:model", "--data", "tokens.npz", "--lags", "0,2,4", "--out", "run", "--json")
    done = lagreach(language_model, *common)
    assert done.returncode == 0, done.stderr
    (layer,) = json.loads(done.stdout)["layers"]
    assert layer["name"] == "whole model"
    refused = lagreach(language_model, *common, "--lags-of", "layers")
    assert refused.returncode == 2
    assert "no recurrent layer" in refused.stderr
    named = lagreach(language_model, *common, "--inputs", "transformer.wpe", "--dry-run")
    assert named.returncode == 2
    assert "is not given a sequence of inputs" in named.stderr


def test_folders_that_are_no_models_or_bring_code_are_refused(language_model, tmp_path):
    from lagreach.cli.diagnose import load_model
    from lagreach.errors import UnsupportedError

    with pytest.raises(InputError, match="not the folder of a Hugging Face model"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="no weights in safetensors"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the folder was run')")
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    with pytest.raises(UnsupportedError, match="runs code that lies in its folder"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchModel"]}))
    with pytest.raises(UnsupportedError, match="no such model"):
        load_model(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    with pytest.raises(InputError, match="could not be built"):
        load_model(f"hf:{tmp_path}")
    with pytest.raises(InputError, match="not the folder"):
        load_model("hf:" + "a" * 300)
