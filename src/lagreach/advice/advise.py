"""`advise`: what to change so that training recovers a lag, and what share to expect after it.

Every change that fits the model is made on a copy, and the copy is forecast. What is advised first is the change that costs
least among those that are expected to recover the lag.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from torch import nn

from lagreach.advice.changes import (
    CELL,
    GATES,
    HALF,
    KINDS,
    NOTHING,
    ORTHOGONAL,
    RATE,
    SEQUENCES,
    STEPS,
    UNITS,
    Change,
    cell_change,
    gates_change,
    is_supported,
    length_change,
    nothing,
    orthogonal_change,
    rate_change,
    rounded,
    sequences_change,
    steps_change,
    units_change,
)
from lagreach.advice.gates import spread_biases
from lagreach.advice.starts import alike, is_orthogonal, orthogonal_weights, recurrent_layers
from lagreach.data.pairs import check_enough
from lagreach.data.sequences import as_sequences
from lagreach.data.targets import check_time_axis
from lagreach.errors import InputError
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.limits import FEW_SEQUENCES, UNSEEN
from lagreach.forecasting.result import Forecast
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics.linear_share import Shares

NEARLY = 0.75  # of the largest expected share: from there on, what costs less comes first
ALMOST = 0.97  # the same, where the forecast had promised the lag and training failed
BETTER = 0.1  # more sequences should add so much
MORE_UNITS = 4
MOST_UNITS = 256
LONGER = 5
MOST_SEQUENCES = 100  # times as many sequences are still worth advising,
FEW = (500, 1_000, 2_000, 5_000)  # and these in any case
NEAR = 0.5  # weights that can move by less than this on the way have hardly been trained
FAR = 2.0  # how far they should be able to move
FASTEST = {"Adam": 1e-2, "RMSprop": 1e-2, "SGD": 0.3}  # learning rates beyond which none is advised
DIRECTIONS = 64


@dataclass(frozen=True)
class Advice:
    """What to do about one lag.

    `changes` begins with the one to make; the others follow by the share expected after them. `facts` are changes that promise
    something too, but of a kind that the advice study does not support. `share` is expected as things are, and `why` is what
    stands in the way (see `lagreach.forecast`). Print it for people.
    """

    lag: int
    share: float
    why: str
    sequences: int
    changes: tuple[Change, ...]
    forecast: Forecast | None
    facts: tuple[Change, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the forecast that it rests on has to say about itself."""
        return () if self.forecast is None else self.forecast.warnings

    @property
    def first(self) -> Change:
        """The change to make."""
        return self.changes[0]

    def apply(self, model: nn.Module) -> None:
        """Write the first change into a model, where it is one of its weights."""
        self.first.apply(model)

    def __str__(self) -> str:
        share = "unknown" if math.isnan(self.share) else f"{self.share:.0%}"
        hopeless = self.first.kind != NOTHING and self.first.expected < HALF
        to_do = "no change looked at is expected to recover half of it; what comes closest" if hopeless else "to do"
        lines = [
            f"Lag {self.lag}, {self.sequences:,} sequences: expected share {share} ({self.why})",
            f"{to_do}: {self.first}",
        ]
        others = [change for change in self.changes[1:] if change.expected >= HALF]
        lines += [f"or: {change}" for change in others[:2]]
        lines += [
            f"also expected to help, but no better than a random change in the study: {change}"
            for change in self.facts[:1]
        ]
        lines += [f"! {warning}" for warning in self.warnings]
        return "\n".join(lines)


