"""Anchors: the few outputs of a sequence whose gradients are carried back, and the lags that are looked at from there.

Every output counts in the mean gradient of a lag. A few of them, drawn at random and weighted by how many they stand for,
estimate that mean without bias. The draw depends on the inputs of a pair and on the seed alone: order, batches and shards
do not change it, and neither do targets, so that swapping targets leaves it alone. Partners share their anchors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ANCHOR_STEPS = 256  # steps of input that one sequence is carried back through for each signal, roughly
MOST_SLOTS = 4  # lags of a band that are looked at from one anchor


@dataclass(frozen=True)
class Anchors:
    """Positions (pair, anchor) among the outputs, and how many outputs each stands for; zero where there is none."""

    position: Int[np.ndarray, "pair anchor"]
    weight: Float[np.ndarray, "pair anchor"]

    @property
    def count(self) -> int:
        """Anchors of a sequence."""
        return self.position.shape[1]


@dataclass(frozen=True)
class Slots:
    """Parts of the bands of lags: one lag is drawn from each part for every anchor.

    `first` and `last` (slot,) are the ends of a part, `band` the band it belongs to, `edge` (band,) the slot that holds
    the far edge of a band, alone.
    """

    first: np.ndarray
    last: np.ndarray
    band: np.ndarray
    edge: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def width(self) -> np.ndarray:
        """Number of lags that a slot stands for."""
        return self.last - self.first + 1


def anchors_per_sequence(time: int, positions: int) -> int:
    """How many outputs of a sequence are carried back: all of a short one, one of a long one.

    >>> anchors_per_sequence(16, 16), anchors_per_sequence(64, 64), anchors_per_sequence(1024, 1024)
    (16, 4, 1)
    """
    return max(1, min(positions, ANCHOR_STEPS // time))


def make_slots(edges: Sequence[tuple[int, int]]) -> Slots:
    """Cut bands into at most four parts; the last one is the far edge alone.

    >>> slots = make_slots([(0, 0), (1, 2), (3, 20)])
    >>> list(zip(slots.first.tolist(), slots.last.tolist()))
    [(0, 0), (1, 1), (2, 2), (3, 7), (8, 13), (14, 19), (20, 20)]
    >>> slots.edge.tolist()
    [0, 2, 6]
    """
    parts: list[tuple[int, int, int]] = []
    edge = []
    for band, (first, last) in enumerate(edges):
        inner = min(last - first, MOST_SLOTS - 1)
        cuts = [first + (last - first) * i // inner for i in range(inner + 1)] if inner else [last]
        parts += [(a, b - 1, band) for a, b in pairwise(cuts)]
        edge.append(len(parts))
        parts.append((last, last, band))
    first_lag, last_lag, band_of = (np.array(column) for column in zip(*parts, strict=True))
    return Slots(first_lag, last_lag, band_of, np.array(edge))


def pair_streams(
    x: Tensor, lengths: Tensor | None, seed: int, purpose: Sequence[int] | None = None
) -> list[np.random.Generator]:
    """A stream of random numbers for each pair (rows 2i and 2i + 1), from the contents of its inputs within their lengths.

    Another `purpose` of a pair has another stream.
    """
    values = x.detach().cpu()
    values = values.double() if values.is_floating_point() else values.long()  # the type of x must not decide
    steps = [len(one) for one in values] if lengths is None else lengths.tolist()
    rows = [np.ascontiguousarray(one[:step].numpy()).tobytes() for one, step in zip(values, steps, strict=True)]
    pairs = [one + other for one, other in zip(rows[::2], rows[1::2], strict=True)]
    of_seed, purposes = (seed % 2**64).to_bytes(8, "little"), [0] * len(pairs) if purpose is None else purpose
    salts = [of_seed + number.to_bytes(8, "little") for number in purposes]
    keys = [hashlib.blake2b(one, digest_size=16, salt=salt).digest() for one, salt in zip(pairs, salts, strict=True)]
    return [np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))) for key in keys]


def draw_anchors(
    usable: Bool[Tensor, "pair position"], most: int | Sequence[int], streams: Sequence[np.random.Generator]
) -> Anchors:
    """Draw up to `most` of the usable outputs of each pair, one from each of as many equal stretches of them.

    Pairs may have a number each.
    """
    of_pair = [most] * len(usable) if isinstance(most, int) else list(most)
    position = np.zeros((len(usable), max(of_pair, default=0)), dtype=np.int64)
    weight = np.zeros(position.shape)
    for row, (choice, stream, wanted) in enumerate(zip(usable.cpu().numpy(), streams, of_pair, strict=True)):
        places = np.flatnonzero(choice)
        count = min(wanted, len(places))
        draws = stream.random(wanted)
        if count == 0:
            continue
        cuts = np.arange(count + 1) * len(places) // count
        size = np.diff(cuts)
        position[row, :count] = places[cuts[:-1] + (draws[:count] * size).astype(int)]
        weight[row, :count] = size
    return Anchors(position, weight)


def draw_lags(slots: Slots, anchors: int, streams: Sequence[np.random.Generator]) -> Int[Tensor, "pair anchor slot"]:
    """Draw a lag from every slot, for each pair and anchor."""
    draws = np.stack([stream.random((anchors, len(slots))) for stream in streams])
    return torch.from_numpy(slots.first + (draws * slots.width).astype(np.int64))
