"""Which lags do the data depend on? Swapped targets say where to look, the exchange of single inputs says which.

Bands of several lags that swapped targets point at are looked into lag by lag. At what is left the inputs are exchanged. A
lag is named if it passes every test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lagreach._util.progress import Progress
from lagreach.data.bands import Bands
from lagreach.gradients.partial_inputs import DETERMINED, Neighbours, fit_neighbours
from lagreach.gradients.significance import Significance, flip_test
from lagreach.statistics.reliance import NO_RELIANCE, Reliance, reliance_of
from lagreach.whole_model.exchange import Exchanged, measure_exchange
from lagreach.whole_model.factors import Products
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.signals import Signals, SignalWork, measure_signals
from lagreach.whole_model.spread import Spread
from lagreach.whole_model.token_context import TokenContexts, token_contexts

MOST_LAGS = 64  # single lags that bands are looked into, in all; wider ones stay as they are
PARTIAL = (
    "inputs are correlated in time: dependences are partial, on what its neighbours leave of an input ({left:.2g} % of its "
    "variance)"
)
PARTIAL_TOKENS = (
    "tokens follow each other (at distances {distances}): dependences are partial, and an exchange of two tokens counts as much "
    "as it might have stood the other way round ({left:.2g} % of what it would for independent ones)"
)
MARGINAL = "inputs are correlated in time: exchanging one of them breaks what goes together, so lags may stand in for each other"
NOT_APART = (
    "each input follows from those around it, so neighbouring lags cannot be told apart: dependences are marginal, and lags "
    "may stand in for each other"
)
SHARED = "{what} the same in every sequence: whether the target depends on it cannot be told"
SHOWN = 8  # columns that a note lists

INTERRUPTED = "interrupted before single inputs were exchanged: lags may stand in for each other"


@dataclass(frozen=True)
class Located:
    """The lags that the data depend on.

    `test` (band,) has the p-values of all tests together, `marginal` (band,) those of swapped targets alone. `data` (block,
    band, axis) is the signal, and `products` its factors by band where inputs were exchanged. `named` are single lags.
    """

    data: np.ndarray
    test: Significance
    marginal: np.ndarray
    products: dict[int, Products]
    named: tuple[int, ...]
    reliance: Reliance = NO_RELIANCE
    left: float = 1.0
    notes: tuple[str, ...] = ()
    cut_short: bool = False


def locate(
    signals: Signals,
    data: np.ndarray,
    test: Significance,
    *,
    flips: int,
    error: float,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> Located:
    """Go on from swapped targets (`data`, `test`) to the lags that the data depend on.

    An interrupt leaves what swapped targets say.
    """
    plan, told = signals.plan, signals.told & (not signals.plan.block_plan.untold)
    test = replace(test, p_value=np.where(told, test.p_value, np.nan), adjusted=np.where(told, test.adjusted, np.nan))
    bands = np.flatnonzero(test.adjusted <= error).tolist()
    neighbours = None if signals.followed is None else fit_neighbours(signals.followed)
    left = 1.0 if neighbours is None else neighbours.left
    marginal = Located(data, test, test.adjusted, {}, (), left=left, notes=_notes(signals, neighbours))
    if not bands or plan.signal != "dependence" or left < DETERMINED:
        return marginal
    try:
        contexts = token_contexts(plan) if plan.source.reads_tokens else None
        if contexts is None and plan.source.reads_tokens and signals.moments.correlated:  # no plain tokens
            marginal = replace(marginal, notes=(MARGINAL, *marginal.notes))
        return _looked_into(marginal, plan, bands, neighbours or contexts, flips, error, progress, spread)
    except KeyboardInterrupt:
        return replace(marginal, notes=(*marginal.notes, INTERRUPTED), cut_short=True)


def _looked_into(
    marginal: Located,
    plan: WholeModelPlan,
    bands: list[int],
    follow: Neighbours | TokenContexts | None,
    flips: int,
    error: float,
    progress: Progress | None,
    spread: Spread | None,
) -> Located:
    """Look into the bands lag by lag, and exchange the inputs at what is left; `follow` is how inputs follow each other."""
    candidates = _inside(plan, bands, error, flips, progress, spread)
    if follow is not None:  # several inputs that predict each other cannot be exchanged together
        candidates = [one for one in candidates if one.first == one.last]
    if not candidates:
        return marginal
    edges = [(one.first, one.last) for one in candidates]
    contexts = [follow.at(one.last) for one in candidates] if isinstance(follow, TokenContexts) else []
    neighbours = follow if isinstance(follow, Neighbours) else None
    exchanged = measure_exchange(plan, edges, neighbours, progress, spread, contexts)
    if isinstance(follow, TokenContexts):
        left = min(context.left for context in contexts)
        note = PARTIAL_TOKENS.format(distances=", ".join(map(str, follow.distances)), left=100 * left)
        marginal = replace(marginal, left=left, notes=(note, *marginal.notes))
    return _judged(marginal, candidates, exchanged, flips, error)


@dataclass(frozen=True)
class _Candidate:
    """A range of lags, the band it lies in, and the p-value of swapped targets there."""

    band: int
    first: int
    last: int
    p: float


def _inside(
    plan: WholeModelPlan,
    bands: list[int],
    error: float,
    flips: int,
    progress: Progress | None,
    spread: Spread | None,
) -> list[_Candidate]:
    """Single lags of the bands where swapped targets point at some, else the bands themselves."""
    edges = {band: plan.bands.edges[band] for band in bands}
    wide = [(band, lag) for band, (first, last) in edges.items() if last > first for lag in range(first, last + 1)]
    p_of: dict[tuple[int, int], float] = {}
    if 0 < len(wide) <= MOST_LAGS:
        work = SignalWork(tuple((lag, lag) for _, lag in wide), "inside bands")
        closer = measure_signals(plan, progress, spread, work)
        if closer.plan.block_plan.count < plan.block_plan.count:
            raise KeyboardInterrupt
        single = flip_test(closer.means()[0], flips=flips, generator=np.random.default_rng(plan.seed))
        p_of = {one: p for one, p in zip(wide, single.adjusted.tolist(), strict=True) if p <= error}
    candidates = []
    for band, (first, last) in edges.items():
        lags = [(lag, p) for (of_band, lag), p in p_of.items() if of_band == band]
        candidates += [_Candidate(band, lag, lag, p) for lag, p in lags] or [_Candidate(band, first, last, 0.0)]
    return candidates


def _judged(marginal: Located, candidates: list[_Candidate], exchanged: Exchanged, flips: int, error: float) -> Located:
    """Put the exchange in the place of swapped targets: the best lag's signal of a band, and the largest of its p-values."""
    seed = exchanged.plan.seed
    means = exchanged.means()
    alone = flip_test(means, flips=flips, generator=np.random.default_rng(seed))
    largest = np.maximum(alone.adjusted, [one.p for one in candidates])
    data = marginal.data.copy()
    parts = {name: getattr(marginal.test, name).copy() for name in ("square", "null_spread", "p_value", "adjusted")}
    products, asked = {}, {}
    for band in sorted({one.band for one in candidates}):
        in_band = [i for i, one in enumerate(candidates) if one.band == band]
        best = min(in_band, key=lambda i: (largest[i], -alone.square[i]))
        data[:, band] = means[:, best]
        products[band], asked[band] = exchanged.data(best), best
        for name in ("square", "null_spread"):
            parts[name][band] = getattr(alone, name)[best]
        parts["p_value"][band] = max(parts["p_value"][band], alone.p_value[best])
        parts["adjusted"][band] = max(parts["adjusted"][band], largest[best])
    columns = list(asked.values())
    lags = tuple(exchanged.plan.bands.lags[band] for band in asked)
    values = exchanged.rises[:, columns], exchanged.losses[:, columns]
    plan = exchanged.plan.block_plan
    together = plan.blocks if plan.of_series else None  # windows of one stretch depend on each other
    return replace(
        marginal,
        data=data,
        test=replace(marginal.test, **parts),
        products=products,
        named=tuple(
            one.last for one, p in zip(candidates, largest, strict=True) if p <= error and one.first == one.last
        ),
        reliance=reliance_of(lags, *values, flips, np.random.default_rng(seed), together),
    )


def _notes(signals: Signals, neighbours: Neighbours | None) -> tuple[str, ...]:
    notes = []
    if neighbours is not None:
        notes.append(NOT_APART if neighbours.left < DETERMINED else PARTIAL.format(left=100 * neighbours.left))
    if signals.plan.block_plan.untold:
        notes.append(signals.plan.block_plan.untold)
    if not signals.told.all():
        edges = tuple(edge for edge, told in zip(signals.plan.bands.edges, signals.told, strict=True) if not told)
        notes.append(SHARED.format(what=f"at lags {Bands(edges)} the input is"))
    elif signals.followed is not None and signals.followed.shared.all(0).any():
        columns = np.flatnonzero(signals.followed.shared.all(0)).tolist()
        more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
        notes.append(SHARED.format(what=f"of the input, columns {', '.join(map(str, columns[:SHOWN]))}{more} are"))
    return tuple(notes)