def advise(
    model: nn.Module,
    data: Any,
    lag: int | None = None,
    *,
    sequences: int | None = None,
    optimiser: Any = None,
    steps: int | None = None,
    learned: float | None = None,
    kinds: Iterable[str] | None = None,
    directions: int | None = DIRECTIONS,
    seed: int = 0,
    **options: Any,
) -> Advice:
    """Say what to change so that training recovers a lag, as code, and what share to expect after it.

    Parameters
    ----------
    model
        The model as it would be trained: at its start.
    data
        Held-out data, as for `lagreach.forecast`.
    lag
        The lag that matters; None takes, of the lags that the data depend on, the longest that would not be recovered.
    sequences
        How many there are to train on; as many as in `data` if None.
    optimiser, steps
        The model's optimiser of `torch.optim` and the length of the training, for advice about these.
    learned
        Share of the lag that a training of this model recovered, if there was one. Where the forecast says that nothing stands
        in the way, and this says that something did, what promises most is advised.
    kinds
        Kinds of changes that are open to you; None for all, of which those that the advice study supports are given as advice.
    options
        Of `lagreach.forecast`, such as ``loss`` and ``call``.

    Examples
    --------
    >>> import torch, lagreach
    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(200, 40, 2, generator=g)
    >>> x[..., 1], x[:, 9, 1], y = 0, 1, x[:, 9, :1]  # one reading is flagged, and asked for 30 steps later
    >>> model = lagreach.GatedRNN("lstm", 2, 16, 1, generator=g)
    >>> advice = lagreach.advise(model, (x, y), lag=30, sequences=1000, target_steps="last")
    >>> advice.first.kind, advice.share < 0.5 < advice.first.expected
    ('gates', True)
    """
    wanted = KINDS if kinds is None else tuple(kinds)
    if unknown := sorted(set(wanted) - set(KINDS)):
        raise InputError("unknown kinds of change", got=", ".join(unknown), expected=", ".join(KINDS))
    if "lags" in options:
        raise InputError("advice is about one lag", got="lags=...", fix="pass lag=, and ask again for others")
    if not (lag is None or (isinstance(lag, Integral) and lag >= 0)):
        raise InputError("a lag is a number of steps", got=repr(lag), expected="0 or more, a whole number")
    if not (learned is None or learned <= 1):
        raise InputError("what was learned is a share", got=f"learned={learned}", expected="1 at most")
    source = as_sequences(data)
    check_enough(len(source))
    count = len(source) if sequences is None else int(sequences)
    look = _Look(model, source, count, directions, seed, options)
    time = look.time
    if lag is None:
        lag = look.most_in_need()
    if lag >= time:
        return Advice(lag, math.nan, "no target has an input that old", count, (length_change(time, lag),), None)
    base = look(model, lag)
    before = look.share(base, lag)
    expected = float(before.value[0, 0])
    failed = (learned is not None and learned < HALF) or not expected >= HALF
    moves = _moves(look.distance(lag, optimiser, steps), optimiser, steps, before)
    stalled = any(_is_stalled(change) for change in moves)  # a good forecast is of no use to weights that cannot move
    if not failed and not stalled:
        change = _expecting(nothing(), before)
        return Advice(lag, expected, look.why(base, lag), count, (change,), base)
    why = look.why(base, lag)
    candidates = [change for change in moves if change.kind in wanted]
    if not stalled or not candidates:  # what lets weights move at all comes before anything else
        candidates += look.candidates(lag, base, wanted, all_of_them=expected >= HALF, supported=kinds is None)
    advised = [change for change in candidates if kinds is not None or is_supported(change.kind)]
    promising = [change for change in candidates if change.expected >= min(HALF, expected + BETTER)]
    facts = tuple(change for change in promising if kinds is None and not is_supported(change.kind))
    return Advice(lag, expected, why, count, _ordered(advised, why, expected) or (_none_known(why),), base, facts)


def _none_known(why: str) -> Change:
    if why == FEW_SEQUENCES:
        said = f"Only more sequences would recover this lag, more than {MOST_SEQUENCES} times as many."
        return Change(NOTHING, said, "# collect more sequences, and look again")
    return Change(NOTHING, "No change is known that would recover this lag.", "# train, and look again")


