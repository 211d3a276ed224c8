"""`lagreach diagnose`: models, weights and data from files, a progress bar, and exit codes for pipelines."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lagreach._util.arrays import finite_or_none
from lagreach._util.disk import make_folder, refuse_others
from lagreach._util.extras import MissingExtraError
from lagreach.cli.hugging_face import PREFIX, load_hugging_face
from lagreach.data.batch import MOST_STEPS, Batch
from lagreach.data.sequences import as_batch
from lagreach.data.tensor_files import read_tensors
from lagreach.diagnosis.diagnose import cost, diagnose
from lagreach.diagnosis.result import Diagnosis
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import InputError
from lagreach.report.text import show
from lagreach.report.words import about, share

OUT_OF_REACH = 3


def load_model(spec: str) -> nn.Module:
    """Import ``package.module:factory`` or ``folder/file.py:factory`` and call it, or read ``hf:folder``.

    What goes wrong in the user's own code is told with its place.
    """
    if spec.startswith(PREFIX):
        return load_hugging_face(Path(spec.removeprefix(PREFIX)))
    module_name, _, name = spec.partition(":")
    if not name or not module_name:
        raise InputError(
            "a model is named package.module:factory or file.py:factory",
            got=repr(spec),
            fix="write my_package.models:build",
        )
    file = Path(module_name).resolve() if module_name.endswith(".py") else None
    here = str(Path.cwd() if file is None else file.parent)
    sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module_name) if file is None else module_of(file), name)
    except (Exception, SystemExit) as error:  # a script that ends itself would end this command, without a word
        raise InputError(
            "the model could not be imported",
            got=f"{spec}: {in_words(error)}",
            fix="run the command in the folder of the module, or install its package",
        ) from error
    finally:
        sys.path.remove(here)
    try:
        model = factory() if callable(factory) and not isinstance(factory, nn.Module) else factory
    except (Exception, SystemExit) as error:
        raise InputError(
            "the factory of the model failed",
            got=f"{spec}: {in_words(error)}",
            expected="a function without arguments that returns a torch.nn.Module",
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(
            "the factory did not return a torch module", got=type(model).__name__, expected="a torch.nn.Module"
        )
    return model


def module_of(file: Path) -> ModuleType:
    """Run a file as a module of its own, whatever modules of its name there are."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_words(error: BaseException) -> str:
    """Kind and text of an error, and the line it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def load_weights(model: nn.Module, path: Path) -> None:
    """Put weights from a file into a model."""
    state = read_tensors(path)
    try:
        model.load_state_dict(state)
    except Exception as error:  # names that are no text, values that are no tensors, and shapes
        raise InputError(
            "the weights do not fit the model",
            got=f"{path.name}: {(str(error).splitlines() or [type(error).__name__])[-1].strip()}",
            expected="the state_dict() of the same model",
        ) from error


def load_data(path: Path) -> Batch:
    """Read x, y and optionally mask and lengths; or input_ids with labels and attention_mask."""
    tensors = read_tensors(path)
    names = ("input_ids", "labels", "attention_mask") if "input_ids" in tensors else ("x", "y", "mask", "lengths")
    if "input_ids" not in tensors and not {"x", "y"} <= set(tensors):
        raise InputError(
            "the data need x and y",
            got=", ".join(map(str, tensors)) or "nothing",
            expected="x, y and optionally mask, lengths; or input_ids and optionally labels, attention_mask",
        )
    parts = {name: tensors[name] for name in names if name in tensors}
    for name, part in parts.items():
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided or part.is_quantized or part.is_complex():
            got = f"{part.layout}, {part.dtype}" if isinstance(part, torch.Tensor) else type(part).__name__
            raise InputError(f"{name} is not an array of real numbers", got=got, expected="a dense tensor")
    return as_batch(parts, path.name)


def parse_lags(text: str) -> str | list[int]:
    """Read "auto", "1,2,4" or "0:64".

    >>> parse_lags("1,2,8"), parse_lags("0:4"), parse_lags("auto")
    ([1, 2, 8], [0, 1, 2, 3], 'auto')
    """
    if text == "auto":
        return text
    try:
        if ":" in text:
            wanted = range(*[int(part) for part in text.split(":")])
            return list(wanted[: MOST_STEPS + 1])  # more are refused in any case
        return [int(part) for part in text.split(",")]
    except (ValueError, TypeError) as error:
        raise InputError("lags could not be read", got=repr(text), expected="auto, 1,2,4 or 0:64") from error


def parse_steps(text: str | None) -> str | list[int] | None:
    """Read "last" or "3,7,11".

    >>> parse_steps("3,7"), parse_steps("last"), parse_steps(None)
    ([3, 7], 'last', None)
    """
    if text is None or text == "last":
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError("steps could not be read", got=repr(text), expected="last, or 3,7,11") from error


def run_diagnose(
    model: str,
    data: Path,
    out: Path,
    *,
    weights: Path | None,
    loss: str,
    lags: str,
    sequences: int | None,
    require: Sequence[int],
    budget: float | None,
    memory: int | None,
    steps: str | None,
    outputs: str | None,
    lags_of: str,
    inputs: str | None,
    only: str | None,
    dry_run: bool,
    as_json: bool,
    settings: MeasureSettings,
) -> int:
    """Run the command and return its exit code."""
    refuse_others([out / "diagnosis.nc", out / "report.html"])
    built = load_model(model)
    if weights is not None:
        load_weights(built, weights)
    batch = load_data(data)
    if dry_run:
        planned = cost(
            built, batch, loss, parse_lags(lags), settings=settings, budget=budget, memory=memory, require=require,
            steps=parse_steps(steps), outputs=outputs, lags_of=lags_of, inputs=inputs, only=only,
        )  # fmt: skip
        print(json.dumps(vars(planned) | {"layers": list(planned.layers)}, indent=2) if as_json else planned)
        return 0
    diagnosis = diagnose(
        built, batch, loss, parse_lags(lags), sequences=sequences, require=require, budget=budget, memory=memory,
        steps=parse_steps(steps), outputs=outputs, lags_of=lags_of, inputs=inputs, only=only,
        settings=settings,
    )  # fmt: skip
    make_folder(out)
    diagnosis = replace(diagnosis, about={**diagnosis.about, "data": f"{data.name}: {diagnosis.about['data']}"})
    diagnosis.save(out / "diagnosis.nc")
    try:
        diagnosis.report(out / "report.html")
    except MissingExtraError as missing:  # the answer needs no page
        print(f"lagreach: no page was written, since {missing}", file=sys.stderr)
    if as_json:
        print(json.dumps(summary(diagnosis, require), indent=2))
    else:
        show(diagnosis)
        for row in required_rows(diagnosis, require):
            print(f"required lag {row['lag']}: {row['why']}")
    return OUT_OF_REACH if any(not row["within_reach"] for row in required_rows(diagnosis, require)) else 0


def required_rows(diagnosis: Diagnosis, require: Sequence[int]) -> list[dict[str, Any]]:
    """For each required lag: the sequences it needs, whether there are enough, and why.

    Where the data depend on the lag, what that dependence needs counts; elsewhere, what one of the given strength would.
    """
    rows = []
    for lag in require:
        planted, in_data = (
            min(needed.at(lag)["sequences"] for needed in requirements)
            for requirements in (
                [one.window.required_if_present() for one in diagnosis.layers],
                [one.window.required for one in diagnosis.layers],
            )
        )
        depends = math.isfinite(in_data)
        needed = in_data if depends else planted
        within = bool(needed <= diagnosis.sequences)
        what = (
            "the dependence in the data"
            if depends
            else f"one explaining {share(diagnosis.window().strength)} of the target"
        )
        verdict = "within reach" if within else "out of reach"
        why = f"{verdict}: {what} needs {about(needed)} sequences, and there are {diagnosis.sequences:,}"
        rows.append({"lag": lag, "sequences": finite_or_none(needed), "within_reach": within, "why": why})
    return rows


def summary(diagnosis: Diagnosis, require: Sequence[int]) -> dict[str, Any]:
    """Plain numbers for other programs; what is infinite is null."""
    at = diagnosis.window()
    return {
        "sequences": diagnosis.sequences,
        "strength": at.strength,
        "window": {"lag": at.lag, "interval": list(at.interval), "status": at.status.name},
        "required_lags": required_rows(diagnosis, require),
        "layers": [
            {
                "name": one.name,
                "local": one.local,
                "dependences": list(one.window.dependences),
                "lags": one.window.lags.tolist(),
                "required": [finite_or_none(n) for n in one.window.required.sequences],
                "required_if_present": [finite_or_none(n) for n in one.window.required_if_present().sequences],
                "curves": {k: [finite_or_none(n) for n in curve.value] for k, curve in one.window.curves.items()},
                "kappa": finite_or_none(one.window.concentration.exponent),
                "alpha": finite_or_none(one.tail.alpha),
                "limits": {
                    str(lag): one.window.limit(lag, diagnosis.sequences).name for lag in one.window.lags.tolist()
                },
            }
            for one in diagnosis.layers
        ],
        "warnings": list(diagnosis.warnings),
    }
