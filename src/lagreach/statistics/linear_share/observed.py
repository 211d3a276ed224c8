"""What one pass over some sequences shows beside the features: where targets are, old inputs, and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from lagreach.statistics.linear_share.moments import InBlocks, Rows, compiled_sums

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
    if bool((shares == 1 / targets).all()):  # all count alike
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
        mean = (self.shares[:, None] @ self.residual)[:, 0]
        offset = mean.unflatten(1, (gradient.shape[1], features.shape[2]))  # one row and many copies, or the reverse
        return Rows(
            block=self.block,
            features=features,
            weights=weights,
            times=self.times.gather(1, index),
            planted=self.planted,
            towards=self.at_anchors(self.towards.flatten(2)).unflatten(2, self.towards.shape[2:]),
            gradient=torch.cat((gradient, offset.to(gradient)), dim=2),
            residual=(self.shares * self.residual.square().sum(2)).sum(1),
            concentration=self.shares.square().sum(1),
            lagged=self._lagged(lags),
        )

    def _lagged(self, lags: Sequence[int]) -> Float[Tensor, "distinct 6 lag probe"]:
        """Sums over all targets that have an input l steps before, by block; see `Rows.lagged`.

        ``sum_t w_t r_t z_{t-l}`` for all lags at once is a correlation, hence a product of Fourier transforms; those of a block
        are added up before they are turned back.
        """
        time, device = self.planted.shape[1], self.shares.device
        blocks, at = InBlocks.of(self.block, device), torch.as_tensor(list(lags), device=device)
        every = torch.arange(time, device=device)
        at_every_step = self.times.shape[1] == time and bool((self.times == every).all())

        def by_step(kinds: list[Tensor]) -> Float[Tensor, "block member kind direction time"]:
            factors = torch.stack([kind.mT for kind in kinds], dim=1).mul_(self.shares[:, None, None])
            if at_every_step:
                return blocks.counted(factors)
            spread = factors.new_zeros(*factors.shape[:3], time)
            spread.scatter_add_(3, self.times[:, None, None].expand_as(factors), factors)
            return blocks.counted(spread)

        planted = blocks(self.planted.mT)  # (block, member, probe, step)
        ours, steps = (
            by_step([self.along_residual, self.along_output]),
            by_step([torch.ones_like(self.shares[..., None])]),
        )
        products = _correlations(ours, planted, at)  # (block, kind, probe, lag)
        if at_every_step and blocks.index is None and bool((self.shares == self.shares[0, 0]).all()):
            counted = planted.sum(1).double().cumsum(2)[..., time - 1 - at] * self.shares[0, 0]
        else:
            counted = _correlations(steps, planted, at)[:, 0]
        probes, directions = planted.shape[2], ours.shape[3]
        turns = torch.arange(probes, device=device) % directions
        since = [
            part.sum(1, dtype=torch.float64).flip(3).cumsum(3).flip(3)[..., at] for part in (steps, ours)
        ]  # from each lag on
        alone = torch.cat((since[0].expand(-1, -1, probes, -1), since[1][:, :, turns]), dim=1)
        return torch.stack((alone, torch.cat((counted[:, None], products), dim=1)), dim=2).flatten(1, 2).mT


def _correlations(
    ours: Float[Tensor, "block member kind direction time"],
    theirs: Float[Tensor, "block member probe time"],
    lags: Int[Tensor, "lag"],
) -> Float[Tensor, "block kind probe lag"]:
    """Sums over steps and members of ours with theirs some lags before; probes take turns among the directions."""
    length = 2 * ours.shape[-1]  # zeros behind, so that the end does not meet the beginning
    spectra = [
        _summed_spectra(*(torch.fft.rfft(part, length) for part in pair))
        for pair in zip(ours, theirs, strict=True)  # what one block needs stays in the cache
    ]
    return torch.fft.irfft(torch.stack(spectra), length)[..., lags].double()


def _summed_spectra(
    ours: Complex[Tensor, "member kind direction f"], theirs: Complex[Tensor, "member probe f"]
) -> Complex[Tensor, "kind probe f"]:
    """Spectra times the conjugates of others, summed over members; probes take turns among the directions."""
    kind = torch.promote_types(ours.dtype, theirs.dtype)
    ours, theirs = ours.to(kind), theirs.to(kind)
    if compiled_sums(ours.real):
        from lagreach.kernels.cpu.lagged_sums import summed_spectra  # late: it brings a compiler along

        return summed_spectra(ours, theirs)
    turns = torch.arange(theirs.shape[1], device=theirs.device) % ours.shape[2]
    return (ours[:, :, turns] * theirs[:, None].conj()).sum(0)
