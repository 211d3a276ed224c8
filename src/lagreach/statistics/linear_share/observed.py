"""What one pass over some sequences shows beside the features: where targets are, old inputs, and residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.full_precision import full_products
from lagreach._util.same_rows import by_row
from lagreach.statistics.linear_share.moments import InBlocks, Rows
from lagreach.statistics.linear_share.products import ROOM, compiled_sums

ANCHORS = 64  # steps of a sequence at which features are looked at; all of them where there are fewer
FEWEST_ANCHORS = 16
ENOUGH_ROWS = 64  # anchors for each feature of a readout: more add next to nothing to what the sequences tell
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def enough_anchors(targets: int, sequences: int, features: int) -> int:
    """Targets of each of so many sequences at which as many features of a readout have to be looked at.

    >>> [enough_anchors(1024, sequences, 64) for sequences in (50, 100, 200, 10_000)], enough_anchors(40, 10_000, 64)
    ([64, 41, 21, 16], 64)
    """
    enough = -(-ENOUGH_ROWS * features // sequences)
    return ANCHORS if targets <= ANCHORS else min(ANCHORS, max(FEWEST_ANCHORS, enough))


def anchor_chance(seed: int, ranks: np.ndarray, count: int = ANCHORS) -> Float[Tensor, "seq anchor"]:
    """Random numbers that choose the anchors: some for every sequence, by its place in an order that comes from contents.

    So the choice does not depend on what runs beside a sequence, nor is it stored.
    """
    with np.errstate(over="ignore"):  # whole numbers that wrap around are meant to
        streams = _scrambled(ranks.astype(np.uint64) * GOLDEN + np.uint64(seed % 2**64))
        numbers = _scrambled(streams[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)
    return torch.from_numpy((numbers >> np.uint64(11)) * 2.0**-53)


def _scrambled(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers that look random: the finaliser of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def choose_anchors(
    shares: Float[Tensor, "seq target"], chance: Float[Tensor, "seq most"]
) -> tuple[Int[Tensor, "seq anchor"], Float[Tensor, "seq anchor"]]:
    """Targets that features are looked at, and their weights: all, or a fair choice.

    Of many targets, one is drawn from each of equal parts of a sequence's weight: sums over them are unbiased, and no rhythm in
    the data can hide between them.
    """
    targets, most = shares.shape[1], chance.shape[1]
    if targets <= most:
        return torch.arange(targets, device=shares.device).expand_as(shares), shares
    level = (torch.arange(most, device=chance.device) + chance) / most
    least, largest = shares.aminmax()
    if bool((least == 1 / targets) & (largest == 1 / targets)):  # all count alike
        chosen = (level * targets).long()
    else:
        chosen = torch.searchsorted(shares.double().cumsum(1), level.double())
    return chosen.clamp(max=targets - 1), torch.full_like(shares[:, :most], 1 / most)


def at_anchors(
    values: Float[Tensor, "seq target value"], index: Int[Tensor, "seq anchor"]
) -> Float[Tensor, "seq anchor value"]:
    """Pick the anchors among the targets."""
    if index.shape[1] == values.shape[1]:  # all of them
        return values
    return values[torch.arange(len(index), device=index.device)[:, None], index]


@runtime_checkable
class UpToAnchors(Protocol):
    """What single inputs hold beside those up to an anchor, which lies so many steps ahead."""

    @property
    def order(self) -> int:
        """Lags from which it makes no difference where the anchor is."""

    def up_to(self, ahead: int) -> Float[Tensor, "seq time probe"]:
        """Values at every step."""


@dataclass(frozen=True)
class Observed:
    """Targets, residuals and inputs of some sequences.

    Attributes
    ----------
    block
        Number of the block that each sequence counts in.
    times
        Step that each target belongs to.
    shares
        Share of each target in the loss of its sequence; they sum to one.
    planted
        Inputs of mean zero and variance one along the directions of the probes, at every step.
    residual
        Target minus output, in coordinates in which the loss is a plain square.
    towards
        Output direction of each group of probes, in the coordinates of the features' rows.
    along_residual, along_output
        Residual and output along the planted output directions, as they are.
    along
        Which of these directions each probe has.
    chance
        Random numbers in [0, 1) that choose the anchors: fixed for each sequence, whatever runs beside it.
    single
        Where inputs follow from each other, what each of the second half of `planted` holds beside the inputs up to an anchor.
    """

    block: Int[Tensor, "seq"]
    times: Int[Tensor, "seq target"]
    shares: Float[Tensor, "seq target"]
    planted: Float[Tensor, "seq time probe"]
    residual: Float[Tensor, "seq target out"]
    towards: Float[Tensor, "seq target row group"]
    along_residual: Float[Tensor, "seq target direction"]
    along_output: Float[Tensor, "seq target direction"]
    along: tuple[int, ...]
    chance: Float[Tensor, "seq anchor"]
    single: UpToAnchors | None = None

    def with_anchors(self, index: Int[Tensor, "seq anchor"], weights: Float[Tensor, "seq anchor"]) -> Observed:
        """Anchors that were chosen before, of the same shares and by the same numbers."""
        chosen = replace(self)
        chosen.__dict__["anchors"] = index, weights
        return chosen

    @cached_property
    def anchors(self) -> tuple[Int[Tensor, "seq anchor"], Float[Tensor, "seq anchor"]]:
        """Targets that features are looked at, and their weights."""
        return choose_anchors(self.shares, self.chance)

    def at_anchors(self, values: Float[Tensor, "seq target value"]) -> Float[Tensor, "seq anchor value"]:
        """Pick the anchors among the targets."""
        return at_anchors(values, self.anchors[0])

    def rows(
        self,
        features: Float[Tensor, "seq anchor row feature"],
        gradient: Float[Tensor, "seq copy feature"],
        lags: Sequence[int],
    ) -> Rows:
        """Put features at the anchors, and the gradient over all targets, beside what was observed."""
        index, weights = self.anchors
        weighted = self.shares[..., None] * self.residual
        # one row and many copies, or the reverse
        offset = weighted.sum(1).unflatten(1, (gradient.shape[1], features.shape[2]))
        return Rows(
            block=self.block,
            features=features,
            weights=weights,
            times=self.times.gather(1, index),
            planted=self.planted,
            towards=self.at_anchors(self.towards.flatten(2)).unflatten(2, self.towards.shape[2:]),
            gradient=torch.cat((gradient, offset.to(gradient)), dim=2),
            residual=weighted.mul_(self.residual).sum((1, 2)),
            concentration=by_row(lambda shares: shares.square().sum(1), self.shares),
            lagged=self._lagged(lags),
        )

    def _lagged(self, lags: Sequence[int]) -> Float[Tensor, "distinct 6 lag probe"]:
        """Sums over all targets that have an input l steps before, by block; see `Rows.lagged`."""
        blocks = InBlocks.of(self.block, self.shares.device)
        times = self.times[:1] if self.times.stride(0) == 0 else self.times
        given = (self.shares, self.along_residual.mT, self.along_output.mT, self.planted.movedim(2, 0))
        kind = reduce(torch.promote_types, (part.dtype for part in given))
        shares, residual, output, planted = (part.to(kind) for part in given)
        correlations: Callable[..., tuple[Tensor, Tensor]] = _correlations
        if compiled_sums(planted):
            from lagreach.kernels.cpu import correlations as compiled  # late: it brings a compiler along

            correlations = compiled.correlations
        alone, products = correlations(blocks.members, times, shares, residual, output, planted, lags)
        for place, lag in enumerate(lags):
            if self.single is not None and lag < self.single.order:
                held = self.single.up_to(lag).movedim(2, 0).to(planted)
                near = correlations(blocks.members, times, shares, residual, output, held, [lag])[1]
                products[:, :, len(held) :, place] = near[..., 0]
        return torch.stack((alone, products), dim=2).flatten(1, 2).mT


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Put rows behind each other; on a processor, what is one and the same for all is not written out."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0][:1]
    if first.device.type == "cpu" and all(part.stride(0) == 0 and torch.equal(part[:1], first) for part in parts):
        return first.expand(sum(map(len, parts)), *first.shape[1:])
    return torch.cat(tuple(parts))


def _correlations(
    members: Int[Tensor, "block member"],
    times: Int[Tensor, "#seq target"],
    shares: Float[Tensor, "seq target"],
    first: Float[Tensor, "seq direction target"],
    second: Float[Tensor, "seq direction target"],
    inputs: Float[Tensor, "probe seq time"],
    lags: Sequence[int],
) -> tuple[Float[Tensor, "block 3 probe lag"], Float[Tensor, "block 3 probe lag"]]:
    """What `lagreach.kernels.cpu.correlations` is on a processor, for other devices and types.

    ``sum_t w_t r_t z_{t-l}`` for all lags at once is a correlation, hence a product of Fourier transforms; those of a block
    are added up before they are turned back. As many blocks are taken at once as there is room for.
    """
    (probes, _, time), directions = inputs.shape, first.shape[1]
    length = 1 << (time + max(lags) - 1).bit_length()  # zeros behind, so that the end does not meet the beginning
    at, members = torch.as_tensor(list(lags), device=inputs.device), members.to(inputs.device)
    turns = torch.arange(probes, device=inputs.device) % directions
    which = torch.stack((torch.zeros_like(turns), 1 + turns, 1 + directions + turns))
    factors = torch.cat((shares[:, None], first * shares[:, None], second * shares[:, None]), dim=1)
    ours = factors.new_zeros(*factors.shape[:2], time).scatter_add_(2, times[:, None].expand_as(factors), factors)
    alone, products = [], []
    for some in members.split(max(1, ROOM // (members.shape[1] * (ours.shape[1] + probes) * length))):
        index = some.clamp(min=0)
        mine = torch.where(some[..., None, None] >= 0, ours[index], 0.0)  # (block, member, series, time)
        spectra = [torch.fft.rfft(part, length) for part in (mine, inputs.movedim(1, 0)[index])]
        with full_products():
            summed = torch.einsum("bmsf,bmpf->bspf", spectra[0], spectra[1].conj())
        wanted = summed[:, which, torch.arange(probes, device=which.device)]
        products.append(torch.fft.irfft(wanted, length)[..., at].double())
        alone.append(mine.sum(1, dtype=torch.float64).flip(2).cumsum(2).flip(2)[..., at][:, which])
    return torch.cat(alone), torch.cat(products)
