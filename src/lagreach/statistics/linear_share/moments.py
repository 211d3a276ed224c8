"""Sums over sequences from which the share of a lag that a linear fit recovers follows in closed form.

A fit is linear in features ``phi`` (states, or derivatives of the output along directions of the weights). All that its outcome
depends on are second moments: of the features (S), of the features and the input l steps before (c_l), and the covariance over
sequences of the gradient ``g_n = sum_t w_t phi_t r_t`` with the residual r of the target (Gamma). They are kept by block of
sequences, so that fits can be judged on blocks they have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.statistics.linear_share.products import add_products, squares_and_means

SUMS = (
    "sequences", "squares", "means", "cross", "planted", "power", "present", "gradients", "gradient", "residual",
    "concentration", "lagged",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """What a linear fit sees of some sequences.

    An *anchor* is a step that has a target; `weights` sum to one over the anchors of a sequence. A *row* is a coordinate of the
    output in which the loss is a plain square. Where every output has features and weights of its own, and they are alike (a
    readout), one of them stands for all: there is one row, and a *copy* of the gradient for each output.

    Attributes
    ----------
    block
        Number of the block that each sequence counts in.
    features
        Features at the anchors.
    times
        Step of each anchor.
    planted
        Inputs of mean zero and variance one along the directions of the probes, at every step.
    towards
        Output direction along which an input is planted, for each group of probes.
    gradient
        ``sum_t w_t phi_t r_t`` over all steps, not only the anchors, and behind it the mean residual of every row.
    residual
        Mean square of the residual, summed over outputs.
    concentration
        Sum of the squared weights of all steps: one over their number where they count alike.
    lagged
        For each block among `block`, over all steps that have an input z l steps before: sums of ``w, w z, w r, w z r, w o,
        w z o``, with the residual r and the output o along the probe's output direction.
    """

    block: Int[Tensor, "seq"]
    features: Float[Tensor, "seq anchor row feature"]
    weights: Float[Tensor, "seq anchor"]
    times: Int[Tensor, "seq anchor"]
    planted: Float[Tensor, "seq time probe"]
    towards: Float[Tensor, "seq anchor row group"]
    gradient: Float[Tensor, "seq copy feature_and_row"]
    residual: Float[Tensor, "seq"]
    concentration: Float[Tensor, "seq"]
    lagged: Float[Tensor, "distinct 6 lag probe"]

    def to(self, device: torch.device | str) -> Rows:
        """Return the rows on a device."""
        return Rows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class InBlocks:
    """Sequences sorted into their blocks, as many a block: those with fewer are filled up with ones that do not count.

    Attributes
    ----------
    numbers
        Of the blocks; a slice where they follow each other, so that sums are added in place.
    count
        Of the blocks.
    index
        (block, member) sequences; None where they stand in this order already.
    counts
        (block, member): one, and zero for what was filled up.
    """

    numbers: slice | Int[Tensor, "block"]
    count: int
    index: Int[Tensor, "block member"] | None
    counts: Float[Tensor, "block member"]

    @classmethod
    def of(cls, block: Int[Tensor, "seq"], device: torch.device | str = "cpu") -> InBlocks:
        """Sort sequences, of which the blocks are known.

        >>> InBlocks.of(torch.tensor([5, 2, 2])).index
        tensor([[1, 2],
                [0, 1]])
        """
        each = block.cpu().numpy()
        every = np.bincount(each)
        numbers = np.flatnonzero(every)
        sizes = every[numbers]
        first, last, order = int(numbers[0]), int(numbers[-1]), each.argsort(kind="stable")
        together = last - first + 1 == len(numbers)
        place = slice(first, last + 1) if together else torch.from_numpy(numbers).to(device)
        inside = np.arange(sizes.max()) < sizes[:, None]
        index = np.full(inside.shape, order[0])
        index[inside] = order
        sorted_already = bool(inside.all()) and bool((order[1:] > order[:-1]).all())
        at = None if sorted_already else torch.from_numpy(index).to(device)
        return cls(place, len(numbers), at, torch.from_numpy(inside.astype(np.float64)).to(device))

    @property
    def each(self) -> list[int]:
        """Numbers of the blocks."""
        first = self.numbers
        return [*range(first.start, first.stop)] if isinstance(first, slice) else first.tolist()

    @property
    def members(self) -> Int[Tensor, "block member"]:
        """Sequences of each block, and -1 for what was filled up."""
        return torch.where(self.counts > 0, self._places, -1)

    @property
    def _places(self) -> Int[Tensor, "block member"]:
        """Sequences of each block; what was filled up is one that another block has."""
        counts = self.counts
        return torch.arange(counts.numel(), device=counts.device).view_as(counts) if self.index is None else self.index

    def rows(self, anchors: int) -> Int[Tensor, "block row"]:
        """Sequence of each row, of which a sequence has as many as it has anchors."""
        return self._places[..., None].expand(-1, -1, anchors).flatten(1)

    def __call__(self, values: Tensor) -> Tensor:
        """Sort values (seq, ...) to (block, member, ...)."""
        return values.unflatten(0, (self.count, -1)) if self.index is None else values[self.index]

    def counted(self, values: Tensor) -> Tensor:
        """Sort values, with zeros for what was filled up."""
        sorted_ = self(values)
        return (
            sorted_
            if self.index is None
            else sorted_ * self.counts.view(*self.counts.shape, *[1] * (values.ndim - 1)).to(values)
        )


class ShareMoments:
    """Sums by block: mergeable, in float64, of a size that does not depend on the number of sequences.

    Parameters
    ----------
    blocks
        Number of blocks.
    features, rows
        Number of features and of output coordinates.
    lags
        Lags that are looked at.
    group
        Group of each probe: which of the output directions in `Rows.towards` it belongs to. Groups take turns: 0, 1, 0, 1.
    copies
        (probe, copy): how much of each copy of the gradient moves the output along the probe's direction.
    singled
        Whether the second half of the probes is what each input of the first half alone holds, where inputs follow from each
        other: u of mean zero with ``E[z_t u_t'] = 1`` that no other input is correlated with.

    Examples
    --------
    >>> moments = ShareMoments(blocks=2, features=3, rows=1, lags=[0, 4], group=(0,), copies=torch.ones(1, 1))
    >>> moments.squares.shape, moments.cross.shape
    (torch.Size([2, 3, 3]), torch.Size([2, 2, 3, 1]))
    """

    def __init__(
        self,
        blocks: int,
        features: int,
        rows: int,
        lags: Sequence[int],
        group: tuple[int, ...],
        copies: Float[Tensor, "probe copy"],
        device: torch.device | str = "cpu",
        singled: bool = False,
    ) -> None:
        self.lags, self.group, self.copies, self.singled = tuple(lags), group, copies.double().cpu(), singled
        lag, probe = len(self.lags), len(group)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(blocks, *sizes, dtype=torch.float64, device=device)

        self.sequences: Tensor = zeros()
        self.squares: Tensor = zeros(features, features)  # sum of w phi phi'
        self.means: Tensor = zeros(rows, features)  # of w phi, by row
        # of w phi z, along the probe's output direction; in memory as it is summed
        self.cross: Tensor = zeros(features, probe, lag).permute(0, 3, 1, 2)
        self.planted: Tensor = zeros(rows, lag, probe)  # of w z, likewise
        self.power: Tensor = zeros(lag, probe)  # of w z^2
        self.present: Tensor = zeros(lag)  # of w, where there is an input l steps before
        self.gradients: Tensor = zeros(features + rows, features + rows)  # of g g', over copies
        self.gradient: Tensor = zeros(copies.shape[1], features + rows)  # of g
        self.residual: Tensor = zeros()
        self.concentration: Tensor = zeros()
        self.lagged: Tensor = zeros(6, probe, lag).mT

    @property
    def features(self) -> int:
        """Number of features."""
        return self.squares.shape[1]

    def add(self, rows: Rows) -> None:
        """Add sequences.

        Squares are summed in double precision, since fits divide by them. What is only multiplied, features with old inputs,
        is summed about the features' means, some rows at a time in the precision of the inputs.
        """
        blocks = InBlocks.of(rows.block, rows.features.device)
        at, phi, towards = blocks.numbers, blocks(rows.features).flatten(1, 2), blocks(rows.towards).flatten(1, 2)
        weights, gradient = blocks.counted(rows.weights).flatten(1), blocks.counted(rows.gradient).double()
        times = blocks(rows.times).flatten(1)
        kind, (outputs, _) = rows.planted.dtype, phi.shape[2:]
        counts = weights.double()
        squares, means = squares_and_means(phi, counts)
        self.sequences[at] += blocks.counts.sum(1)
        self.squares[at] += squares
        self.means[at] += means
        self.present[at] += _from_each(times, counts, rows.planted.shape[1], self.lags)
        about = (means / counts.sum(1)[:, None, None]).to(kind)  # what is subtracted, as it was rounded
        groups, values = (
            len(set(self.group)),
            rows.planted.movedim(2, 0),
        )  # (probe, seq, time), not in blocks: they are many
        old = counts.new_zeros(blocks.count, outputs, len(self.group), len(self.lags))
        powers = torch.zeros_like(old[:, 0])
        cross = self.cross.permute(0, 2, 3, 1)  # (block, feature, probe, lag), as it lies in memory
        summed = cross[at]  # of blocks that follow each other, the sums themselves
        sequence = blocks.rows(rows.times.shape[1])
        for group in range(groups):
            probes = slice(group, None, groups)  # groups take turns
            along = towards[..., group]
            pull, size = (along * weights[..., None]).to(kind), (weights * along.square().sum(2)).to(kind)
            given = (phi, pull, size, values[probes], sequence, times, self.lags)
            add_products(*given, about, summed, old, powers, probes)
        if not isinstance(at, slice):
            cross[at] = summed
        self.planted[at] += old.mT
        self.power[at] += powers.mT
        self.gradients[at] += gradient.flatten(1, 2).mT @ gradient.flatten(1, 2)
        self.gradient[at] += gradient.sum(1)
        for name in ("residual", "concentration"):
            getattr(self, name)[at] += blocks.counted(getattr(rows, name)).sum(1, dtype=torch.float64)
        self.lagged[at] += rows.lagged

    def merge(self, other: ShareMoments) -> ShareMoments:
        """Add the sums of other sequences, from another shard, say."""
        shapes = [{name: tuple(getattr(part, name).shape) for name in SUMS} for part in (self, other)]
        if (
            shapes[0] != shapes[1]
            or self.lags != other.lags
            or self.group != other.group
            or self.singled != other.singled
        ):
            raise InputError(
                "these sums do not belong to the same fit",
                got=f"{shapes[0]} and {shapes[1]}",
                fix="merge parts of one fit",
            )
        for name in SUMS:
            getattr(self, name).add_(getattr(other, name).to(self.squares.device))
        return self


def _from_each(
    times: Int[Tensor, "block anchor"], weights: Float[Tensor, "block anchor"], steps: int, lags: Sequence[int]
) -> Float[Tensor, "block lag"]:
    """Weight of the anchors that have an input l steps before."""
    by_time = weights.new_zeros(len(times), max(steps, max(lags) + 1)).scatter_add_(1, times, weights)
    return by_time.flip(1).cumsum(1).flip(1)[:, list(lags)]
