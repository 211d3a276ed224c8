"""Which adapters there are, and the table of them in the documentation."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from torch import nn

from lagreach.adapters import layers
from lagreach.adapters.layers.delta_rule import REFUSED_ROW, refuse_other_delta_rules
from lagreach.adapters.scan_layer import ScanLayer, registered


@cache
def families() -> tuple[type[ScanLayer], ...]:
    """Every adapter in `lagreach.adapters.layers`, found by looking: a new file there is a new family."""
    modules = [
        importlib.import_module(f"{layers.__name__}.{info.name}") for info in pkgutil.iter_modules(layers.__path__)
    ]
    written = [value for module in modules for value in vars(module).values() if _is_adapter(value, module.__name__)]
    return tuple(sorted(written, key=lambda family: family.family.lower()))


def _is_adapter(value: object, module: str) -> bool:
    """Whether a module defines this adapter; one without a name of its own is a base of others."""
    return (
        isinstance(value, type)
        and issubclass(value, ScanLayer)
        and value.__module__ == module
        and "family" in vars(value)
    )


def adapter_of(module: nn.Module) -> type[ScanLayer] | None:
    """Return the adapter that claims a module, those of the user first; refuse layers that none can stand for."""
    adapter = next((family for family in (*registered(), *families()) if family.claims(module)), None)
    if adapter is None:
        refuse_other_delta_rules(module)
    return adapter


def scan_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, type[ScanLayer]]]:
    """Gated linear layers in a model, with their adapters; what lies inside a layer belongs to it."""
    inside: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer in inside):
            continue
        adapter = adapter_of(module)
        if adapter is not None:
            inside.append(path)
            yield path, module, adapter


def table() -> str:
    """Return what is supported, as a Markdown table.

    >>> print(table().splitlines()[0])
    | layer | packages | decay, behind (seq, time) | tested with | limits |
    """
    rows = ["| layer | packages | decay, behind (seq, time) | tested with | limits |", "|---|---|---|---|---|"]
    for family in families():
        shape = f"({', '.join(family.axes)})" + (", complex" if family.complex else "")
        rows.append(f"| {family.family} | {family.packages} | {shape} | {family.tested} | {family.limits} |")
    return "\n".join([*rows, f"| {' | '.join(REFUSED_ROW)} |"])
