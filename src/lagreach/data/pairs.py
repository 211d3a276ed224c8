"""Which sequences are swapped with which, and how the pairs are dealt into blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lagreach.data.sequences import Sequences, contents
from lagreach.errors import InputError


@dataclass(frozen=True)
class BlockPlan:
    """Which sequences are swapped with which, and in which block each pair counts.

    Pairs come from ranking the sequences by a hash of their inputs and the seed, so they do not depend on order,
    batches or shards, nor on which target belongs to which input (which keeps the sign-flip test exact).
    """

    pairs: np.ndarray  # (pair, 2), numbers of sequences
    blocks: np.ndarray  # (pair,), number of the block
    count: int

    @property
    def sequences(self) -> int:
        """Number of sequences that take part."""
        return self.pairs.size

    def subsample(self, sequences: int) -> BlockPlan:
        """Keep about this many sequences, evenly spaced among the pairs: a series keeps all its stretches."""
        keep = max(8, min(len(self.pairs), sequences // 2))
        return _dealt(self.pairs[np.arange(keep) * len(self.pairs) // keep], self.count)

    def only(self, blocks: Iterable[int]) -> BlockPlan:
        """Keep some of the blocks, numbered anew."""
        renumbered = {block: new for new, block in enumerate(blocks)}
        keep = np.isin(self.blocks, list(renumbered))
        return BlockPlan(self.pairs[keep], np.array([renumbered[b] for b in self.blocks[keep]]), len(renumbered))


def _dealt(pairs: np.ndarray, blocks: int) -> BlockPlan:
    count = min(blocks, len(pairs))
    return BlockPlan(pairs, np.arange(len(pairs)) * count // len(pairs), count)


def plan_blocks(sequences: Sequences, blocks: int, seed: int) -> BlockPlan:
    """Pair the sequences and deal the pairs into blocks of nearly equal size.

    Partners are half the ranks apart, so that copies of a sequence, which are neighbours, do not meet as partners (their
    contrast would be zero) and land in the same block. Windows cut from one series depend on their neighbours. They are
    paired with windows half the series away, and blocks are contiguous stretches, so that blocks stay nearly independent
    of each other.
    """
    if getattr(sequences, "from_one_series", False):
        half = len(sequences) // 2
        return _dealt(_enough(np.stack((np.arange(half), np.arange(half) + half), axis=1), len(sequences)), blocks)
    keys = [(_hash(x, seed), _hash(y, seed), number) for number, (x, y) in enumerate(contents(sequences))]
    order = np.array([number for *_, number in sorted(keys)])
    half = len(order) // 2
    return _dealt(_enough(np.stack((order[:half], order[half : 2 * half]), axis=1), len(sequences)), blocks)


def _enough(pairs: np.ndarray, sequences: int) -> np.ndarray:
    if len(pairs) < 8:
        raise InputError(
            "too few sequences to say anything about noise",
            got=f"{sequences} sequences",
            expected="at least 16, better 500 or more",
        )
    return pairs


def _hash(values: Tensor, seed: int) -> bytes:
    content = np.ascontiguousarray(values.detach().cpu().numpy()).tobytes()
    return hashlib.blake2b(content, digest_size=8, salt=(seed % 2**64).to_bytes(8, "little")).digest()


def pair_scores(pairs: np.ndarray, lag: int, time: int, seed: int) -> Tensor:
    """Random numbers (pair, time) that choose steps of each pair.

    A stream for every pair and lag: the choice does not depend on how pairs are cut into pieces, and none is stored.
    """
    streams = [np.random.Philox(key=seed % 2**64, counter=[0, 0, lag, pair]) for pair in pairs.tolist()]
    return torch.from_numpy(np.stack([np.random.Generator(stream).random(time) for stream in streams]))
