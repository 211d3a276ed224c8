"""The command line under random options: every command ends with an exit code and a message, never with a traceback."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints
from unittest.mock import patch

import numpy as np
import torch
import typer
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

from lagreach.cli.main import app
from lagreach.errors import LagreachError
from lagreach.study.config import find_study
from lagreach.study.runner import run_study
from tests.reliability.counting import Count, Size, explore, outcome_of, scratch
from tests.reliability.runs import SMALL
from tests.reliability.soak import diagnose_once

EXAMPLES = {"quick": 5, "full": 400}
UNTOUCHED = "it is refused, and no file is touched; an export may stand beside other files"
LIKE_A_RUN = [
    *("config.yaml", "log.txt", "manifest.txt", "versions.json", "RESULTS.md", "claims.json", "thesis.txt"),
    *("figures/mine.png", "figures/windows-all.png", "trainings/a/mine.txt", "trainings/mine/metrics.parquet"),
    *("diagnoses/mine.nc", "experiments/thesis.txt", "predictors/x.parquet", "trainings/a/metrics.parquet"),
]
EXAMPLES_OF_SLOW = {"quick": 2, "full": 60}  # commands that train or draw many figures
SLOW = ("study run", "figures", "diagnose", "forecast", "report", "demo")
CODES = (0, 2, 3)
MODELS = """
import torch
from torch import nn
import lagreach

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.read = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.read(self.gru(x)[0])

def build():
    torch.manual_seed(0)
    return Net()

def gated():
    return lagreach.GatedRNN("diag_gate", 1, 2, 1)

def plain():
    return nn.Linear(1, 1)

def broken():
    raise KeyError("in the user's own code")

def number():
    return 3

ready = build()
"""


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def prepare(folder: Path) -> list[str]:
    """Write files that options can name; return their names, and names of what is not there."""
    (folder / "mine.py").write_text(MODELS)
    study = SMALL.read_text()
    (folder / "study.yaml").write_text(study)
    (folder / "damaged.yaml").write_text(study.replace("cell: diag_gate", "cell: [1]"))
    diagnosis = diagnose_once()
    diagnosis.save(folder / "good.nc")
    diagnosis.labelled(epoch=1).save(folder / "other.nc")
    (folder / "damaged.nc").write_bytes((folder / "good.nc").read_bytes()[:3000])
    (folder / "empty").mkdir()
    (folder / "diagnoses").mkdir()
    shutil.copy(folder / "good.nc", folder / "diagnoses")
    data(folder)
    hugging_face(folder)
    odd = [
        "missing.nc",
        "missing.npz",
        "missing/file",
        "/dev/null",
        "/dev/null/inside",
        "/proc/inside",
        "",
        ".",
        "a" * 300,
    ]
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".py") + odd


def data(folder: Path) -> None:
    """Write data good and bad."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 8, 1, generator=generator)
    y = torch.nn.functional.pad(x[:, :-2], (0, 0, 2, 0))
    nan = x.clone()
    nan[3, 4] = torch.nan
    kinds: dict[str, dict[str, torch.Tensor]] = {
        "good": {"x": x, "y": y},
        "masked": {"x": x, "y": y, "mask": torch.ones(16, 8), "lengths": torch.full((16,), 8)},
        "nan": {"x": nan, "y": y},
        "few": {"x": x[:3], "y": y[:3]},
        "other_lengths": {"x": x, "y": y[:4]},
        "wide": {"x": x.expand(16, 8, 3).contiguous(), "y": y},
        "flat": {"x": x[..., 0].contiguous(), "y": y},
        "one_axis": {"x": x[:, 0, 0].contiguous(), "y": y},
        "empty": {"x": x[:0], "y": y[:0]},
        "no_steps": {"x": x[:, :0].contiguous(), "y": y[:, :0].contiguous()},
        "constant": {"x": torch.ones(16, 8, 1), "y": y},
        "huge": {"x": 1e30 * x, "y": y},
        "huge_target": {"x": x, "y": 1e38 * y},
        "whole": {"x": (10 * x).long(), "y": (y > 0).long()},
        "half": {"x": x.half(), "y": y.bfloat16()},
        "bool": {"x": x > 0, "y": y > 0},
        "last": {"x": x, "y": y[:, -1].contiguous()},
        "mask_of_zeros": {"x": x, "y": y, "mask": torch.zeros(16, 8)},
        "wrong_mask": {"x": x, "y": y, "mask": torch.ones(16, 7)},
        "wrong_lengths": {"x": x, "y": y, "lengths": torch.full((16,), 99)},
        "float_lengths": {"x": x, "y": y, "lengths": torch.full((16,), 2.5)},
        "same": {"x": x[:1].expand(16, 8, 1).contiguous(), "y": y},
        "no_target": {"x": x},
        "tokens": {"x": (10 * x[..., 0]).long().abs() % 8, "y": (10 * y[..., 0]).long().abs() % 8},
    }
    for name, tensors in kinds.items():
        save_file(tensors, folder / f"{name}.safetensors")
    np.savez(folder / "good.npz", x=x.numpy(), y=y.numpy())
    np.savez(folder / "complex.npz", x=x.numpy() * 1j, y=y.numpy())
    np.savez(folder / "words.npz", x=np.array(["a", "b"]), y=y.numpy())
    torch.save({"x": x, "y": y}, folder / "good.pt")
    torch.save(dict(torch.nn.GRU(1, 3).state_dict()), folder / "weights.pt")
    torch.save({1: 2, "a": [3]}, folder / "odd_weights.pt")


