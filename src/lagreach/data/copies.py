"""Sequences that are there more than once, exactly or nearly: each counts once.

Copies carry nothing new, and a test that took them for independent would find dependences in noise. Near copies, as
augmentation makes them, are known by a gap: they are close to each other, and hardly anything is a little less close.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from lagreach.data.chance import Agreeing, Steps

NEAR = (0.1, 0.15, 0.2, 0.25)  # of the usual distance, one after the other
WIDE = 3.0  # times as far there would be far more pairs by chance, in however few directions sequences vary
MOSTLY = 0.5  # of the pairs within WIDE must be NEAR: by chance, distances do not gather at zero
CHANCE = 2.0  # standard deviations, roughly, that they must be more than that
LINK = 1.7  # times NEAR, up to where two sequences belong together once there is a gap
SAME_TARGET = 0.6  # of the usual distance, up to where inputs with the very same target may be copies
APART = 0.9  # as far as the nearest input with another target must be those with the same
SEPARATE = 0.8  # of the sequences with the same target as another must be set apart like that
FEWEST = 10  # targets that several sequences have, to tell
CLUSTERS = 3  # of a class, on average, that are no classes
SAMPLE = 1500  # sequences that are compared, each with each, to see whether there are near copies at all
RARE = 0.01  # share of sequences below which near copies do no harm


def distinct(digests: list[bytes]) -> Int[np.ndarray, "kept"]:
    """Numbers of the sequences whose contents are there for the first time."""
    first: dict[bytes, int] = {}
    for number, digest in enumerate(digests):
        first.setdefault(digest, number)
    return np.array(sorted(first.values()))


def without_near_copies(
    x: Float[np.ndarray, "seq dim"],
    y: Float[np.ndarray, "seq out"],
    order: Int[np.ndarray, "seq"],
    targets: list[bytes],
    *,
    classes: bool = False,
    steps: Callable[[], Steps] | None = None,
) -> Int[np.ndarray, "kept"]:
    """Positions of the sequences that are left if one is kept of those that are nearly alike, the first in `order`.

    Nearly alike are, first, inputs and targets that are both much closer than usual. If sequences were drawn at random, however
    few directions they varied in, at most a third of the pairs within three times a distance would be within it; near copies
    are those of data where most are. Second, inputs whose targets (hashes, `targets`) agree in every digit: where such
    sequences are closer to each other than to any other, nearly all of them, they are versions of one.

    Where the target is one of a few `classes`, sequences of a class may be alike without being copies: they must be very
    close, or come in several clusters a class. Close pairs are none where inputs come so close by chance, as their `steps` tell.
    """
    if not classes:
        return _one_of_each(order, *_close_pairs(x, y, order, NEAR, steps), *_same_target_pairs(x, order, targets))
    kept = _one_of_each(order, *_close_pairs(x, y, order, NEAR, steps))
    if len(kept) >= CLUSTERS * len(set(targets)):
        return kept
    return _one_of_each(order, *_close_pairs(x, y, order, NEAR[:1], steps))


def _close_pairs(
    x: np.ndarray, y: np.ndarray, order: np.ndarray, radii: tuple[float, ...], steps: Callable[[], Steps] | None
) -> list[Int[np.ndarray, "pair 2"]]:
    """Pairs of sequences whose inputs and targets are near, if there is a gap behind them."""
    sample = np.sort(order[:SAMPLE])
    scaled = [_scaled(part, sample) for part in (x, y)]
    pair = np.triu_indices(len(sample), 1)
    of_x, of_y = (_distances(part[sample])[pair] for part in scaled)
    link, best = 0.0, 0.0
    for radius in radii:
        near = int(((of_x <= radius) & (of_y <= radius)).sum())
        # targets may come in steps: where the next one lies does not count as a gap
        wide = int(((of_x <= WIDE * radius) & (of_y <= max(1.0, WIDE * radius))).sum())
        if near >= max(3, RARE * len(sample) / 2, MOSTLY * wide + CHANCE * np.sqrt(wide)) and near / wide > best:
            link, best = LINK * radius, near / wide
    if not link:
        return []
    near_x, near_y = of_x <= link, of_y <= link
    agreeing = Agreeing(len(of_x), *(float(near.sum()) for near in (near_x, near_y, near_x & near_y)))
    if steps is not None and agreeing.by_chance(agreeing.pairs * steps().near(link)):
        return []
    from scipy.spatial import cKDTree

    pairs = cKDTree(np.concatenate(scaled, axis=1)).query_pairs(np.sqrt(2) * link, output_type="ndarray")
    close = [np.linalg.norm(part[pairs[:, 0]] - part[pairs[:, 1]], axis=1) <= link for part in scaled]
    return [pairs[np.logical_and(*close)]]


def _same_target_pairs(x: np.ndarray, order: np.ndarray, targets: list[bytes]) -> list[Int[np.ndarray, "pair 2"]]:
    """Pairs of sequences with the very same target, if their inputs are set apart from all others."""
    _, target, count = np.unique(np.array(targets), return_inverse=True, return_counts=True)
    again = np.flatnonzero(count[target] > 1)
    if (count > 1).sum() < FEWEST or len(again) < RARE * len(x):
        return []
    chosen = order[np.isin(order, again)][:SAMPLE]
    scaled = _scaled(x, np.sort(order[:SAMPLE]))
    separate = _set_apart(scaled, target, chosen)
    if separate.mean() < SEPARATE:
        return []
    by_target = again[np.argsort(target[again], kind="stable")]
    neighbours = np.stack((by_target[:-1], by_target[1:]), axis=1)
    return [neighbours[target[neighbours[:, 0]] == target[neighbours[:, 1]]]]


def _set_apart(scaled: np.ndarray, target: np.ndarray, chosen: np.ndarray) -> Bool[np.ndarray, "chosen"]:
    """Whether all inputs with the same target are close, and closer than any with another."""
    separate = np.zeros(len(chosen), dtype=bool)
    together = max(1, 2**22 // len(scaled))
    for start in range(0, len(chosen), together):
        rows = chosen[start : start + together]
        apart, same = _distances(scaled[rows], scaled), target[rows][:, None] == target
        farthest, nearest = np.where(same, apart, 0.0).max(1), np.where(same, np.inf, apart).min(1)
        separate[start : start + together] = (farthest <= SAME_TARGET) & (farthest <= APART * nearest)
    return separate


def _one_of_each(order: np.ndarray, *pairs: Int[np.ndarray, "pair 2"]) -> Int[np.ndarray, "kept"]:
    """The first in `order` of all that pairs connect."""
    count = len(order)
    if not pairs:
        return np.arange(count)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    linked = np.concatenate(pairs)
    links = coo_array((np.ones(len(linked)), (linked[:, 0], linked[:, 1])), shape=(count, count))
    _, cluster = connected_components(links, directed=False)
    _, first = np.unique(cluster[order], return_index=True)
    return np.sort(order[first])


def _distances(points: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    others = points if others is None else others
    squares, of_others = np.square(points).sum(1), np.square(others).sum(1)
    return np.sqrt(np.maximum(squares[:, None] + of_others - 2 * points @ others.T, 0.0))


def _scaled(points: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Points whose usual distance is one; that of a sample: the median, or the mean where more than half of them agree."""
    largest = float(np.abs(points).max(initial=0.0))
    points = points / 2.0 ** math.frexp(largest)[1] if math.isfinite(largest) else points  # squares are then numbers
    apart = _distances(points[sample] - points[sample].mean(0))[np.triu_indices(len(sample), 1)]
    usual = (float(np.median(apart)) or float(apart.mean())) if len(apart) else 0.0
    return points / usual if usual > 0 else np.zeros_like(points)
