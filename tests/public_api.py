"""What users may rely on: every public name with its signature, and every command with its options, as lines of text.

`tests/public_api.txt` is the agreed state, and a test compares. After a change that is meant (and in the changelog):

    python -m tests.public_api
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import lagreach

FROZEN = Path(__file__).with_suffix(".txt")

# Modules whose public names are part of the promise: those in `__all__`, or else all without an underscore.
MODULES = [
    "adapters", "callbacks", "cells", "convergence", "convergence.bounds", "convergence.ntk", "detection", "errors",
    "kernels", "regimes", "statistics", "report", "report.figures", "papers.livi.figures",
    "papers.livi.lemmas", "tails", "tails.stable", "tasks", "testing",
    "types", "advice.what_if",
]  # fmt: skip

# What public functions return, and settings they take.
RECORDS = [
    "callbacks.watched_training.WatchedTraining",
    "data.batch.Batch", "diagnosis.compare.Comparison", "advice.retention.LayerRetention", "advice.retention.Retention",
    "diagnosis.result.Diagnosis",
    "diagnosis.result.LayerDiagnosis", "diagnosis.result.NoiseSample", "forecasting.result.Forecast",
    "advice.gates.GateAdvice", "advice.gates.LayerAdvice",
    "gradients.lag_gradients.LagGradients", "diagnosis.settings.MeasureSettings", "diagnosis.cost.DiagnosisCost",
    "advice.plan.Plan",
    "advice.plan.Aggregation", "study.config.StudyConfig",
    "study.runner.run_study", "study.shards.diagnose_sharded", "study.train.Training",
    "advice.suggest.Suggestion", "transport.fidelity.Fidelity", "transport.first_order.EffectiveRates",
    "transport.rollout.Rollout", "diagnosis.window.Requirement", "diagnosis.window.Window", "diagnosis.window.WindowAt",
]  # fmt: skip


def public_objects() -> dict[str, Any]:
    """Every public object by the name users import it by."""
    objects = {f"lagreach.{name}": getattr(lagreach, name) for name in lagreach.__all__}
    for name in MODULES:
        module = import_module(f"lagreach.{name}")
        objects |= {f"lagreach.{name}.{short}": getattr(module, short) for short in _public_names(module)}
    for name in RECORDS:
        module, short = f"lagreach.{name}".rsplit(".", 1)
        objects[f"lagreach.{name}"] = getattr(import_module(module), short)
    return {name: value for name, value in sorted(objects.items()) if not isinstance(value, ModuleType)}


def _public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(inspect.getsource(module))
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [name for name in defined if not name.startswith("_")]


def api_lines() -> Iterator[str]:
    """One line a function, method or field; a class once, where it is first met, and by reference elsewhere."""
    described: dict[tuple[str, str], str] = {}
    for name, value in public_objects().items():
        home = (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        node = _definition(*home)
        if node is None:
            yield f"{name}: {type(value).__name__}"
        elif home in described:
            yield f"{name} = {described[home]}"
        else:
            described[home] = name
            yield from _lines_of(name, node)


def _definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Where a class or function is written; the source is the same under every type-checking hook."""
    if not module.startswith("lagreach"):
        return None
    tree = ast.parse(inspect.getsource(import_module(module)))
    wanted = (ast.ClassDef, ast.FunctionDef)
    return next((node for node in tree.body if isinstance(node, wanted) and node.name == name), None)


def _lines_of(name: str, node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield f"{name}{_signature(node)}"
        return
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"class {name}({bases})"
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            default = "" if part.value is None else f" = {ast.unparse(part.value)}"
            yield f"{name}.{ast.unparse(part.target)}: {ast.unparse(part.annotation)}{default}"
        elif isinstance(part, ast.Assign) and not ast.unparse(part.targets[0]).startswith("_"):
            yield f"{name}.{ast.unparse(part.targets[0])}"
        elif isinstance(part, ast.FunctionDef) and (part.name == "__init__" or not part.name.startswith("_")):
            kinds = [ast.unparse(mark).split(".")[-1] for mark in part.decorator_list]
            if "property" in kinds or "cached_property" in kinds:
                yield f"{name}.{part.name} -> {ast.unparse(part.returns)}"
            else:
                yield f"{name}.{part.name}{_signature(part)}"


def _signature(node: ast.FunctionDef) -> str:
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"({ast.unparse(node.args)}){returns}"


def command_lines() -> Iterator[str]:
    """One line a command and one an option."""
    import typer

    from lagreach.cli.main import app

    def walk(command: Any, name: str) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield f"$ {name}"
        for param in command.params:
            value = "required" if param.required else f"{param.default!r}"
            yield f"$ {name} {' '.join(sorted([*param.opts, *param.secondary_opts]))} = {value}"
        for short, child in sorted(getattr(command, "commands", {}).items()):
            yield from walk(child, f"{name} {short}")

    yield from walk(typer.main.get_command(app), "lagreach")


def as_text() -> str:
    """Everything, as it stands in the file."""
    return "\n".join([*api_lines(), "", *command_lines()]) + "\n"


if __name__ == "__main__":
    FROZEN.write_text(as_text())
