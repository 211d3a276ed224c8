"""The learnability window: how many sequences each lag needs, and how far back N sequences reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from lagreach._util.bounds import check_bounds, is_number
from lagreach.data.shared_inputs import tells_shared_columns
from lagreach.detection.law import exp, moved, reach, strength_shift
from lagreach.errors import InputError
from lagreach.statistics import LagCurve
from lagreach.statistics.memory import Memory
from lagreach.statistics.reliance import Reliance
from lagreach.tails.concentration import Concentration
from lagreach.types import Status

DEFINITION = (
    "N(l) is the number of independent sequences at which a one-sided test at level {error:g} on their average gradient, "
    "along lag l's own mean direction, detects lag l's contribution with power {power:g}. The direction and the rest of the "
    "mean gradient are taken as known: it describes what this checkpoint can see, not a guarantee of learning."
)
NEAR_BOUND = 0.8  # share of the memory bound in use from which capacity may bind
LITTLE_MEMORY = 0.2  # of an input's variance
WORTH_CALLING_LEARNED = 0.02  # rise of the loss; a random readout may lean the right way by less
LEARNED = 0.5  # share of a lag from which it counts as learned


@dataclass(frozen=True)
class Requirement:
    """Sequences needed per lag, with everything that says how far to trust them.

    Arrays run over `lags` (the far edge of each band; `first` is its near edge). `sequences` is inf where nothing was found;
    then `low` is a lower bound on what would be needed and `high` is inf. `pessimistic` uses the slow end of kappa, `robust`
    clipped instead of mean aggregation. `status` says for each lag why.
    """

    lags: np.ndarray
    first: np.ndarray
    sequences: Float[np.ndarray, "lag"]
    low: Float[np.ndarray, "lag"]
    high: Float[np.ndarray, "lag"]
    pessimistic: Float[np.ndarray, "lag"]
    robust: Float[np.ndarray, "lag"]
    status: tuple[Status, ...]

    def index(self, lag: int) -> int:
        """Position of the band that holds a lag."""
        place = band_of(self, lag)
        if place is None:
            raise InputError("this lag was not examined", got=lag, expected=f"one of {self.lags.tolist()}")
        return place

    def at(self, lag: int) -> dict[str, Any]:
        """Everything about the band that holds one lag."""
        i = self.index(lag)
        names = ("sequences", "low", "high", "pessimistic", "robust")
        band = {"first": int(self.first[i]), "lag": int(self.lags[i]), "status": self.status[i]}
        return band | {name: float(getattr(self, name)[i]) for name in names}


def band_of(needed: Requirement, lag: int) -> int | None:
    """Position of the band that holds a lag, if one does."""
    inside = np.flatnonzero((needed.first <= lag) & (lag <= needed.lags))
    return int(inside[0]) if len(inside) else None


@dataclass(frozen=True)
class WindowAt:
    """What N sequences can see.

    `lag` is H_N, the largest lag at which a dependency of the given strength would be noticed (None if there is none);
    `interval` is H_N at the two ends of the intervals of N(l); `detectable` lists the lags found in the data for which N
    sequences are enough.
    """

    sequences: float
    strength: float
    lag: int | None
    interval: tuple[int | None, int | None]
    detectable: tuple[int, ...]
    status: Status

    def __str__(self) -> str:
        reach = "no lag" if self.lag is None else f"lag {self.lag}"
        ends = " to ".join("none" if end is None else str(end) for end in self.interval)
        lags = ", ".join(map(str, self.detectable)) or "none"
        return (
            f"With {self.sequences:,.0f} sequences a dependency explaining {100 * self.strength:g} % of the target would be "
            f"noticed up to {reach} ({ends}). Lags found in the data and within reach: {lags}. [{self.status}]"
        )


def window_at(
    planted: Requirement,
    in_data: Requirement,
    sequences: float,
    strength: float,
    named: Sequence[Sequence[int]] | None = None,
) -> WindowAt:
    """Read H_N off the numbers for a planted dependency, and the detectable lags off those found in the data.

    `named` are the lags of each band; its far edge if None.
    """
    of_band = [[lag] for lag in in_data.lags.tolist()] if named is None else named
    lag = reach(planted.lags, planted.sequences, sequences)
    status = Status.OK
    if lag is None:
        status = next((s for s in planted.status if not s.usable), Status.WINDOW_EMPTY)
    elif lag == planted.lags[-1]:
        status = Status.WINDOW_CENSORED
    return WindowAt(
        sequences=float(sequences),
        strength=strength,
        lag=lag,
        interval=(reach(planted.lags, planted.high, sequences), reach(planted.lags, planted.low, sequences)),
        detectable=tuple(
            lag for band in np.flatnonzero(in_data.sequences <= sequences).tolist() for lag in of_band[band]
        ),
        status=status,
    )


@dataclass(frozen=True)
class Window:
    """Both answers for one checkpoint: the lags its data depend on, and the reach it would have.

    `required` holds N for the dependencies found in the data (inf where none is significant);
    `required_if_present(strength)` holds N for a planted dependency that explains that share of the target. `curves` has these
    and every other number per lag by name (`lagreach.statistics`).
    """

    required: Requirement
    probe: Requirement  # for a planted share of one
    adjusted_p: Float[np.ndarray, "lag"]
    delta: Float[np.ndarray, "lag"]
    noise: Float[np.ndarray, "lag"]
    concentration: Concentration
    design_effect: float
    reliance: Reliance
    memory: Memory
    sequences: int
    strength: float
    error: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    curves: Mapping[str, LagCurve] = field(default_factory=dict)  # every number per lag, by name
    marginal_p: Float[np.ndarray, "lag"] | None = None  # of the swap contrast alone; as adjusted_p if None
    named: tuple[int, ...] = ()  # lags that were told apart from those around them
    left: float = 1.0  # share of an input's variance that its neighbours in time leave
    noticeable: Float[np.ndarray, "lag"] | None = (
        None  # least share of the target's variance that the test for it would find
    )
    planned: int | None = None  # sequences that shares are given for; those measured if None

    @property
    def lags(self) -> np.ndarray:
        """Far edge of every band examined."""
        return self.required.lags

    @property
    def dependences(self) -> tuple[int, ...]:
        """Lags at which a dependence was found: those that were told apart, or the far edge of a band without any."""
        return tuple(lag for i in np.flatnonzero(self.adjusted_p <= self.error) for lag in self.lags_of_bands[i])

    @property
    def marginal_dependences(self) -> tuple[int, ...]:
        """Far edges of the bands whose inputs the target goes with, also if only because they go with each other."""
        p = self.adjusted_p if self.marginal_p is None else self.marginal_p
        return tuple(self.lags[p <= self.error].tolist())

    @property
    def shares_columns(self) -> bool:
        """Whether some columns of the input are the same in every sequence, so that nothing is told of them."""
        return any(map(tells_shared_columns, self.warnings))

    @property
    def lags_of_bands(self) -> list[list[int]]:
        """Lags of each band that were told apart from those around them; its far edge where none was."""
        edges = zip(self.required.first.tolist(), self.required.lags.tolist(), strict=True)
        return [[lag for lag in self.named if first <= lag <= last] or [last] for first, last in edges]

    def required_if_present(self, strength: float | None = None) -> Requirement:
        """Sequences that a dependency explaining `strength` of the target's variance would need at each lag.

        The planted signal grows as the square root of its share, so N falls as ``strength^(-kappa/2)``.
        """
        share = self.strength if strength is None else strength
        if not 0 < share <= 1:
            raise InputError("strength is a share of the target's variance", got=share, expected="0 < strength <= 1")
        base, rate = self.probe, self.concentration
        slow = rate.kappa_pessimistic if np.isfinite(rate.kappa_pessimistic) else rate.exponent
        low, high = rate.interval if rate.left_open else (rate.exponent, rate.exponent)
        shift = strength_shift(share)
        kappas = {"sequences": rate.exponent, "low": low, "high": high, "pessimistic": slow, "robust": 2.0}
        with np.errstate(divide="ignore"):
            numbers = {name: exp(moved(np.log(getattr(base, name)), kappa, shift)) for name, kappa in kappas.items()}
        return Requirement(base.lags, base.first, **numbers, status=base.status)

    def at(self, sequences: float, strength: float | None = None) -> WindowAt:
        """What `sequences` sequences can see: the window H_N and the detectable lags."""
        if not (is_number(sequences) and sequences > 0):
            raise InputError("the number of sequences must be positive", got=repr(sequences))
        check_bounds(**({} if strength is None else {"strength": strength}))
        share = self.strength if strength is None else strength
        return window_at(self.required_if_present(strength), self.required, sequences, share, self.lags_of_bands)

    def curve(self, grid: Iterable[float], strength: float | None = None) -> list[WindowAt]:
        """Windows for several numbers of sequences."""
        return [self.at(sequences, strength) for sequences in grid]

    def limit(self, lag: int, sequences: float | None = None) -> Status:
        """Which limit binds at a lag: learned, no dependency, sample size, capacity, undetermined, or cannot be told."""
        budget = self.sequences if sequences is None else sequences
        i = self.required.index(lag)
        edge = int(self.required.lags[i])
        for relied_on in set(self.lags_of_bands[i]) & set(self.reliance.lags):
            place = self.reliance.lags.index(relied_on)
            used = self.reliance.adjusted[place] <= self.error and self.reliance.rise[place] >= WORTH_CALLING_LEARNED
            worse = self.reliance.explained <= 0  # than a constant
            if used and not worse and not self.reliance.share_learned(relied_on) < LEARNED:
                return Status.LIMIT_LEARNED
        if np.isnan(self.adjusted_p[i]):
            series = self.required.status[i] is Status.LIMIT_CANNOT_BE_TOLD
            return Status.LIMIT_CANNOT_BE_TOLD if series else Status.LIMIT_SHARED_INPUT
        if self.adjusted_p[i] > self.error:
            if self.left < 1 and edge in self.marginal_dependences:
                return Status.LIMIT_EXPLAINED
            if not self.required_if_present().sequences[i] <= self.sequences:  # also where N is not known
                return Status.LIMIT_OUT_OF_REACH
            # N is for a test that knows the direction of the gradient; the one that was made looks in all of them
            told = self.noticeable is None or bool(self.noticeable[i] <= self.strength)
            none = Status.LIMIT_NONE_WHERE_INPUTS_VARY if self.shares_columns else Status.LIMIT_NO_DEPENDENCY
            return none if told else Status.LIMIT_MAY_BE_MISSED
        if self.required.sequences[i] > budget:
            return Status.LIMIT_SAMPLE_SIZE
        held = self.memory.capacity[self.memory.lags.index(edge)]
        crowded = self.memory.total >= NEAR_BOUND * self.memory.bound
        if self.memory.independent_inputs and crowded and held < LITTLE_MEMORY:
            return Status.LIMIT_CAPACITY
        return Status.LIMIT_UNDETERMINED

    def to_notice(self, lag: int) -> float:
        """Sequences with which the test for dependence would find one of the given strength: its square falls as 1 / N."""
        if self.noticeable is None:
            return float("nan")
        share = float(self.noticeable[self.required.index(lag)])
        return self.sequences * max(1.0, share / self.strength)

    def learned(self, lag: int) -> float:
        """Share of a lag that the model as it stands has learned; NaN where that was not measured.

        0 where the model does not use the input, or does worse with it than without. See `lagreach.statistics.reliance`.
        """
        named = [one for one in self.lags_of_bands[self.required.index(lag)] if one in self.reliance.lags]
        if not named or self.reliance.learned is None:
            return float("nan")
        sure = self.reliance.adjusted[self.reliance.lags.index(named[0])] <= self.error
        return min(1.0, max(0.0, self.reliance.share_learned(named[0]))) if sure else 0.0

    @property
    def definition(self) -> str:
        """What N(l) means, in words."""
        return DEFINITION.format(error=self.error, power=1 - self.error)

    def __str__(self) -> str:
        here = self.at(self.sequences)
        probe = self.required_if_present()
        rows = [f"{'lags':>9} {'N if present':>13} {'N in data':>11} {'p':>7}  limit"]
        for i, lag in enumerate(self.lags.tolist()):
            first = int(self.required.first[i])
            name = str(lag) if first == lag else f"{first}-{lag}"
            rows.append(
                f"{name:>9} {probe.sequences[i]:13.3g} {self.required.sequences[i]:11.3g} {self.adjusted_p[i]:7.3f}  "
                f"{self.limit(lag).name.removeprefix('LIMIT_').lower().replace('_', ' ')}"
            )
        notes = [f"! {warning}" for warning in self.warnings]
        return "\n".join([str(here), *rows, f"kappa: {self.concentration.status}", *notes, self.definition])