def hugging_face(folder: Path) -> None:
    """Write a small model as the transformers library does, and folders that are nearly one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 8, "n_positions": 16, "bos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=0)).save_pretrained(folder / "tiny")
    config = (folder / "tiny" / "config.json").read_text()
    for name, text in {
        "with_code": config.replace("{", '{"auto_map": {"AutoModel": "code.Model"}, ', 1),
        "of_nothing": config.replace("GPT2LMHeadModel", "NoSuchModel"),
        "no_json": config[:40],
        "other_sizes": config.replace('"n_embd": 4', '"n_embd": 6'),
        "wrong_values": config.replace('"n_embd": 4', '"n_embd": "x"'),
    }.items():
        shutil.copytree(folder / "tiny", folder / name)
        (folder / name / "config.json").write_text(text)
    shutil.copytree(folder / "tiny", folder / "cut")
    weights = folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])


NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "0.5",
    "1.5",
    "100",
    "1e308",
    "-1e308",
    "1e-308",
    "nan",
    "inf",
    "-inf",
    "10000000000000000000000",
]
WHOLE = ["", "0", "1", "2", "4", "7", "-1", "100", "1000", "9223372036854775807", "99999999999999999999999", "1.5", "x"]
HF_FOLDERS = ["tiny", "with_code", "of_nothing", "no_json", "other_sizes", "wrong_values", "cut", "empty", "missing"]
HF_MODELS = [f"hf:{name}" for name in [*HF_FOLDERS, "", ".", "good.nc", "/dev/null", "a" * 300, "tiny/config.json"]]
SAFE_WHOLE = {
    "directions": ["", "0", "1", "8", "-1", "1.5", "x"],
    "workers": ["0", "1", "-1", "x"],
    "seeds": ["0", "1", "-1", "x"],
}  # more would be more work, not more risk
KEPT = ("/dev/null", "good.nc", "other.nc", "good.npz", "good.safetensors", "study.yaml")  # not to be written over
GOOD_MODELS = ["mine:build", "mine:gated", "mine:ready"]
BAD_MODELS = [
    "mine:plain",
    "mine:broken",
    "mine:number",
    "mine:nothing",
    "mine",
    "nowhere:build",
    ":build",
    "mine:",
    ":",
    "..:a",
    "a.b.c:d",
    "json:loads",
    "good.nc:x",
]
TEXTS = {
    "model": GOOD_MODELS + BAD_MODELS + HF_MODELS,
    "fit": ["all", "readout", "some", ""],
    "optimiser": ["adam:0.001", "sgd:1", "adam", "adam:x", "adam:-1", "adam:nan", "lion:1", ":", ""],
    "sequences": ["100,1000", "1", "0", "-1", "1,", "1.5", "99999999999999999999999", "1e3", ""],
    "loss": ["mse", "cross_entropy", "mae", ""],
    "lags": [
        "",
        "auto",
        "0,1,2",
        "0:8",
        "0:8:2",
        "8:0",
        "::",
        "0:8:0",
        "-1",
        "1e3",
        "a",
        "7",
        "0,0",
        "99999999999",
        "0:99999999999",
    ],
    "law": ["power", "exponential", "logarithmic", "stretched", "cubic", ""],
    "kind": ["png", "svg", "pdf", "exe", ""],
    "figure": ["window", "gain", "noise", "nothing", ""],
    "study": ["study.yaml", "damaged.yaml", "livi-v11", "", "good.nc", "missing.yaml", "empty"],
    "scale": ["smoke", "paper", "huge", ""],
    "executor": ["local", "slurm", ""],
    "address": ["auto", ""],
    "device": ["cpu", "cuda", "tpu", "cpu:7", ""],
    "kernel": ["auto", "reference", "numba", "triton", "fast"],
    "activation": ["tanh", "logistic", "gaussian", "erf", "sine", "relu", ""],
    "form": ["corrected", "printed", "both", "other"],
    "names": ["nothing", "-1"],
    "title": ["A <title> & more", "", "{{ x }}"],
}


def values(name: str, kind: str, paths: list[str]) -> st.SearchStrategy[str]:
    """Draw a value for a parameter, most often of its own kind."""
    if name == "figure" and "Path" in kind:
        return st.sampled_from(["plan.png", "plan.xyz", "plan", "missing/plan.png", "/proc/inside.png"])
    if name in SAFE_WHOLE:
        return st.sampled_from(SAFE_WHOLE[name])
    if "Path" in kind:
        return st.sampled_from([path for path in paths if name != "out" or path not in KEPT])
    if "int" in kind:
        return st.sampled_from(WHOLE)
    if "float" in kind:
        return st.sampled_from(NUMBERS) | st.floats().map(repr)
    return st.sampled_from(TEXTS.get(name, ["", "a"])) | st.text(
        st.characters(codec="utf-8", exclude_characters="\0"), max_size=6
    )


GOOD = {  # what makes a command get as far as its work
    "plan": ["--law", "power", "--sigma", "5", "--beta", "1"],
    "diagnose": ["--model", "mine:gated", "--data", "good.safetensors", "--out", "result"],
    "forecast": ["--model", "mine:gated", "--data", "good.safetensors", "--directions", "8", "--out", "result"],
    "demo": ["--out", "demo"],
    "compare": ["good.nc"],
    "suggest": ["good.nc"],
    "report": ["good.nc"],
    "figures": ["good.nc", "--out", "pictures"],
    "convergence bounds": ["--width", "64", "--alpha", "0.3", "--steps", "4", "--samples", "8"],
    "convergence plan": ["--error", "0.5", "--alpha", "0.3", "--steps", "4", "--samples", "8"],
    "study run": ["study.yaml", "--out", "run", "--scale", "smoke", "--workers", "1"],
    "study show": ["livi-v1"],
    "study status": ["run"],
}


@st.composite
def arguments(draw: st.DrawFn, name: str, command: Any, paths: list[str]) -> list[str]:
    """Draw the words after a command: options that work with some changed, or everything at random."""
    words = list(GOOD.get(name, [])) if draw(st.integers(0, 3)) else []
    kinds = get_type_hints(inspect.unwrap(command.callback))
    parameters = [p for p in command.params if p.name in kinds]
    chosen = draw(st.lists(st.sampled_from(parameters), max_size=4)) if parameters else []
    for parameter in chosen:
        option = next((opt for opt in parameter.opts if opt.startswith("-")), None)
        if option is not None and getattr(parameter, "is_flag", False):
            words.append(option)
            continue
        value = draw(values(parameter.name, str(kinds[parameter.name]), paths))
        words += [value] if option is None else [option, value]
    if draw(st.integers(0, 9)) == 0:
        words.insert(
            draw(st.integers(0, len(words))), draw(st.sampled_from(["--no-such", "-x", "--", "extra", "--json"]))
        )
    return words


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Let `lagreach bench` end before it starts the benchmarks, which take minutes, and make the demo's story a short one."""
    small = {"UNITS": 4, "SEQUENCES": 64, "HELD_OUT": 64, "STEPS": 2}
    with (
        patch("lagreach.cli.bench.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=0)),
        patch.multiple("lagreach.cli.demo", **small),
    ):
        yield


def check(size: Size) -> Iterator[Count]:
    """Call every command with random words."""
    runner, here = CliRunner(), Path.cwd()
    with scratch() as folder, quickly():
        os.chdir(folder)
        try:
            paths = prepare(folder)
            for name, command in commands(typer.main.get_command(app)):
                count = Count(f"`lagreach {name}`", "exit code 0, 2 or 3, with a message")

                def trial(words: list[str], name: str = name, count: Count = count) -> None:
                    one_call(runner, [*name.split(), *words], count)

                most = (EXAMPLES_OF_SLOW if name in SLOW else EXAMPLES)[size]
                explore(arguments(name, command, paths), trial, most, size)
                yield count
            yield from every_data(runner, folder, size)
            yield other_peoples_folders(runner, folder, size)
        finally:
            os.chdir(here)


def every_data(runner: CliRunner, folder: Path, size: Size) -> Iterator[Count]:
    """Diagnose and forecast every model on every file of data, and with every file of weights."""
    files = sorted(path.name for path in folder.iterdir() if path.suffix in (".npz", ".safetensors", ".pt"))
    calls = [(model, ["--data", name]) for model in [*GOOD_MODELS[:2], "mine:plain", "hf:tiny"] for name in files]
    calls += [("mine:build", ["--data", "good.npz", "--weights", name]) for name in files]
    calls += [("mine:gated", ["--data", "good.npz", "--lags", lags]) for lags in TEXTS["lags"]]
    calls += [(model, ["--data", "tokens.safetensors", "--loss", "cross_entropy"]) for model in HF_MODELS]
    for command, options in (("diagnose", []), ("forecast", ["--directions", "8"])):
        count = Count(f"`lagreach {command}`, every model on every file of data", "exit code 0, 2 or 3, with a message")
        for model, words in calls[:: {"quick": 20, "full": 1}[size]]:
            one_call(runner, [command, "--model", model, "--out", "result", *options, *words], count)
        yield count


def other_peoples_folders(runner: CliRunner, folder: Path, size: Size) -> Count:
    """Run and export into folders that look like a run's, or nearly, and hold something that no run wrote."""
    count = Count("`lagreach study run` and `study export` into folders with other people's files", UNTOUCHED)
    theirs = folder / "theirs"
    run_study(find_study("study.yaml").at_scale("smoke"), "whole", show_progress=False)
    files = st.dictionaries(st.sampled_from(LIKE_A_RUN), st.sampled_from(["", "mine", "lr: 0.1", "[]"]), min_size=1)
    begun = st.sampled_from(["nothing", "a study", "a run"])
    command = st.sampled_from([["run", "--overwrite"], ["run", "--resume"], ["run"], ["export"]])

    def trial(example: tuple[dict[str, str], str, list[str]]) -> None:
        names, start, (name, *options) = example
        shutil.rmtree(theirs, ignore_errors=True)
        if start == "a run":
            shutil.copytree("whole", theirs)
            options = ["--overwrite"]  # without it a run is gone on with, beside the files
        theirs.mkdir(exist_ok=True)
        if start == "a study":
            shutil.copy("study.yaml", theirs / "config.yaml")
        for path, text in names.items():
            (theirs / path).parent.mkdir(parents=True, exist_ok=True)
            (theirs / path).write_text(text)
        before = contents_of(theirs)
        words = ["study.yaml", "--scale", "smoke", "--workers", "1", "--out", "theirs", *options]
        result = runner.invoke(app, ["study", *(["export", "whole", "theirs"] if name == "export" else [name, *words])])
        in_the_way = name == "run" or before.keys() & {str(p.relative_to("whole")) for p in Path("whole").rglob("*")}
        changed = {path for path, content in before.items() if contents_of(theirs).get(path) != content}
        refused = isinstance(result.exception, LagreachError)
        well = not changed and (refused or not in_the_way)
        count.add("refused" if refused else "done", None if well else f"{example}: {changed or result.exception}")

    explore(st.tuples(files, begun, command), trial, EXAMPLES[size], size)
    return count


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_call(runner: CliRunner, words: list[str], count: Count) -> None:
    """Call the command once and look at how it ended."""
    ended: list[Any] = []
    _, problem = outcome_of(lambda: ended.append(runner.invoke(app, words)))
    if problem is not None:
        count.add("failed", f"{words}: {problem}")
        return
    result = ended[0]
    error = result.exception
    if isinstance(error, LagreachError):
        count.add("refused")
    elif error is None or (isinstance(error, SystemExit) and result.exit_code in CODES):
        count.add({0: "done", 2: "refused", 3: "out of reach"}[result.exit_code])
    else:
        count.add("failed", f"{words}: {type(error).__name__}: {error}")
