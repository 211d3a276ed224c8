"""Which sequences exchange targets with which, and how they are dealt into blocks.

Sequences come in groups of two, four or eight, and every member of a group exchanges targets with every other one: with two
members that is one pairing, with eight there are seven, and what is measured hangs much less on which happen to meet. In
pairing g, member i meets member i XOR g. Groups lie within blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lagreach.data.sequences import Sequences
from lagreach.data.sketch import digest
from lagreach.data.stretches import Layout, blocks_for, recordings, stretches
from lagreach.data.survey import Survey, survey
from lagreach.data.windows import Windows
from lagreach.errors import InputError

GROUPS = 12  # that there must be, if they have more than two members
FEWEST = 16  # sequences
UNPLACED = (
    "whether the target depends on any lag cannot be told from windows that overlap where nobody knows by how much"
)


@dataclass(frozen=True)
class BlockPlan:
    """Which sequences exchange targets, and in which block each pair counts.

    Groups come from ranking the sequences by a hash of their inputs and the seed, so they do not depend on order, batches
    or shards, nor on which target belongs to which input (which keeps the test exact). Pairs that follow each other, half
    as many as a group has members, make a group.
    """

    pairs: np.ndarray  # (pair, 2), numbers of sequences
    blocks: np.ndarray  # (pair,), number of the block
    count: int
    members: int = 2  # of a group
    available: int = 0  # sequences there are, copies counted once
    of_series: bool = False  # blocks are stretches of a series, within which pairs depend on each other
    untold: str = ""  # why no dependence can be tested for; empty if one can
    notes: tuple[str, ...] = ()  # what was seen in the data
    change: float = 1.0  # times that inputs vary more in one part of the sequences than in another

    @property
    def sequences(self) -> int:
        """Number of sequences that take part."""
        return self.pairs.size

    @property
    def groups(self) -> np.ndarray:
        """Numbers of sequences, (group, member)."""
        return self.pairs.reshape(-1, self.members)

    def partners(self, numbers: np.ndarray) -> np.ndarray:
        """Whom each of these sequences meets in every pairing, (pairing, sequence)."""
        order, ranked = self._order
        group, place = np.divmod(order[np.searchsorted(ranked, numbers)], self.members)
        return np.stack([self.groups[group, place ^ shift] for shift in range(1, self.members)])

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the sequences in `pairs`, in the order of their numbers, and these numbers."""
        order = np.argsort(self.pairs, axis=None)
        return order, self.pairs.ravel()[order]

    def paired(self, shift: int) -> BlockPlan:
        """The same groups and blocks in another pairing: member i meets member i XOR `shift`, 1 .. members - 1."""
        first = [i for i in range(self.members) if i < i ^ shift]
        order = [i for one in first for i in (one, one ^ shift)]
        return replace(self, pairs=self.groups[:, order].reshape(-1, 2))

    def dealt(self, groups: np.ndarray, blocks: np.ndarray) -> BlockPlan:
        """The same plan with other groups (group, member), in these blocks."""
        members = groups.shape[1]
        pairs, home = groups.reshape(-1, 2), np.repeat(blocks, members // 2)
        return replace(self, pairs=pairs, blocks=home, count=int(blocks[-1]) + 1, members=members)

    def subsample(self, sequences: int) -> BlockPlan:
        """Keep about this many sequences, evenly spaced: a series keeps all its stretches."""
        keep = max(FEWEST, min(self.sequences, sequences))
        if keep == self.sequences:
            return self
        if not self.of_series:
            ranked = self.groups.T.ravel()
            return self.dealt(*_far_apart(ranked[np.arange(keep) * len(ranked) // keep], self.count, self.members))
        size = np.bincount(self.blocks[:: self.members // 2], minlength=self.count)
        share = np.maximum(1, size * keep // self.sequences)
        chosen = [np.arange(n) * have // n for n, have in zip(share, size, strict=True)]
        rows = np.concatenate(
            [rows_kept + start for rows_kept, start in zip(chosen, np.cumsum(size) - size, strict=True)]
        )
        return self.dealt(self.groups[rows], np.repeat(np.arange(self.count), share))

    def only(self, blocks: Iterable[int]) -> BlockPlan:
        """Keep some of the blocks, numbered anew."""
        renumbered = {block: new for new, block in enumerate(blocks)}
        keep = np.isin(self.blocks, list(renumbered))
        numbers = np.array([renumbered[b] for b in self.blocks[keep]])
        return replace(self, pairs=self.pairs[keep], blocks=numbers, count=len(renumbered))


def _far_apart(ranked: np.ndarray, most: int, members: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups whose members are far apart in rank, and blocks of nearly equal size."""
    size = members_of(len(ranked), members)
    groups = ranked[: len(ranked) // size * size].reshape(size, -1).T
    return groups, _even(len(groups), blocks_for(most, size))


def _even(groups: int, blocks: int) -> np.ndarray:
    """Number of the block of each group."""
    return np.arange(groups) * min(blocks, groups) // groups


def members_of(sequences: int, most: int) -> int:
    """Members of a group: as many as leave enough groups.

    >>> [members_of(n, 8) for n in (40, 50, 100, 1000)]
    [2, 4, 8, 8]
    """
    return next((size for size in (8, 4) if size <= most and sequences // size >= GROUPS), 2)


def check_enough(sequences: int, copies: int = 0) -> None:
    """Refuse too few sequences."""
    if sequences - copies < FEWEST:
        raise InputError(
            "too few sequences to say anything about noise",
            got=f"{sequences} sequences" + (f", {copies} of them copies of others" if copies else ""),
            expected=f"at least {FEWEST}, better 500 or more",
            fix="cut one long series into windows with lagreach.cut_series(x, y, length)" if sequences == 1 else None,
        )


def plan_blocks(
    sequences: Sequences, blocks: int, seed: int, *, members: int = 2, seen: Survey | None = None
) -> BlockPlan:
    """Group the sequences and deal the groups into blocks of nearly equal size.

    Of sequences that are there more than once one takes part. Windows of one series are grouped with windows far away in it,
    and blocks are stretches that hardly depend on each other.

    Parameters
    ----------
    blocks
        The most there may be.
    members
        Of a group, at most: 2, 4 or 8.
    seen
        What `survey` saw, if it has been called already.
    """
    seen = survey(sequences) if seen is None else seen
    check_enough(len(sequences), len(sequences) - len(seen.kept))
    about = BlockPlan(
        np.empty((0, 2), dtype=int),
        np.empty(0, dtype=int),
        0,
        available=len(seen.kept),
        notes=seen.notes,
        change=seen.change,
    )
    if seen.windows is not None:
        return _of_series(sequences, seen.windows, about, blocks, members)
    if seen.masks_differ:
        members = 2  # only steps that count in all sequences of a group can be compared
    keys = [tuple(digest(np.frombuffer(content, np.uint8), salt=seed) for content in hashes) for hashes in seen.hashes]
    if seen.lengths is None:
        ranked = seen.kept[np.array(sorted(range(len(keys)), key=lambda i: keys[i]))]
        return about.dealt(*_far_apart(ranked, blocks, members))
    groups = seen.kept[_by_length(seen.lengths, keys, members_of(len(keys), members))]
    return about.dealt(groups, _even(len(groups), blocks_for(blocks, groups.shape[1])))


def _by_length(lengths: np.ndarray, keys: list[tuple[bytes, ...]], size: int) -> np.ndarray:
    """Groups of sequences of similar length, in an order that has nothing to do with it."""
    order = sorted(range(len(keys)), key=lambda i: (lengths[i], keys[i]))
    bundles = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
    return np.array(sorted(bundles, key=lambda bundle: keys[bundle[0]]))


def _of_series(sequences: Sequences, windows: Windows, about: BlockPlan, most: int, members: int) -> BlockPlan:
    about = replace(about, of_series=True)
    layout: Layout | str | None = recordings(windows, most, members) if windows.placed else UNPLACED
    if layout is None:
        layout = stretches(sequences, windows, most, members)
    if isinstance(layout, Layout):
        return replace(about, notes=about.notes + layout.notes).dealt(layout.groups, layout.blocks)
    order = windows.number[np.concatenate(windows.chains())]
    half = len(order) // 2
    pairs = np.stack((order[:half], order[half : 2 * half]), axis=1)
    note = "windows of one series are not independent: N counts windows, and intervals come from stretches of them"
    return replace(about, untold=layout, notes=(*about.notes, note)).dealt(pairs, _even(half, most))


def pair_scores(pairs: np.ndarray, lag: int, time: int, seed: int) -> Tensor:
    """Random numbers (pair, time) that choose steps of each pair.

    A stream for every pair and lag: the choice does not depend on how pairs are cut into pieces, and none is stored.
    """
    streams = [np.random.Philox(key=seed % 2**64, counter=[0, 0, lag, pair]) for pair in pairs.tolist()]
    return torch.from_numpy(np.stack([np.random.Generator(stream).random(time) for stream in streams]))