def _ordered(candidates: list[Change], why: str, expected: float) -> tuple[Change, ...]:
    """The change to make first, then the others by what is expected after them.

    First comes what lets weights move at all; then, of the changes that are expected to recover the lag, what costs least.
    Where a forecast that is good already has failed once, what promises most comes first. Where no forecast promises anything
    (it looks at linear dependences), an input that does not arrive is let through.
    """
    if not candidates:
        return ()
    by_share = sorted(candidates, key=lambda change: -np.nan_to_num(change.expected, nan=-1.0))
    by_cost = sorted(candidates, key=lambda change: KINDS.index(change.kind))
    nearly = ALMOST if expected >= HALF else NEARLY
    stalled = [change for change in candidates if _is_stalled(change)]
    enough = [change for change in by_cost if change.expected >= max(HALF, nearly * by_share[0].expected)]
    opening = [change for change in by_cost if why == UNSEEN and change.kind in (GATES, ORTHOGONAL)]
    first = next(iter([*stalled, *enough, *opening, *by_share]))
    return (first, *(change for change in by_share if change is not first))


def _is_stalled(change: Change) -> bool:
    """Whether it is the change for weights that could hardly move."""
    return change.factor > LONGER and change.kind in (RATE, STEPS)


def _expecting(change: Change, shares: Shares) -> Change:
    low, value, high = (float(part[0, 0]) for part in (shares.low, shares.value, shares.high))
    return replace(change, expected=value, low=low, high=high)


def _moves(distance: float | None, optimiser: Any, steps: int | None, before: Shares) -> list[Change]:
    """Larger or more steps, where weights cannot move far enough in those planned."""
    if distance is None or steps is None:
        return []
    rate, kind = float(optimiser.param_groups[0]["lr"]), optimiser_name(optimiser)
    if distance < NEAR:
        factor = max(2 * LONGER, rounded(FAR / max(distance, 1e-12)))
        why = f", since weights can move by {distance:.2g} at most as it is"
        if rate * factor <= FASTEST.get(kind, 0.0):
            return [_expecting(rate_change(rate, factor, why), before)]
        return [_expecting(steps_change(steps, factor, why), before)]
    return [_expecting(steps_change(steps, LONGER, ""), before)]


