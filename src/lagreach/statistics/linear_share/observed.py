"""What one pass over some sequences shows beside the features: where targets are, old inputs, and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.statistics.linear_share.moments import Rows, rows_of_blocks

ANCHORS = 64  # steps of a sequence at which features are looked at; all of them where there are fewer


def anchor_chance(seed: int, ranks: np.ndarray) -> Float[Tensor, "seq anchor"]:
    """Random numbers that choose the anchors: a stream for every sequence, by its place in an order that comes from contents.

    So the choice does not depend on what runs beside a sequence, nor is it stored.
    """
    streams = [np.random.Philox(key=seed % 2**64, counter=[0, 0, 1, rank]) for rank in ranks.tolist()]
    return torch.from_numpy(np.stack([np.random.Generator(stream).random(ANCHORS) for stream in streams]))


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

    def anchors(self) -> tuple[Int[Tensor, "seq anchor"], Float[Tensor, "seq anchor"]]:
        """Targets that features are looked at, and their weights: all, or a fair choice.

        Of many targets, one is drawn from each of equal parts of a sequence's weight: sums over them are unbiased, and no
        rhythm in the data can hide between them.
        """
        targets, most = self.shares.shape[1], self.chance.shape[1]
        if targets <= most:
            return torch.arange(targets, device=self.shares.device).expand_as(self.shares), self.shares
        level = (torch.arange(most, device=self.chance.device) + self.chance) / most
        chosen = torch.searchsorted(self.shares.double().cumsum(1), level.double()).clamp(max=targets - 1)
        return chosen, torch.full_like(self.shares[:, :most], 1 / most)

    def at_anchors(self, values: Float[Tensor, "seq target value"]) -> Float[Tensor, "seq anchor value"]:
        """Pick the anchors among the targets."""
        if self.shares.shape[1] <= self.chance.shape[1]:
            return values
        return values.gather(1, self.anchors()[0][..., None].expand(-1, -1, values.shape[2]))

    def rows(
        self,
        features: Float[Tensor, "seq anchor row feature"],
        gradient: Float[Tensor, "seq copy feature"],
        lags: Sequence[int],
    ) -> Rows:
        """Put features at the anchors, and the gradient over all targets, beside what was observed."""
        index, weights = self.anchors()
        old, inside = _before(self.planted, self.times.gather(1, index), lags)
        mean = (self.shares[:, None] @ self.residual)[:, 0]
        offset = mean.unflatten(1, (gradient.shape[1], features.shape[2]))  # one row and many copies, or the reverse
        return Rows(
            block=self.block,
            features=features,
            weights=weights,
            old=old,
            inside=inside,
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
        time, directions = self.planted.shape[1], self.along_residual.shape[2]
        shares = self.shares[..., None]
        factors = torch.cat((shares, shares * self.along_residual, shares * self.along_output), dim=2)
        by_step = factors.new_zeros(len(factors), factors.shape[2], time)
        by_step.scatter_add_(2, self.times[:, None].expand(-1, factors.shape[2], -1), factors.transpose(1, 2))
        members = rows_of_blocks(self.block, by_step.device)

        def by_block(values: Tensor) -> Tensor:
            exact = torch.complex128 if values.is_complex() else torch.float64
            return torch.stack([values[rows_of].sum(0, dtype=exact) for _, rows_of in members])

        length = 2 * time  # zeros behind, so that the end does not meet the beginning
        ours = torch.fft.rfft(by_step, length)
        theirs = torch.fft.rfft(self.planted.transpose(1, 2), length).conj()
        residual, output = ([1 + start + part for part in self.along] for start in (0, directions))
        spectra = (ours[:, :1] * theirs, ours[:, residual] * theirs, ours[:, output] * theirs)
        at = torch.as_tensor(list(lags), device=by_step.device)
        z, zr, zo = (torch.fft.irfft(by_block(part), length)[..., at] for part in spectra)
        sums = by_block(by_step).flip(2).cumsum(2).flip(2)[..., at]  # from each lag on
        w, r, o = sums[:, :1].expand_as(z), sums[:, residual], sums[:, output]
        return torch.stack((w, z, r, zr, o, zo), dim=1).transpose(2, 3)


def _before(
    planted: Float[Tensor, "seq time probe"], times: Int[Tensor, "seq anchor"], lags: Sequence[int]
) -> tuple[Float[Tensor, "seq anchor lag probe"], Float[Tensor, "seq anchor lag"]]:
    """Planted inputs l steps before, and where there are such."""
    at = times[..., None] - torch.as_tensor(list(lags), device=times.device)  # (seq, anchor, lag)
    inside = (at >= 0).to(planted)
    index = at.clamp(min=0).flatten(1)[..., None].expand(-1, -1, planted.shape[2])
    old = planted.gather(1, index).unflatten(1, at.shape[1:])
    return old * inside[..., None], inside
