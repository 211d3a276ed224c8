"""`advise`: what to change so that training recovers a lag, and what share to expect after it.

Every change that fits the model is made on a copy, and the copy is forecast. What is advised first is the change that costs
least among those that are expected to recover the lag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import nn

from lagreach._util.bounds import check_bounds, is_number
from lagreach._util.seeds import check_seed
from lagreach._util.spelling import TRAINS, refuse_spelling
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.advice.changes import (
    GATES,
    HALF,
    KINDS,
    NOTHING,
    ORTHOGONAL,
    RATE,
    SEQUENCES,
    STEPS,
    Change,
    is_supported,
    length_change,
    nothing,
    rate_change,
    rounded,
    steps_change,
)
from lagreach.advice.look import ALMOST, BETTER, LONGER, MOST_SEQUENCES, NEARLY, Look, expecting
from lagreach.data.pairs import check_enough
from lagreach.data.sequences import as_sequences
from lagreach.errors import InputError
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.limits import BLENDED, FEW_SEQUENCES, FEW_STEPS, UNSEEN
from lagreach.forecasting.result import Forecast
from lagreach.gradients.optimiser_geometry import optimiser_name
from lagreach.statistics.linear_share import Shares

NEAR = 0.5  # weights that can move by less than this on the way have hardly been trained
FAR = 2.0  # how far they should be able to move
FASTEST = {"Adam": 1e-2, "RMSprop": 1e-2, "SGD": 0.3}  # learning rates beyond which none is advised
DIRECTIONS = 64
A_GAIN = 0.05  # of the share, below which a change is not said to help


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
        to_do = "to do"
        if hopeless:
            gains = self.first.expected - (0.0 if math.isnan(self.share) else self.share) >= A_GAIN
            to_do = (
                "no change looked at is expected to recover half of it; what comes closest"
                if gains
                else "no change looked at is expected to help; the first of them"
            )
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


@refuse_spelling("optimizer", TRAINS)
@leaves_as_it_was
@torch.enable_grad()
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
        Kinds of changes that are open to you, or one of them; None for all, of which those that the advice study supports are
        given as advice.
    options
        Of `lagreach.forecast`, such as ``loss``, ``outputs``, ``call`` and ``budget``.

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
    wanted = KINDS if kinds is None else (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if unknown := sorted(set(wanted) - set(KINDS)):
        raise InputError("unknown kinds of change", got=", ".join(unknown), expected=", ".join(KINDS))
    if "lags" in options:
        raise InputError("advice is about one lag", got="lags=...", fix="pass lag=, and ask again for others")
    if not (lag is None or (isinstance(lag, Integral) and lag >= 0)):
        raise InputError("a lag is a number of steps", got=repr(lag), expected="0 or more, a whole number")
    if not (learned is None or (is_number(learned) and learned <= 1)):
        raise InputError("what was learned is a share", got=f"learned={learned!r}", expected="1 at most")
    if unknown := sorted(set(options) - set(signature(forecast).parameters)):
        raise InputError("unknown options", got=", ".join(unknown), expected="those of lagreach.forecast")
    check_bounds(sequences=sequences)
    check_seed(seed)
    source = as_sequences(data)
    check_enough(len(source))
    count = len(source) if sequences is None else int(sequences)
    look = Look(model, source, count, directions, seed, options, wanted)
    if lag is None:
        lag = look.most_in_need()
    if lag >= look.time:
        return Advice(lag, math.nan, "no target has an input that old", count, (length_change(look.time, lag),), None)
    base = look(model, lag)
    before = look.share(base, lag)
    expected = float(before.value[0, 0])
    failed = (learned is not None and learned < HALF) or not expected >= HALF
    moves = _moves(look.distance(base, lag, optimiser, steps), optimiser, steps, before)
    stalled = any(_is_stalled(change) for change in moves)  # a good forecast is of no use to weights that cannot move
    if not failed and not stalled:
        change = expecting(nothing(), before)
        return Advice(lag, expected, look.why(base, lag), count, (change,), look.within_budget(base))
    why = look.why(base, lag)
    if why not in (BLENDED, UNSEEN) and SEQUENCES in wanted and look.steps_bind(lag, optimiser, steps):
        wanted = tuple(kind for kind in wanted if kind != SEQUENCES)
        why = FEW_STEPS if why == FEW_SEQUENCES else why
    candidates = [change for change in moves if change.kind in wanted]
    if not stalled or not candidates:  # what lets weights move at all comes before anything else
        candidates += look.candidates(lag, base, wanted, all_of_them=expected >= HALF, supported=kinds is None)
    advised = [change for change in candidates if kinds is not None or is_supported(change.kind)]
    promising = [change for change in candidates if change.expected >= min(HALF, expected + BETTER)]
    facts = tuple(change for change in promising if kinds is None and not is_supported(change.kind))
    first = _ordered(advised, why, expected) or (_none_known(why),)
    return Advice(lag, expected, why, count, first, look.within_budget(base), facts)


def _none_known(why: str) -> Change:
    if why == FEW_SEQUENCES:
        said = f"Only more sequences would recover this lag, more than {MOST_SEQUENCES} times as many."
        return Change(NOTHING, said, "# collect more sequences, and look again")
    if why == FEW_STEPS:
        return Change(NOTHING, "Only more or larger steps would recover this lag.", "# train longer, and look again")
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


def _moves(distance: float | None, optimiser: Any, steps: int | None, before: Shares) -> list[Change]:
    """Larger or more steps, where weights cannot move far enough in those planned."""
    if distance is None or steps is None:
        return []
    rate, kind = float(optimiser.param_groups[0]["lr"]), optimiser_name(optimiser)
    if distance < NEAR:
        factor = max(2 * LONGER, rounded(FAR / max(distance, 1e-12)))
        why = f", since weights can move by {distance:.2g} at most as it is"
        if rate * factor <= FASTEST.get(kind, 0.0):
            return [expecting(rate_change(rate, factor, why), before)]
        return [expecting(steps_change(steps, factor, why), before)]
    return [expecting(steps_change(steps, LONGER, ""), before)]