class _Look:
    """Forecasts of one model and its changed copies on the same data."""

    def __init__(
        self, model: nn.Module, source: Any, sequences: int, directions: int | None, seed: int, options: dict[str, Any]
    ) -> None:
        self.model, self.source, self.sequences, self.seed = model, source, sequences, seed
        self.options = {"directions": directions, "seed": seed, **options}
        batch = source.read([0, 1])
        check_time_axis(batch)
        self.time, self.inputs = batch.x.shape[1], batch.x.shape[-1] if batch.x.is_floating_point() else 0
        self.outputs = batch.y.shape[-1] if batch.y.is_floating_point() else 0

    def __call__(self, model: nn.Module, lag: int) -> Forecast:
        return forecast(model, self.source, (self.sequences,), [lag], **self.options)

    def distance(self, lag: int, optimiser: Any, steps: int | None) -> float | None:
        """How far the weights can move in these steps; None where they are not known."""
        if optimiser is None or steps is None:
            return None
        options = {**self.options, "directions": 1, "optimiser": optimiser, "steps": steps}
        return float(forecast(self.model, self.source, (self.sequences,), [lag], **options).settings["farthest"])

    def most_in_need(self) -> int:
        """The longest lag in the data that is not expected to be recovered, or else the longest in the data."""
        made = forecast(self.model, self.source, (self.sequences,), "auto", **self.options)
        share = made.in_data.values[:, 0]
        there = [(lag, value) for lag, value in zip(made.lags, share, strict=True) if not math.isnan(value)]
        if not there:
            raise InputError(
                "no lag was found that the targets depend on, so there is none to advise about",
                got=f"{len(self.source)} sequences",
                fix="name the lag that matters: lag=",
            )
        return max([lag for lag, value in there if value < HALF] or [lag for lag, _ in there])

    def share(self, made: Forecast, lag: int, sequences: float | None = None) -> Shares:
        """Share expected without regard to the steps: of the dependence in the data, or of a planted one."""
        free = replace(made, within=None)
        numbers = np.array([float(self.sequences if sequences is None else sequences)])
        in_data = free.curves(numbers, in_data=True)
        return free.curves(numbers, in_data=False) if np.isnan(in_data.value).all() else in_data

    def why(self, made: Forecast, lag: int) -> str:
        """What stands in the way."""
        free = replace(made, within=None, available=self.sequences)
        word = str(free.limits.values[0])
        return word if word != "none found" else str(free.limits_if_present.values[0])

    def candidates(
        self, lag: int, base: Forecast, wanted: tuple[str, ...], *, all_of_them: bool, supported: bool
    ) -> list[Change]:
        """Changes that fit the model, from what costs least, each with the forecast after it.

        Unless all are asked for, it ends with the first one good enough that nothing dearer would come before it.
        """
        candidates: list[Change] = []
        for change, build in self._possible(lag):
            if change.kind in wanted:
                made = forecast(build(), self.source, (self.sequences,), [lag], **self._options_for(change))
                candidates.append(_expecting(change, self.share(made, lag)))
                enough = candidates[-1].expected >= NEARLY and (is_supported(change.kind) or not supported)
                if enough and not all_of_them:
                    return candidates
        if SEQUENCES in wanted:
            candidates += self._more_sequences(base, lag)
        return candidates

    def _more_sequences(self, base: Forecast, lag: int) -> list[Change]:
        """As many as the forecast names; where it had promised the lag and training failed, it saw too little noise."""
        now = float(self.share(base, lag).value[0, 0])
        factors = [n for n in (2, 5, 10, 20, 50, MOST_SEQUENCES) if now < HALF or n >= LONGER]
        numbers = [n * self.sequences for n in factors]
        numbers += [n for n in FEW if n > numbers[-1]]
        shares = {number: self.share(base, lag, number) for number in numbers}
        values = {number: float(share.value[0, 0]) for number, share in shares.items()}
        goal = min(max(HALF, now) + BETTER, NEARLY, max(HALF, ALMOST * max(values.values())))
        at = next((number for number, value in values.items() if value >= goal), None)
        return [] if at is None else [_expecting(sequences_change(self.sequences, at), shares[at])]

    def _options_for(self, change: Change) -> dict[str, Any]:
        like = change.kind in (UNITS, CELL)  # such a network is called as model(x)
        return {name: value for name, value in self.options.items() if not (like and name == "call")}

    def _possible(self, lag: int) -> list[tuple[Change, Callable[[], nn.Module]]]:
        """Changes of the network, and how to make a network of each."""
        possible: list[tuple[Change, Callable[[], nn.Module]]] = []
        biases = spread_biases(self.model, lag) if lag > 0 else {}
        if biases:
            change = gates_change(self.model, biases, lag)
            possible.append((change, partial(_written, self.model, change)))
        recurrent = orthogonal_weights(self.model, self.seed)
        if recurrent and not is_orthogonal(self.model, recurrent):
            change = orthogonal_change(self.model, recurrent)
            possible.append((change, partial(_written, self.model, change)))
        layers = recurrent_layers(self.model)
        like = partial(alike, self.model, self.inputs, self.outputs, seed=self.seed)
        now = like() if len(layers) == 1 else None
        if now is None:
            return possible
        units = now.hidden_size
        # a state that is asked at every step for an input of l steps ago holds all those in between
        wanted = max(MORE_UNITS * units, 2 ** math.ceil(math.log2(max(2 * lag, 1))))
        factor = min(wanted, MOST_UNITS) // units
        if factor > 1:
            possible.append((units_change(self.model, factor), partial(_built, like, units=units * factor)))
        for cell in ("lstm", "elman") if lag > 0 else ():
            if cell == now.cell.name:
                continue
            possible.append((cell_change(self.model, cell, lag), partial(_built, like, cell=cell, lag=lag)))
            if factor > 1 and units < 2 * lag:
                larger = partial(_built, like, cell=cell, lag=lag, units=units * factor)
                possible.append((cell_change(self.model, cell, lag, factor), larger))
        return possible


def _written(model: nn.Module, change: Change) -> nn.Module:
    other = copy.deepcopy(model)
    change.apply(other)
    return other


def _built(like: Callable[..., GatedRNN | None], **how: Any) -> nn.Module:
    other = like(**how)
    assert other is not None  # it had a like before
    return other
