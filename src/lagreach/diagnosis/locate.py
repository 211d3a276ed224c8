"""Between the passes: which lags do the data depend on, and not only the inputs that the network happens to mix with them?

1. *Marginal*: exchanging the targets of partners tests, for every lag, whether the target depends on inputs at all; inside
   bands of several lags one by one as well (`lag_sketch`), since the nearest would drown the rest. A trained network's
   Jacobians carry other inputs into a lag, so this alone names lags that are not in the data.
2. Where inputs follow each other in time, the same *inside the bands* that are left, for the gradients of reading what their
   neighbours do not predict.
3. *Exchange* of the one input, for the lags that are left. A lag is named if it passes every test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.blocks import LIMIT_BYTES, BlockMeans
from lagreach.gradients.exchange import Exchanged, ExchangePlan, affordable_positions, exchange
from lagreach.gradients.head_reach import head_reach
from lagreach.gradients.lag_contrasts import LagContrasts, lag_contrasts
from lagreach.gradients.lag_sketch import BandTest
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.partial_inputs import DETERMINED, InputMoments, Neighbours, fit_neighbours, misleading
from lagreach.gradients.significance import flip_test
from lagreach.gradients.step_inputs import step_input

NOT_ALONE = (
    "a step of this layer sees several inputs at once, so none can be exchanged alone: dependences are marginal, and lags "
    "next to a true one may be named"
)
NOT_APART = (
    "each input follows from those around it, so neighbouring lags cannot be told apart: dependences are marginal, and lags "
    "may stand in for each other"
)
INTERRUPTED = "interrupted before lags were told apart: dependences are marginal, and lags may stand in for each other"


@runtime_checkable
class SecondLook(Protocol):
    """How the sequences are looked at again: here, or spread over machines."""

    def contrasts(self, lags: Sequence[int], neighbours: Neighbours | None) -> LagContrasts:
        """Measure the contrasts of single lags over all blocks."""

    def exchange(self, exchange_plan: ExchangePlan) -> Exchanged:
        """Exchange single inputs over all blocks."""


@dataclass(frozen=True)
class LookHere:
    """Look again in this process."""

    plan: MeasurementPlan
    tick: Callable[[int], None] | None = None

    def contrasts(self, lags: Sequence[int], neighbours: Neighbours | None) -> LagContrasts:
        """Measure the contrasts of single lags over all blocks."""
        return lag_contrasts(self.plan, lags, neighbours, tick=self.tick)

    def exchange(self, exchange_plan: ExchangePlan) -> Exchanged:
        """Exchange single inputs over all blocks."""
        return exchange(self.plan, exchange_plan, tick=self.tick)


@dataclass(frozen=True)
class Located:
    """The lags that the data depend on.

    `adjusted` (band,) are p-values, the smallest of a band's lags; `signal` (block, band, param) is D of that lag where a band
    was looked into, and the band's swap contrast elsewhere. `left` is the share of an input's variance that its neighbours in
    time leave, one if inputs do not follow each other.
    """

    lags: tuple[int, ...]
    adjusted: np.ndarray
    signal: np.ndarray
    left: float = 1.0
    notes: tuple[str, ...] = ()


def locate(
    plan: MeasurementPlan,
    means: BlockMeans,
    tested: BandTest,
    settings: MeasureSettings,
    *,
    inputs: InputMoments | None = None,
    look: SecondLook | None = None,
    project: Callable[[np.ndarray, Sequence[int]], np.ndarray] = lambda vectors, bands: vectors,
) -> Located:
    """Look into the bands that the marginal test names, and name lags.

    Parameters
    ----------
    inputs
        How inputs differ between partners, and follow each other.
    look
        Looks at the sequences again; without it the far edges of the bands are named.
    project
        What of the vectors (block, lag, param) of lags in these bands is tested.
    """
    test = tested.bands
    bands = np.flatnonzero(test.adjusted <= settings.error).tolist()
    neighbours = None if inputs is None else fit_neighbours(inputs)
    left = 1.0 if neighbours is None else neighbours.left
    marginal = Located(tuple(plan.bands.lags[band] for band in bands), test.adjusted, means.data, left)
    if not bands or look is None or plan.signal != "dependence":
        return marginal
    reason = _why_not(plan, neighbours)
    if reason:
        return Located(marginal.lags, marginal.adjusted, marginal.signal, left, (reason,))
    closer = _Closer(plan, settings, look, neighbours, project, means, bands, tested.inside)
    single_lags = closer.inside()
    single_lags.examine(closer)
    signal = means.data.copy()
    if (
        plan.transport == "exact"
    ):  # exchanges are carried exactly: their result does not belong among first-order signals
        for band, lag in single_lags.best().items():
            signal[:, band] = single_lags.vector(lag)
    adjusted = np.array(test.adjusted)
    for band in bands:
        adjusted[band] = max(adjusted[band], single_lags.smallest(band))
    named = tuple(
        lag
        for lag in sorted(single_lags.lags)
        if max(single_lags.p[lag], test.adjusted[single_lags.band[lag]]) <= settings.error
    )
    tokens = not plan.sequences.read([0]).x.is_floating_point()
    misled = () if inputs is None else misleading(inputs, neighbours, plan.block_plan.change, tokens)
    return Located(named, adjusted, signal, left, (*single_lags.notes, *misled))


def _why_not(plan: MeasurementPlan, neighbours: Neighbours | None) -> str:
    """Why single inputs cannot be exchanged; empty if they can."""
    part, _ = plan.run(plan.block_plan.pairs[0].tolist())
    if step_input(part) is None:
        return NOT_ALONE
    return NOT_APART if neighbours is not None and neighbours.left < DETERMINED else ""


@dataclass(frozen=True)
class _Closer:
    """A closer look into some of the bands."""

    plan: MeasurementPlan
    settings: MeasureSettings
    look: SecondLook
    neighbours: Neighbours | None
    project: Callable[[np.ndarray, Sequence[int]], np.ndarray]
    means: BlockMeans
    bands: list[int]
    marginal: Mapping[int, float]  # p-values of lags inside bands

    def inside(self) -> _Lags:
        """Single lags of the bands, with their contrasts and p-values."""
        edges = [self.plan.bands.edges[band] for band in self.bands]
        if self.neighbours is None and all(first == last for first, last in edges):
            band_of = {last: band for (_, last), band in zip(edges, self.bands, strict=True)}
            return _Lags(band_of, self.means.data[:, self.bands], dict.fromkeys(band_of, 0.0))  # tested already
        every = {
            lag: band for (first, last), band in zip(edges, self.bands, strict=True) for lag in range(first, last + 1)
        }
        tested = self.neighbours is None and bool(self.marginal)
        if tested:
            every = {lag: band for lag, band in every.items() if self._marginal(lag) <= self.settings.error}
        room = max(1, LIMIT_BYTES // (2 * self.plan.block_plan.count * self.plan.width * 8))
        chosen = sorted(sorted(every, key=self._marginal)[:room])
        band_of = {lag: every[lag] for lag in chosen}
        contrasts = self.look.contrasts(chosen, self.neighbours).data
        left_out = f"of {len(every)} lags only {room}, the clearest, were looked into one by one: too many weights; ask for fewer"
        notes = (left_out,) if len(every) > room else ()
        p = dict.fromkeys(band_of, 0.0) if tested else self.test(band_of, contrasts)
        return _Lags(band_of, contrasts, p, notes=notes)

    def _marginal(self, lag: int) -> float:
        """P-value of a lag by the marginal test; bands of one lag have been named."""
        return self.marginal.get(lag, 0.0)

    def test(self, band_of: dict[int, int], vectors: np.ndarray) -> dict[int, float]:
        """P-values of lags from their vectors (block, lag, param), adjusted for all of them and all other bands."""
        others = [band for band in range(len(self.plan.bands)) if band not in self.bands]
        every = np.concatenate((vectors, self.means.data[:, others]), axis=1)
        tested = self.project(every, [*band_of.values(), *others])
        generator = np.random.default_rng(self.settings.seed)
        adjusted = flip_test(tested, flips=self.settings.flips, generator=generator).adjusted
        return dict(zip(band_of, adjusted.tolist(), strict=False))


@dataclass
class _Lags:
    """Single lags: the band and the p-value so far of each, and their contrasts (block, lag, param) in the same order."""

    band: dict[int, int]
    contrasts: np.ndarray
    p: dict[int, float]
    examined: dict[int, np.ndarray] = field(default_factory=dict)  # D, of those that were examined
    notes: tuple[str, ...] = ()

    @property
    def lags(self) -> list[int]:
        """The lags, ascending."""
        return list(self.band)

    def examine(self, closer: _Closer) -> None:
        """Exchange the inputs at the lags that are left, and raise their p-values accordingly."""
        left = [lag for lag in self.lags if self.p[lag] <= closer.settings.error]
        if not left:
            return
        plan, columns = closer.plan, [self.lags.index(lag) for lag in left]
        reach = head_reach(plan)
        positions = affordable_positions(left, plan.time, reach)
        exchange_plan = ExchangePlan(tuple(left), positions, reach, closer.neighbours, plan.seed)
        vectors = self.contrasts.copy()
        vectors[:, columns] = closer.look.exchange(exchange_plan).controlled(self.contrasts[:, columns])
        p = closer.test(self.band, vectors)
        self.p |= {lag: max(self.p[lag], p[lag]) for lag in left}
        self.examined = {lag: vectors[:, column] for lag, column in zip(left, columns, strict=True)}

    def smallest(self, band: int) -> float:
        """Smallest p-value of a band's lags; one if none was looked at."""
        return min((p for lag, p in self.p.items() if self.band[lag] == band), default=1.0)

    def best(self) -> dict[int, int]:
        """The lag of each band that stands for it: the one with the smallest p-value, the nearest of several."""
        ranked = sorted(self.lags, key=lambda lag: (lag not in self.examined, self.p[lag], lag), reverse=True)
        return {self.band[lag]: lag for lag in ranked}

    def vector(self, lag: int) -> np.ndarray:
        """D of a lag, or its contrast if it was not examined."""
        return self.examined[lag] if lag in self.examined else self.contrasts[:, self.lags.index(lag)]
