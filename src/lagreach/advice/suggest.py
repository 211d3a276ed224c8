"""`suggest`: how long should training sequences be, and how many steps back is backpropagation worth its cost?

Truncated backpropagation cuts sequences into chunks of k steps. Of the k steps of a chunk, k - l have the input l steps before
inside the same chunk. A lag's mean gradient falls to that share, the noise of the whole gradient stays about what it was, and
the number of sequences the lag needs grows accordingly:

    N_k(l) = N(l) * (s_T(l) / s_k(l))^kappa,    s_k(l) = (k - l) / k  for losses at every step,
                                                s_k(l) = 1 if k > l   for a loss at the end

with T the length of the sequences that N(l) was measured on. A chunk is long enough for a lag if N_k(l) is still within reach
and at least half of the signal is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lagreach._util.arrays import finite_or_none
from lagreach._util.bounds import check_bounds
from lagreach.data.lags import listed_lags
from lagreach.detection.law import exp, moved, reach
from lagreach.diagnosis.result import Diagnosis, check_diagnosis
from lagreach.diagnosis.window import band_of
from lagreach.errors import InputError
from lagreach.report.words import about, listed, share
from lagreach.types import Status

HALF = 2  # a chunk of twice the lag leaves half of its signal


@dataclass(frozen=True)
class Suggestion:
    """How far to backpropagate and how long sequences should be, and why.

    Attributes
    ----------
    truncation
        Steps of truncated backpropagation for the lags worth learning; None if nothing can be said.
    sequence_length
        Steps of a training sequence: enough for every lag at which these sequences would notice a dependency.
    lag
        The longest lag that the truncation is made for.
    needed, needed_truncated
        Sequences that this lag needs with whole sequences, and with the truncation.
    gain
        What is left of the loss gradient at that lag.
    reasons
        The reasoning, a sentence each.
    status
        OK, or what stands in the way.
    """

    truncation: int | None
    sequence_length: int | None
    lag: int | None
    needed: float
    needed_truncated: float
    gain: float
    sequences: float
    strength: float
    reasons: tuple[str, ...]
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite or unknown is None."""
        values = asdict(self) | {"status": self.status.name, "reasons": list(self.reasons)}
        return {k: finite_or_none(v) if isinstance(v, float) else v for k, v in values.items()}

    def __str__(self) -> str:
        head = "No length can be suggested."
        if self.truncation is not None:
            head = f"Backpropagate through {self.truncation} steps, in sequences of {self.sequence_length} steps."
        return "\n".join([head, *[f"- {reason}" for reason in self.reasons]])


def suggest(
    diagnosis: Diagnosis, lags: int | Iterable[int] | None = None, *, sequences: float | None = None
) -> Suggestion:
    """Suggest a truncation and a sequence length from the window and the exact gain of a diagnosis.

    Parameters
    ----------
    lags
        Lags that must be learnable, one or several. If None: every dependence found in the data, also those out of reach
        (gates can open the reach, but nothing brings back what a chunk cuts off); if there are none, every lag at which one
        would be noticed.
    sequences
        Number of sequences to plan for; as many as the diagnosis was made for if None.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(256, 40, 2)
    >>> y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    >>> model = lagreach.GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2)
    >>> suggestion = lagreach.suggest(lagreach.diagnose(model, (x, y)))
    >>> suggestion.lag, suggestion.truncation
    (3, 6)
    """
    check_diagnosis(diagnosis)
    check_bounds(sequences=sequences)
    count = float(diagnosis.sequences if sequences is None else sequences)
    if not count > 0:
        raise InputError("the number of sequences must be positive", got=count)
    asked = None if lags is None else listed_lags(lags if isinstance(lags, Iterable) else [lags])
    if asked is not None and not asked:
        raise InputError("there are no lags to suggest a length for", expected="one or more, or None")
    at, chunks = diagnosis.window(count), _Chunks(diagnosis)
    visible = {lag: n for lag in _examined(diagnosis) if (n := _planted(diagnosis, lag)) <= count}
    wanted, reasons = _wanted(diagnosis, asked, visible, count)
    if not wanted:
        reasons.append(
            f"With {count:,.0f} sequences nothing can be told at any lag, however long they are: more of them, or gates "
            "that retain longer, come first."
        )
        return Suggestion(None, None, None, math.nan, math.nan, math.nan, count, at.strength, tuple(reasons), at.status)
    lag = max(wanted)
    truncation = max(chunks.enough(one, needed, count) for one, needed in wanted.items())
    length = max([truncation, *(chunks.enough(one, needed, count) for one, needed in visible.items())])
    reasons += chunks.words(lag, wanted[lag], truncation)
    far = {one: n for one, n in wanted.items() if not n <= count}
    if far:
        reasons.append(f"No length brings these within reach of {count:,.0f} sequences: {_needs(far)}.")
    numbers = visible | wanted
    farthest = reach(np.array(list(numbers)), np.array(list(numbers.values())), count)
    reasons += _beyond(diagnosis, farthest, truncation, length, count)
    return Suggestion(
        truncation=truncation,
        sequence_length=length,
        lag=lag,
        needed=wanted[lag],
        needed_truncated=chunks.needed(lag, wanted[lag], truncation),
        gain=_gain(diagnosis, lag),
        sequences=count,
        strength=at.strength,
        reasons=tuple(reasons),
        status=Status.LIMIT_SAMPLE_SIZE if far else at.status if at.status is Status.WINDOW_CENSORED else Status.OK,
    )


