"""Which sequences exchange targets with which, and how they are dealt into blocks.

Sequences come in groups of two, four or eight, and every member of a group exchanges targets with every other one: with two
members that is one pairing, with eight there are seven, and what is measured hangs much less on which happen to meet. In
pairing g, member i meets member i XOR g. Groups lie within blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach.data.sequences import Sequences
from lagreach.data.sketch import digest
from lagreach.data.stretches import Layout, blocks_for, recordings, stretches
from lagreach.data.survey import Survey, survey
from lagreach.errors import InputError

GROUPS = 12  # that there must be, if they have more than two members
FEWEST = 16  # sequences


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

    @property
    def sequences(self) -> int:
        """Number of sequences that take part."""
        return self.pairs.size

    @property
    def groups(self) -> np.ndarray:
        """Numbers of sequences, (group, member)."""
        return self.pairs.reshape(-1, self.members)

    def paired(self, shift: int) -> BlockPlan:
        """The same groups and blocks in another pairing: member i meets member i XOR `shift`, 1 .. members - 1."""
        first = [i for i in range(self.members) if i < i ^ shift]
        order = [i for one in first for i in (one, one ^ shift)]
        return replace(self, pairs=self.groups[:, order].reshape(-1, 2))

    def subsample(self, sequences: int) -> BlockPlan:
        """Keep about this many sequences, evenly spaced: a series keeps all its stretches."""
        keep = max(FEWEST, min(self.sequences, sequences))
        if keep == self.sequences:
            return self
        if self.of_series:
            size = np.bincount(self.blocks[:: self.members // 2], minlength=self.count)
            share = np.maximum(1, size * keep // self.sequences)
            chosen = [np.arange(n) * have // n for n, have in zip(share, size, strict=True)]
            rows = np.concatenate([own + start for own, start in zip(chosen, np.cumsum(size) - size, strict=True)])
            blocks = np.repeat(np.arange(self.count), share)
            return replace(self, **_arrays(self.groups[rows], blocks))
        ranked = self.groups.T.ravel()
        few = ranked[np.arange(keep) * len(ranked) // keep]
        return replace(self, **_dealt(few, self.count, self.members))

    def only(self, blocks: Iterable[int]) -> BlockPlan:
        """Keep some of the blocks, numbered anew."""
        renumbered = {block: new for new, block in enumerate(blocks)}
        keep = np.isin(self.blocks, list(renumbered))
        numbers = np.array([renumbered[b] for b in self.blocks[keep]])
        return replace(self, pairs=self.pairs[keep], blocks=numbers, count=len(renumbered))


def _arrays(groups: np.ndarray, blocks: np.ndarray) -> dict[str, Any]:
    members = groups.shape[1]
    return {
        "pairs": groups.reshape(-1, 2),
        "blocks": np.repeat(blocks, members // 2),
        "count": int(blocks[-1]) + 1,
        "members": members,
    }


def _dealt(ranked: np.ndarray, most: int, members: int) -> dict[str, Any]:
    """Groups whose members are far apart in rank, and blocks of nearly equal size."""
    size = members_of(len(ranked), members)
    groups = ranked[: len(ranked) // size * size].reshape(size, -1).T
    count = min(blocks_for(most, size), len(groups))
    return _arrays(groups, np.arange(len(groups)) * count // len(groups))


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
    if seen.windows is not None:
        return _of_series(sequences, seen, blocks, members)
    if seen.masks_differ:
        members = 2  # only steps that count in all sequences of a group can be compared
    keys = [tuple(digest(np.frombuffer(own, np.uint8), salt=seed) for own in hashes) for hashes in seen.hashes]
    if seen.lengths is None:
        ranked = seen.kept[np.array(sorted(range(len(keys)), key=lambda i: keys[i]))]
        arrays = _dealt(ranked, blocks, members)
    else:
        arrays = _by_length(seen, keys, blocks, members_of(len(keys), members))
    return BlockPlan(**arrays, available=len(seen.kept), notes=seen.notes)


def _by_length(seen: Survey, keys: list[tuple[bytes, ...]], most: int, size: int) -> dict[str, Any]:
    """Groups of sequences of similar length, in an order that has nothing to do with it."""
    assert seen.lengths is not None
    order = sorted(range(len(keys)), key=lambda i: (seen.lengths[i], keys[i]))  # type: ignore[index]
    bundles = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
    bundles.sort(key=lambda bundle: keys[bundle[0]])
    count = min(blocks_for(most, size), len(bundles))
    return _arrays(seen.kept[np.array(bundles)], np.arange(len(bundles)) * count // len(bundles))


def _of_series(sequences: Sequences, seen: Survey, most: int, members: int) -> BlockPlan:
    assert seen.windows is not None
    windows = seen.windows
    found: Layout | str | None = recordings(windows, most, members)
    if found is None:
        found = stretches(sequences, windows, most, members)
    if isinstance(found, Layout):
        arrays = _arrays(found.groups, found.blocks)
        return BlockPlan(**arrays, available=len(seen.kept), of_series=True, notes=(*seen.notes, *found.notes))
    order = windows.number[np.concatenate(windows.chains())]
    half = len(order) // 2
    pairs = np.stack((order[:half], order[half : 2 * half]), axis=1)
    count = min(most, half)
    return BlockPlan(
        pairs,
        np.arange(half) * count // half,
        count,
        available=len(seen.kept),
        of_series=True,
        untold=found,
        notes=(
            *seen.notes,
            "windows of one series are not independent: N counts windows, intervals come from stretches of them",
        ),
    )


def pair_scores(pairs: np.ndarray, lag: int, time: int, seed: int) -> Tensor:
    """Random numbers (pair, time) that choose steps of each pair.

    A stream for every pair and lag: the choice does not depend on how pairs are cut into pieces, and none is stored.
    """
    streams = [np.random.Philox(key=seed % 2**64, counter=[0, 0, lag, pair]) for pair in pairs.tolist()]
    return torch.from_numpy(np.stack([np.random.Generator(stream).random(time) for stream in streams]))
