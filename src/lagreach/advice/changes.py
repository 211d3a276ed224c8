"""`Change`: one thing to do about a lag, as a sentence, as code for the model at hand, and as values to write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.advice.as_code import place, rebuilt
from lagreach.advice.starts import recurrent_layers, write
from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN

GATES, ORTHOGONAL, UNITS, CELL = "gates", "orthogonal", "units", "cell"
SEQUENCES, STEPS, RATE, LENGTH, NOTHING = "sequences", "steps", "rate", "length", "nothing"
HALF = 0.5  # a share from which a lag counts as recovered
KINDS = (GATES, ORTHOGONAL, RATE, STEPS, LENGTH, UNITS, CELL, SEQUENCES, NOTHING)  # from what costs least


@cache
def evidence() -> dict[str, dict[str, Any]]:
    """What the advice study found for each kind; `supported` is one that did better than a random change."""
    text = files("lagreach.advice").joinpath("evidence.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def is_supported(kind: str) -> bool:
    """Whether a kind of change is given as advice; else it is said as a fact."""
    return kind == NOTHING or bool(evidence().get(kind, {}).get("supported"))


@dataclass(frozen=True)
class Change:
    """One change, and the share of the lag that is expected after it.

    Attributes
    ----------
    kind
        One of KINDS.
    says
        The change in a sentence.
    code
        The same for the model at hand: Python that runs as it stands.
    expected
        Share of the lag that training will recover after it: the forecast of the changed network. NaN where that cannot be
        told from the data and the model given.
    low, high
        Its interval.
    factor
        What a number (units, sequences, steps, rate, length) is multiplied by; 1 where none is.
    weights
        Values to write into the model, by parameter name.
    cell
        Name of the other cell.
    """

    kind: str
    says: str
    code: str
    expected: float = math.nan
    low: float = math.nan
    high: float = math.nan
    factor: float = 1.0
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    cell: str | None = None

    def apply(self, model: nn.Module) -> None:
        """Write the values into a model, which should be trained from there; only for changes of the start."""
        if not self.weights:
            raise InputError(
                "this change is none of the weights",
                got=f"kind {self.kind!r}",
                expected="gates or orthogonal",
                fix=f"make it yourself: {self.code}",
            )
        write(model, dict(self.weights))

    @property
    def record(self) -> str:
        """In how many cases of the advice study this kind of change recovered a lag that had been missed; empty if none."""
        numbers = evidence().get(self.kind)
        if numbers is None or (self.kind == NOTHING and not self.expected >= HALF):
            return ""
        worked, of, promised, which = numbers["worked"], numbers["of"], numbers["promised"], ""
        if self.expected >= HALF and promised["of"]:
            worked, of, which = promised["worked"], promised["of"], " in which half or more was expected"
        elif self.expected < HALF:
            worked, of, which = (
                worked - promised["worked"],
                of - promised["of"],
                " in which less than half was expected",
            )
        return f"worked in {worked} of {of} cases of the advice study{which}" if of else ""

    def __str__(self) -> str:
        share = (
            ""
            if math.isnan(self.expected)
            else f" Expected share: {self.expected:.0%} ({self.low:.0%} to {self.high:.0%})."
        )
        record = f" It {self.record}." if self.record else ""
        return f"{self.says}{share}{record}\n    {self.code}"


def gates_change(model: nn.Module, values: dict[str, Tensor], lag: int) -> Change:
    """Spread half-lives from one step to twice the lag."""
    return Change(
        GATES,
        f"Open the gates: spread what units retain from 1 to {2 * lag} steps before training{_rows(model, values)}.",
        f"lagreach.advise_gates(model, x, lag={lag}).apply(model)" + _by_argument(model, lag),
        weights=values,
    )


def _by_argument(model: nn.Module, lag: int) -> str:
    kinds = {type(layer) for _, layer in recurrent_layers(model)}
    return f"   # about the same as GatedRNN(..., chrono={2 * lag})" if kinds == {GatedRNN} else ""


def _rows(model: nn.Module, values: Mapping[str, Tensor]) -> str:
    """Which entries of which biases, for torch's own layers; of a stack the first, and that the others get the same."""
    for path, layer in recurrent_layers(model):
        if isinstance(layer, (nn.LSTM, nn.GRU)):
            hidden, where = layer.hidden_size, f"{path}." if path else ""
            gate = "forget gate" if isinstance(layer, nn.LSTM) else "update gate"
            words = f" ({gate}: {where}bias_ih_l0[{hidden}:{2 * hidden}], from 0 to about "
            opposite = f"; {where}bias_ih_l0[:{hidden}] gets the opposite sign" if isinstance(layer, nn.LSTM) else ""
            others = [name for name in values if "bias_ih" in name][1:]
            stack = f"; the same in {', '.join(others)}" if others else ""
            return words + f"log(half-life / 0.69); bias_hh_l0[{hidden}:{2 * hidden}] to 0{opposite}{stack})"
    return ""