class _Chunks:
    """What cutting sequences into chunks does to the number of sequences that a lag needs."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        last = _examined(diagnosis)[-1]
        self.time = int(diagnosis.settings.get("time", last + 1))  # files of older versions do not say
        self.at_end = float(diagnosis.settings.get("anchors", self.time)) < 2
        self.kappa = diagnosis.layers[0].window.concentration.exponent

    def share(self, lag: int, length: int) -> float:
        """Share of a lag's signal that chunks of this length keep."""
        return float(length > lag) if self.at_end else max(length - lag, 0) / length

    def needed(self, lag: int, needed: float, length: int) -> float:
        """Sequences that a lag needs in chunks of this length."""
        kept = self.share(lag, length)
        if kept <= 0 or needed <= 0:
            return math.inf if kept <= 0 else needed
        return float(exp(moved(math.log(needed), self.kappa, math.log(self.share(lag, self.time) / kept))))

    def enough(self, lag: int, needed: float, sequences: float) -> int:
        """Shortest chunk that keeps half of a lag's signal and, if whole sequences do, keeps it within reach."""
        half = min(self.time, lag + 1 if self.at_end else max(HALF * lag, 1))
        if not needed <= sequences:
            return half
        lengths = range(half, self.time + 1)
        return next((k for k in lengths if self.needed(lag, needed, k) <= sequences), self.time)

    def words(self, lag: int, needed: float, truncation: int) -> list[str]:
        """Why this many steps."""
        if not math.isfinite(needed):
            return []
        whole = f"Lag {lag} needs about {about(needed)} sequences of {self.time} steps"
        if self.at_end:
            return [f"{whole}. The loss looks at the end of a sequence, so {lag + 1} steps back hold all of this lag."]
        return [
            f"{whole}. Of a chunk of {truncation} steps, {self.share(lag, truncation):.0%} have that input in the same chunk; "
            f"so it needs about {about(self.needed(lag, needed, truncation))}."
        ]


def _wanted(
    diagnosis: Diagnosis, asked: list[int] | None, visible: Mapping[int, float], count: float
) -> tuple[dict[int, float], list[str]]:
    """Lags that the truncation is made for, with the sequences they need; and why these."""
    if asked is not None:
        return {lag: _planted(diagnosis, lag) for lag in asked}, [f"It is made for {listed(asked)}, as asked."]
    dependences: dict[int, float] = {}
    for one in diagnosis.layers:
        for lag in one.window.dependences:
            dependences[lag] = min(one.window.required.at(lag)["sequences"], dependences.get(lag, math.inf))
    within = [lag for lag, n in dependences.items() if n <= count]
    far = {lag: n for lag, n in dependences.items() if not n <= count}
    reasons = []
    if within:
        reasons.append(f"The data depend on {listed(sorted(within))}, and {count:,.0f} sequences can tell.")
    if far:
        reasons.append(
            f"The data also depend on {listed(sorted(far))}, out of reach of {count:,.0f} sequences as the gates are: the "
            "length holds them all the same, since gates can open the reach and a cut cannot."
        )
    if not dependences and visible:
        strength = share(diagnosis.layers[0].window.strength)
        reasons.append(
            f"No dependence within reach was found in the data, so it is made for all lags at which one explaining "
            f"{strength} of the target would be noticed."
        )
    return dependences or dict(visible), reasons


def _beyond(diagnosis: Diagnosis, farthest: int | None, truncation: int, length: int, count: float) -> list[str]:
    """What longer chunks would bring."""
    last = _examined(diagnosis)[-1]
    sentences = []
    if truncation <= last:
        left = _gain(diagnosis, truncation)
        sentences.append(f"After {truncation} steps back, {left:.2g} of the loss gradient is left.")
    if length > truncation:
        sentences.append(
            f"Sequences of {length} steps hold every lag, up to {farthest}, that {count:,.0f} of them can tell."
        )
    if farthest == last:
        sentences.append(
            f"The window reaches lag {farthest}, the longest examined: "
            "diagnose longer sequences to see whether more is to be had."
        )
    elif farthest is not None:
        sentences.append(f"Beyond lag {farthest}, {count:,.0f} sequences could not tell even if something were there.")
    if any(one.local for one in diagnosis.layers):
        sentences.append("Lags are steps within a layer: what several layers carry together may reach farther.")
    return sentences


def _needs(lags: Mapping[int, float]) -> str:
    return ", ".join(f"lag {lag} about {about(needed)}" for lag, needed in sorted(lags.items()))


def _examined(diagnosis: Diagnosis) -> list[int]:
    return sorted({int(lag) for one in diagnosis.layers for lag in one.window.lags})


def _planted(diagnosis: Diagnosis, lag: int) -> float:
    """Sequences that a dependency at a lag would need, in the layer that sees it best."""
    needed = []
    for one in diagnosis.layers:
        planted = one.window.required_if_present()
        if (place := band_of(planted, lag)) is not None:
            needed.append(float(planted.sequences[place]))
    if not needed:
        raise InputError("this lag was not examined", got=lag, expected=f"one of {_examined(diagnosis)}")
    return min((n for n in needed if not math.isnan(n)), default=math.nan)


def _gain(diagnosis: Diagnosis, lag: int) -> float:
    """Exact gain at a lag (at the far edge of its band), of the layer that keeps most."""
    values = []
    for one in diagnosis.layers:
        edges = [i for i, last in enumerate(one.fidelity.lags.tolist()) if last >= lag]
        values += [float(one.fidelity.exact[edges[0]])] if edges else []
    return max(values, default=math.nan)
