"""What one pass over some sequences shows beside the features: where targets are, old inputs, and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.statistics.linear_share.moments import Rows

ANCHORS = 64  # steps of a sequence at which features are looked at; all of them where there are fewer


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
        Residual and output along the output direction of each probe, as they are.
    chance
        Random numbers in [0, 1) that choose the anchors: fixed for each sequence, whatever runs beside it.
    """

    block: Int[Tensor, "seq"]
    times: Int[Tensor, "seq target"]
    shares: Float[Tensor, "seq target"]
    planted: Float[Tensor, "seq time probe"]
    residual: Float[Tensor, "seq target out"]
    towards: Float[Tensor, "seq target row group"]
    along_residual: Float[Tensor, "seq target probe"]
    along_output: Float[Tensor, "seq target probe"]
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

    def rows(
        self,
        features: Float[Tensor, "seq anchor row feature"],
        gradient: Float[Tensor, "seq copy feature"],
        lags: Sequence[int],
    ) -> Rows:
        """Put features at the anchors, and the gradient over all targets, beside what was observed."""
        index, weights = self.anchors()
        old, inside = _before(self.planted, self.times.gather(1, index), lags)
        mean = torch.einsum("st,sto->so", self.shares, self.residual)
        offset = mean.unflatten(1, (gradient.shape[1], features.shape[2]))  # one row and many copies, or the reverse
        at = index[..., None, None].expand(-1, -1, *self.towards.shape[2:])
        return Rows(
            block=self.block,
            features=features,
            weights=weights,
            old=old,
            inside=inside,
            towards=self.towards.gather(1, at),
            gradient=torch.cat((gradient, offset.to(gradient)), dim=2),
            residual=torch.einsum("st,sto->s", self.shares, self.residual.square()),
            concentration=self.shares.square().sum(1),
            lagged=self._lagged(lags),
        )

    def _lagged(self, lags: Sequence[int]) -> Float[Tensor, "seq 6 lag probe"]:
        """Sums over all targets that have an input l steps before; see `Rows.lagged`."""
        weights, planted = self.shares[..., None].double(), self.planted.double()
        time, probes = planted.shape[1:]
        factors = torch.cat((weights, weights * self.along_residual, weights * self.along_output), dim=2)
        steps = torch.arange(time, device=self.times.device)
        every_step = self.times.shape[1] == time and bool((self.times == steps).all())
        parts = []
        for lag in lags:
            if every_step:
                own, z = factors[:, lag:], planted[:, : time - lag]
            else:
                before = (self.times - lag).clamp(min=0)[..., None].expand(-1, -1, probes)
                own, z = factors * (self.times >= lag)[..., None], planted.gather(1, before)
            w, r, o = own.sum(1).split((1, probes, probes), dim=1)
            products = own.transpose(1, 2) @ z
            zr, zo = (part.diagonal(dim1=1, dim2=2) for part in products[:, 1:].split(probes, dim=1))
            parts.append(torch.stack((w.expand(-1, probes), products[:, 0], r, zr, o, zo), dim=1))
        return torch.stack(parts, dim=2)


def _before(
    planted: Float[Tensor, "seq time probe"], times: Int[Tensor, "seq anchor"], lags: Sequence[int]
) -> tuple[Float[Tensor, "seq anchor lag probe"], Float[Tensor, "seq anchor lag"]]:
    """Planted inputs l steps before, and where there are such."""
    at = times[..., None] - torch.as_tensor(list(lags), device=times.device)  # (seq, anchor, lag)
    inside = (at >= 0).to(planted)
    index = at.clamp(min=0).flatten(1)[..., None].expand(-1, -1, planted.shape[2])
    old = planted.gather(1, index).unflatten(1, at.shape[1:])
    return old * inside[..., None], inside
