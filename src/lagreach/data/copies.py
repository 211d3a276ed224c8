"""Sequences that are there more than once, exactly or nearly: each counts once.

Copies carry nothing new, and a test that took them for independent would find dependences in noise.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

NEAR, WIDE = 0.1, 0.3  # of the usual distance
MOSTLY = 0.5  # of the pairs within WIDE must be within NEAR: by chance, distances do not gather at zero
SAMPLE = 1500  # sequences that are compared, each with each, to see whether there are near copies at all
RARE = 0.01  # share of sequences below which near copies do no harm


def distinct(digests: list[bytes]) -> Int[np.ndarray, "kept"]:
    """Numbers of the sequences whose contents are there for the first time."""
    first: dict[bytes, int] = {}
    for number, digest in enumerate(digests):
        first.setdefault(digest, number)
    return np.array(sorted(first.values()))


def without_near_copies(
    x: Float[np.ndarray, "seq dim"], y: Float[np.ndarray, "seq out"], order: Int[np.ndarray, "seq"]
) -> Int[np.ndarray, "kept"]:
    """Positions of the sequences that are left if one is kept of those that are nearly alike, the first in `order`.

    Nearly alike: input and target each closer than a tenth of the usual distance. If sequences were drawn at random, however
    few directions they varied in, at most a third of the pairs within three tenths would be within one tenth; near copies are
    those of data where most are.
    """
    everyone = np.arange(len(x))
    sample = np.sort(order[:SAMPLE])
    usual = [_usual(part[sample]) for part in (x, y)]
    scaled = [part / size if size > 0 else np.zeros_like(part) for part, size in zip((x, y), usual, strict=True)]
    apart = np.maximum(*(_distances(part[sample]) for part in scaled))
    apart = apart[np.triu_indices(len(sample), 1)]
    near, wide = int((apart <= NEAR).sum()), int((apart <= WIDE).sum())
    if near < max(3, RARE * len(sample) / 2) or near < MOSTLY * wide:
        return everyone
    return _one_of_each(scaled, order)


def _one_of_each(scaled: list[np.ndarray], order: np.ndarray) -> np.ndarray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    count = len(order)
    pairs = cKDTree(np.concatenate(scaled, axis=1)).query_pairs(np.sqrt(2) * NEAR, output_type="ndarray")
    close = [np.linalg.norm(part[pairs[:, 0]] - part[pairs[:, 1]], axis=1) <= NEAR for part in scaled]
    pairs = pairs[np.logical_and(*close)]
    links = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, cluster = connected_components(links, directed=False)
    _, first = np.unique(cluster[order], return_index=True)
    return np.sort(order[first])


def _distances(points: np.ndarray) -> np.ndarray:
    squares = np.square(points).sum(1)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0.0))


def _usual(points: np.ndarray) -> float:
    """Median distance of two sequences; the mean where more than half of them agree."""
    apart = _distances(points - points.mean(0))[np.triu_indices(len(points), 1)]
    if not len(apart):
        return 0.0
    return float(np.median(apart)) or float(apart.mean())
