"""Which adapters there are, and the table of them in the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lagreach.adapters.delta_rule import REFUSED_ROW, DeltaLayer, refuse_other_delta_rules
from lagreach.adapters.linear_attention import GLALayer, HGRNLayer
from lagreach.adapters.lru import LRULayer, S5Layer
from lagreach.adapters.mamba import MambaLayer
from lagreach.adapters.mamba2 import Mamba2Layer
from lagreach.adapters.min_gru import MinGRULayer, MinLSTMLayer
from lagreach.adapters.mlstm import MLSTMLayer
from lagreach.adapters.rg_lru import RGLRULayer
from lagreach.adapters.rwkv import RWKVLayer
from lagreach.adapters.scan_layer import ScanLayer, registered
from lagreach.adapters.slstm import SLSTMLayer

FAMILIES: tuple[type[ScanLayer], ...] = (
    MambaLayer,
    Mamba2Layer,
    RGLRULayer,
    MinGRULayer,
    MinLSTMLayer,
    RWKVLayer,
    LRULayer,
    S5Layer,
    MLSTMLayer,
    SLSTMLayer,
    GLALayer,
    HGRNLayer,
    DeltaLayer,
)


def adapter_of(module: nn.Module) -> type[ScanLayer] | None:
    """Return the adapter that claims a module, those of the user first; refuse layers that none can stand for."""
    found = next((family for family in (*registered(), *FAMILIES) if family.claims(module)), None)
    if found is None:
        refuse_other_delta_rules(module)
    return found


def scan_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, type[ScanLayer]]]:
    """Gated linear layers in a model, with their adapters; what lies inside a layer belongs to it."""
    inside: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer in inside):
            continue
        found = adapter_of(module)
        if found is not None:
            inside.append(path)
            yield path, module, found


def table() -> str:
    """Return what is supported, as a Markdown table.

    >>> print(table().splitlines()[0])
    | layer | packages | decay, behind (seq, time) | tested with | limits |
    """
    rows = ["| layer | packages | decay, behind (seq, time) | tested with | limits |", "|---|---|---|---|---|"]
    for family in FAMILIES:
        shape = f"({', '.join(family.axes)})" + (", complex" if family.complex else "")
        rows.append(f"| {family.family} | {family.packages} | {shape} | {family.tested} | {family.limits} |")
    return "\n".join([*rows, f"| {' | '.join(REFUSED_ROW)} |"])
