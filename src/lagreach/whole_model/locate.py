"""Which lags do the data depend on? Swapped targets say where to look, the exchange of single inputs says which.

Inside bands of several lags they do so lag by lag (`lag_sketch`). At the lags that are left the inputs are exchanged. A lag is
named if it passes every test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lagreach._util.interrupts import as_it_stands
from lagreach._util.progress import Progress
from lagreach.data.bands import Bands
from lagreach.data.shared_inputs import shared_columns, shared_lags
from lagreach.gradients.lag_sketch import BandTest
from lagreach.gradients.partial_inputs import DETERMINED, Neighbours, fit_neighbours, misleading
from lagreach.gradients.significance import LOOKS, Significance, flip_test
from lagreach.statistics.reliance import NO_RELIANCE, Reliance, reliance_of
from lagreach.whole_model.exchange import Exchanged, measure_exchange
from lagreach.whole_model.exchange_rounds import Rounds
from lagreach.whole_model.factors import Products
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.signals import Signals
from lagreach.whole_model.spread import Spread
from lagreach.whole_model.token_context import TokenContexts, token_contexts

MOST_LAGS = 64  # inside bands where inputs are exchanged, at most: the clearest
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
IN_TURNS = (
    "{lags} lags were left to be told apart, so inputs were exchanged at each of them in {part:.0%} of the pairs of sequences: a "
    "weak dependence may be missed that fewer lags=[...] would show"
)

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
    tested: BandTest,
    *,
    flips: int,
    error: float,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> Located:
    """Go on from swapped targets (`data`, `tested`) to the lags that the data depend on.

    An interrupt leaves what swapped targets say.
    """
    plan, told = signals.plan, signals.told & (not signals.plan.block_plan.untold)
    test = tested.bands
    test = replace(test, p_value=np.where(told, test.p_value, np.nan), adjusted=np.where(told, test.adjusted, np.nan))
    bands = np.flatnonzero(test.adjusted <= error).tolist()
    neighbours = None if signals.followed is None else fit_neighbours(signals.followed)
    left = 1.0 if neighbours is None else neighbours.left
    marginal = Located(data, test, test.adjusted, {}, (), left=left, notes=_notes(signals, neighbours))
    if not bands or plan.signal != "dependence" or left < DETERMINED:
        return marginal
    put_back = as_it_stands()
    try:
        contexts = token_contexts(plan) if plan.source.reads_tokens else None
        if contexts is None and plan.source.reads_tokens and signals.moments.correlated:  # no plain tokens
            marginal = replace(marginal, notes=(MARGINAL, *marginal.notes))
        follow = neighbours or contexts
        return _looked_into(marginal, plan, bands, tested.inside, follow, flips, error, progress, spread)
    except KeyboardInterrupt:
        put_back()
        return replace(marginal, notes=(*marginal.notes, INTERRUPTED), cut_short=True)


def _looked_into(
    marginal: Located,
    plan: WholeModelPlan,
    bands: list[int],
    inside: Mapping[int, float],
    follow: Neighbours | TokenContexts | None,
    flips: int,
    error: float,
    progress: Progress | None,
    spread: Spread | None,
) -> Located:
    """Exchange the inputs at the single lags of these bands that swapped targets point at; `follow` is how inputs do."""
    candidates = _inside(plan, bands, inside, error)
    contexts = [follow.at(one.lag) for one in candidates] if isinstance(follow, TokenContexts) else []
    neighbours = follow if isinstance(follow, Neighbours) else None
    exchanged = measure_exchange(plan, [one.lag for one in candidates], neighbours, progress, spread, contexts)
    if (part := Rounds.planned(plan, len(candidates), controlled=not contexts).part) < 1:
        marginal = replace(marginal, notes=(*marginal.notes, IN_TURNS.format(lags=len(candidates), part=part)))
    if contexts and isinstance(follow, TokenContexts):
        left = min(context.left for context in contexts)
        note = PARTIAL_TOKENS.format(distances=", ".join(map(str, follow.distances)), left=100 * left)
        marginal = replace(marginal, left=left, notes=(note, *marginal.notes))
    return _judged(marginal, candidates, exchanged, flips, error)


@dataclass(frozen=True)
class _Candidate:
    """A lag, the band it lies in, and the p-value of swapped targets there, if it was not that of the band."""

    band: int
    lag: int
    p: float


def _inside(plan: WholeModelPlan, bands: list[int], inside: Mapping[int, float], error: float) -> list[_Candidate]:
    """Single lags of the bands that swapped targets point at; of very many, the clearest."""
    edges = {band: plan.bands.edges[band] for band in bands}
    single = [_Candidate(band, last, 0.0) for band, (first, last) in edges.items() if first == last]
    wide = [
        _Candidate(band, lag, inside[lag])
        for band, (first, last) in edges.items()
        if last > first
        for lag in range(first, last + 1)
        if inside[lag] <= error
    ]
    return sorted([*single, *sorted(wide, key=lambda one: one.p)[:MOST_LAGS]], key=lambda one: one.lag)


def _judged(marginal: Located, candidates: list[_Candidate], exchanged: Exchanged, flips: int, error: float) -> Located:
    """Put the exchange in the place of swapped targets: the best lag's signal of a band, and the largest of its p-values."""
    seed = exchanged.plan.seed
    means, signals = exchanged.controlled()
    alone = flip_test(means, flips=flips, generator=np.random.default_rng(seed))
    exchanged_p = np.minimum(LOOKS * alone.adjusted, 1.0)
    largest = np.maximum(exchanged_p, [one.p for one in candidates])
    data = marginal.data.copy()
    parts = {name: getattr(marginal.test, name).copy() for name in ("square", "null_spread", "p_value", "adjusted")}
    products, asked = {}, {}
    for band in sorted({one.band for one in candidates}):
        in_band = [i for i, one in enumerate(candidates) if one.band == band]
        best = min(in_band, key=lambda i: (largest[i], -alone.square[i]))
        data[:, band] = 0.0  # vectors have an axis for every block here, and one for every pairing of it there
        data[:, band, : means.shape[2]] = means[:, best]
        products[band], asked[band] = signals[best], best
        for name in ("square", "null_spread"):
            parts[name][band] = getattr(alone, name)[best]
        parts["p_value"][band] = max(parts["p_value"][band], alone.p_value[best])
        parts["adjusted"][band] = max(parts["adjusted"][band], largest[best])
    columns = list(asked.values())
    lags = tuple(exchanged.plan.bands.lags[band] for band in asked)
    plan = exchanged.plan.block_plan
    together = plan.blocks if plan.of_series else None  # windows of one stretch depend on each other
    return replace(
        marginal,
        data=data,
        test=replace(marginal.test, **parts),
        products=products,
        named=tuple(one.lag for one, p in zip(candidates, largest, strict=True) if p <= error),
        reliance=reliance_of(lags, exchanged.rises[:, :, columns], flips, np.random.default_rng(seed), together),
    )


def _notes(signals: Signals, neighbours: Neighbours | None) -> tuple[str, ...]:
    notes = []
    if neighbours is not None:
        notes.append(NOT_APART if neighbours.left < DETERMINED else PARTIAL.format(left=100 * neighbours.left))
        assert signals.followed is not None
        notes += misleading(signals.followed, neighbours, signals.plan.block_plan.change)
    if signals.plan.block_plan.untold:
        notes.append(signals.plan.block_plan.untold)
    if not signals.told.all():
        edges = tuple(edge for edge, told in zip(signals.plan.bands.edges, signals.told, strict=True) if not told)
        notes.append(shared_lags(str(Bands(edges))))
    elif signals.followed is not None and signals.followed.shared.all(0).any():
        notes.append(shared_columns(np.flatnonzero(signals.followed.shared.all(0)).tolist()))
    return tuple(notes)