def orthogonal_change(model: nn.Module, values: dict[str, Tensor]) -> Change:
    """Let recurrent weights of a plain network start orthogonal."""
    built = [path for path, layer in recurrent_layers(model) if isinstance(layer, GatedRNN)]
    code = (
        rebuilt(model, built[0], recurrent_init="orthogonal")
        if built
        else [f"torch.nn.init.orthogonal_(model.{name})" for name in values]
    )
    return Change(
        ORTHOGONAL,
        "Start the recurrent weights orthogonal: a plain network has no gates to open, and this start carries old inputs "
        "without loss.",
        lines(code),
        weights=values,
    )


def units_change(model: nn.Module, factor: int) -> Change:
    """More units."""
    path, layer = recurrent_layers(model)[0]
    hidden = int(layer.hidden_size)  # type: ignore[arg-type]
    return Change(
        UNITS,
        f"More units: {factor * hidden} instead of {hidden}, so that the state can tell this lag from its neighbours.",
        lines(rebuilt(model, path, units=factor * hidden)),
        factor=float(factor),
    )


def cell_change(model: nn.Module, cell: str, lag: int, factor: int = 1) -> Change:
    """Another cell, started for the lag, perhaps with more units as well."""
    path, layer = recurrent_layers(model)[0]
    units = factor * int(layer.hidden_size)  # type: ignore[arg-type]
    code = rebuilt(model, path, cell=cell, units=units if factor > 1 else None)
    if cell == "lstm":
        code.append(f"lagreach.advise_gates(model, x, lag={lag}).apply(model)")
    elif isinstance(layer, nn.RNNBase):  # a GatedRNN starts orthogonal
        where = place(model, path)
        code += [f"torch.nn.init.orthogonal_({where}.weight_hh_l{k})" for k in range(layer.num_layers)]
    what = ("a plain tanh network" if cell == "elman" else "an LSTM") + (f" of {units} units" if factor > 1 else "")
    return Change(
        CELL,
        f"Another cell: {what} in the place of this one.",
        lines(code),
        factor=float(factor),
        cell=cell,
    )


def sequences_change(have: int, needed: float) -> Change:
    """More sequences."""
    wanted = int(float(f"{needed:.1g}")) if needed >= 1 else 1
    wanted = max(wanted, 2 * have)
    return Change(
        SEQUENCES,
        f"More sequences: about {wanted:,} instead of {have:,}.",
        f"sequences = {wanted}   # to train on",
        factor=wanted / have,
    )


def steps_change(steps: int, factor: int, why: str) -> Change:
    """Longer training."""
    return Change(
        STEPS,
        f"Train longer: {steps * factor:,} steps instead of {steps:,}{why}.",
        f"steps = {steps * factor}",
        factor=float(factor),
    )


def rate_change(rate: float, factor: int, why: str) -> Change:
    """A larger learning rate."""
    new = rate * factor
    return Change(
        RATE, f"A larger learning rate: {new:g} instead of {rate:g}{why}.",
        f"for group in optimiser.param_groups: group['lr'] = {new:g}", factor=float(factor),
    )  # fmt: skip


def length_change(time: int, lag: int) -> Change:
    """Longer pieces."""
    wanted = 2 * (lag + 1)
    return Change(
        LENGTH,
        f"Longer sequences: {wanted} steps instead of {time}; in pieces of {time} steps no target has an input of {lag} steps "
        "ago.",
        f"length = {wanted}   # steps, at least, that sequences are cut and backpropagation is truncated at",
        factor=wanted / time,
    )


def nothing() -> Change:
    """Nothing to do."""
    return Change(NOTHING, "Nothing to do: training is expected to recover this lag as things are.", "# train")


def lines(code: list[str]) -> str:
    """Lines of code under a sentence, indented."""
    return "\n    ".join(code)


def rounded(factor: float) -> int:
    """A factor as people choose them: 2, 5, 10, 20, 50, 100, ...

    >>> [rounded(f) for f in (1.2, 3.0, 22.0, 83.0, 55.0)]
    [2, 2, 20, 100, 50]
    """
    options = [base * 10**power for power in range(4) for base in (1, 2, 5)][1:]
    return min(options, key=lambda option: abs(math.log(option / factor)))


def tensor_change(values: Mapping[str, Tensor], model: nn.Module) -> Tensor:
    """What values would change in a model's weights, as one vector."""
    held = dict(model.named_parameters(remove_duplicate=False))
    return torch.cat([(value.to(held[name]) - held[name].detach()).flatten() for name, value in values.items()])
