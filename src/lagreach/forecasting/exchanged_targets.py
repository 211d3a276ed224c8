"""Do the targets depend on the input at a lag, whatever the laws of both? By exchanging targets between sequences.

The first test of a forecast flips the signs of covariances by block, as if these varied alike to both sides. Of rare events
or of values with long tails they do not: fourteen blocks without a coincidence of two events are fourteen small negative
covariances. Where the first test may have found something, targets are therefore exchanged within groups of sequences, which
changes nothing if they depend on no input, and what that test says counts. No model is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.data.batch import zero_beyond
from lagreach.data.pairs import BlockPlan, plan_blocks
from lagreach.forecasting.plan import BLOCKS, wide_coding
from lagreach.forecasting.target_batches import Measurement
from lagreach.gradients.significance import Significance, flip_test
from lagreach.transport.objective import Objective

TARGETS = 8  # combinations that stand for more outputs or classes
MEMBERS = 8  # of a group that exchanges targets
ROOM = 2**23  # numbers at a time
FEW = 4  # targets of a sequence, up to which products with all lags are made one by one


def exchange_test(measurement: Measurement, positions: int, outputs: int, flips: int, seed: int) -> Significance | None:
    """Test all lags together; None where these sequences cannot tell.

    `positions` are those of the model's output for as many steps as the first sequences have, `outputs` its values at each.
    """
    plan = measurement.plan
    dealt = plan_blocks(plan.sequences, BLOCKS, seed, members=MEMBERS).subsample(len(plan))
    if dealt.untold:
        return None
    exchanged = _Exchanged(measurement, positions, outputs, dealt, seed)
    means = exchanged.means()
    return flip_test(means, flips=flips, generator=np.random.default_rng(seed))


@dataclass(frozen=True)
class _Exchanged:
    """Contrasts of own targets with those of the partners, times old inputs, by block, pairing and lag."""

    measurement: Measurement
    positions: int
    outputs: int
    dealt: BlockPlan
    seed: int

    def means(self) -> Float[np.ndarray, "block pairing lag coordinate"]:
        """Go through all groups."""
        dealt, plan = self.dealt, self.measurement.plan
        coding = wide_coding(plan, self.seed) if plan.coding.tokens else plan.coding
        codes, lags, pairings = coding.project.shape[1], list(plan.lags), dealt.members - 1
        table = self._table()
        home = dealt.blocks[:: dealt.members // 2]
        sums = torch.zeros(dealt.count, pairings, len(lags), codes, table.shape[1], dtype=torch.float64)
        counts, scale = np.bincount(home, minlength=dealt.count) * dealt.members, None
        each = dealt.members * 2 * plan.time * (codes + pairings * table.shape[1] * (1 + codes))
        together = max(1, ROOM // each)
        for start in range(0, len(home), together):
            numbers = dealt.groups[start : start + together]
            batch = zero_beyond(plan.sequences.read(numbers.ravel().tolist()))
            planted, single = coding.planted_and_single(batch)
            old = planted.double()[..., -codes:]
            found = self.measurement._targets(self._shape(len(batch.x), batch.x.shape[1]), torch.float64, batch)
            values, weights = self._values(found.objective, table), found.shares.double().cpu()
            if scale is None:  # outputs in units of their own
                scale = values[weights > 0].std(0).clamp(min=1e-300)
            contrast = _contrasts(values / scale, weights, dealt.members)
            block = torch.from_numpy(np.repeat(home[start : start + together], dealt.members))
            times = found.times.cpu()
            near = [lag for lag in lags if single is not None and lag < single.order]
            for lag in near:
                place = lags.index(lag)
                assert single is not None
                held = single.up_to(lag).double()
                sums[:, :, place : place + 1].index_add_(0, block, _products(held, contrast, times, [lag]))
            far = [place for place, lag in enumerate(lags) if lag not in near]
            if far:
                made = _products(old, contrast, times, [lags[place] for place in far])
                sums[:, :, far] += torch.zeros_like(sums[:, :, far]).index_add_(0, block, made)
        return (sums / torch.from_numpy(counts).view(-1, 1, 1, 1, 1)).flatten(3).numpy()

    def _shape(self, count: int, time: int) -> tuple[int, int, int]:
        sample = self.measurement.plan.sample()
        longest = sample.x.shape[1] if sample.lengths is None else int(sample.lengths.max())
        per_step = self.positions in (sample.x.shape[1], longest) and not self.measurement.at_end
        return count, time if per_step else self.positions, self.outputs

    def _table(self) -> Float[Tensor, "output target"]:
        if self.measurement.loss != "cross_entropy" and self.outputs <= TARGETS:
            return torch.eye(self.outputs, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed + 2)
        return torch.randn(self.outputs, TARGETS, generator=generator, dtype=torch.float64)

    def _values(self, objective: Objective, table: Tensor) -> Float[Tensor, "seq target value"]:
        y = objective.y.detach().cpu()
        if not y.is_floating_point():
            return table[y.clamp(min=0)]
        return torch.where(objective.weights.cpu()[..., None] > 0, y.double(), 0.0) @ table


def _contrasts(
    values: Float[Tensor, "seq target value"], weights: Float[Tensor, "seq target"], members: int
) -> Float[Tensor, "seq pairing target value"]:
    """Each one's targets less those of its partner, in every pairing, where both have some."""
    own, others = (part.unflatten(0, (-1, members)) for part in (values, weights))
    made = []
    for shift in range(1, members):
        partner = [member ^ shift for member in range(members)]
        common = torch.where((others > 0) & (others[:, partner] > 0), (others + others[:, partner]) / 2, 0.0)
        made.append(common[..., None] * (own - own[:, partner]))
    return torch.stack(made, dim=2).flatten(0, 1)


def _products(
    old: Float[Tensor, "seq time code"],
    contrast: Float[Tensor, "seq pairing target value"],
    times: Int[Tensor, "seq target"],
    lags: Sequence[int],
) -> Float[Tensor, "seq pairing lag code value"]:
    """Sums over targets of each sequence of the contrasts, times the inputs so many steps before."""
    if contrast.shape[2] <= FEW or len(lags) == 1:
        then = times[:, :, None] - torch.tensor(list(lags))
        seq = torch.arange(len(old))[:, None, None]
        before = torch.where((then >= 0)[..., None], old[seq, then.clamp(min=0)], 0.0)
        return torch.einsum("nalc,ngav->nglcv", before, contrast)
    length = 1 << (old.shape[1] + max(lags) - 1).bit_length()
    placed = contrast.new_zeros(*contrast.shape[:2], old.shape[1], contrast.shape[3])
    placed.scatter_add_(2, times[:, None, :, None].expand_as(contrast), contrast)
    spectra = [torch.fft.rfft(part.transpose(-1, -2), length) for part in (old, placed)]
    products = torch.einsum("ncf,ngvf->ngcvf", spectra[0].conj(), spectra[1])
    return torch.fft.irfft(products, length)[..., list(lags)].movedim(-1, 2)
