"""Do the targets depend on the input at a lag, whatever the laws of both? By exchanging targets between sequences.

The first test of a forecast flips the signs of covariances by block, as if these varied alike to both sides. Of rare events
or of values with long tails they do not: fourteen blocks without a coincidence of two events are fourteen small negative
covariances. Where the first test may have found something, targets are therefore exchanged within groups of sequences, which
changes nothing if they depend on no input, and what that test says counts. No model is run.

Where targets depend on other lags, what these explain is not exchanged along, since they go together with the old input in a
sequence of its own and not in its partner's. What the lags that look like dependences leave of the targets is exchanged, and of
each such lag what it explains itself stands beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.data.batch import zero_beyond
from lagreach.data.pairs import BlockPlan, plan_blocks
from lagreach.forecasting.plan import BLOCKS, InputCoding, wide_coding
from lagreach.forecasting.single_inputs import SingleInputs
from lagreach.forecasting.target_batches import Measurement
from lagreach.gradients.significance import Significance, flip_test
from lagreach.transport.objective import Objective

TARGETS = 8  # combinations that stand for more outputs or classes
MEMBERS = 8  # of a group that exchanges targets
ROOM = 2**23  # numbers at a time
SUSPECTS = 12  # lags whose part of the targets is taken off, at most
FEW = 4  # targets of a sequence, up to which products with all lags are made one by one


def exchange_test(
    measurement: Measurement, positions: int, outputs: int, suspects: Sequence[int], flips: int, seed: int
) -> Significance | None:
    """Test all lags together; None where these sequences cannot tell.

    `positions` are those of the model's output for as many steps as the first sequences have, `outputs` its values at each, and
    `suspects` the lags that look like dependences, the clearest first.
    """
    plan = measurement.plan
    dealt = plan_blocks(plan.sequences, BLOCKS, seed, members=MEMBERS, seen=plan.seen).subsample(len(plan))
    if dealt.untold:
        return None
    exchanged = _Exchanged(measurement, positions, outputs, dealt, tuple(suspects[:SUSPECTS]), seed)
    means = exchanged.means()
    return flip_test(means, flips=flips, generator=np.random.default_rng(seed))


@dataclass(frozen=True)
class _Exchanged:
    """Contrasts of own targets with those of the partners, times old inputs, by block, pairing and lag."""

    measurement: Measurement
    positions: int
    outputs: int
    dealt: BlockPlan
    suspects: tuple[int, ...]
    seed: int

    def means(self) -> Float[np.ndarray, "block pairing lag coordinate"]:
        """Go through all groups."""
        dealt, lags = self.dealt, list(self.measurement.plan.lags)
        codes, values = self._coding.project.shape[1], self._table.shape[1]
        home = dealt.blocks[:: dealt.members // 2]
        sums = torch.zeros(dealt.count, dealt.members - 1, len(lags), codes, values, dtype=torch.float64)
        explained = self._explained()
        for start, piece in self._pieces():
            left, common = piece.left(explained), _common(piece.weights, dealt.members)
            contrast = _contrasts(left, common, dealt.members)
            block = torch.from_numpy(np.repeat(home[start : start + self._together], dealt.members))
            apart = {lag for lag in lags if lag in self.suspects or piece.up_to_anchors(lag)}
            for place, lag in enumerate(lags):
                if lag not in apart:
                    continue
                own = common[..., None] * piece.explained_by(lag, explained)[:, None]
                made = _products(piece.held(lag, codes), contrast + own, piece.times, [lag])
                sums[:, :, place : place + 1].index_add_(0, block, made)
            if others := [place for place, lag in enumerate(lags) if lag not in apart]:
                made = _products(piece.old[..., -codes:], contrast, piece.times, [lags[place] for place in others])
                sums[:, :, others] += torch.zeros_like(sums[:, :, others]).index_add_(0, block, made)
        counts = torch.from_numpy(np.bincount(home, minlength=dealt.count) * dealt.members)
        return (sums / counts.view(-1, 1, 1, 1, 1)).flatten(3).numpy()

    def _explained(self) -> _Explained:
        """What the suspects explain of the targets, all together."""
        squares: Tensor | float = 0.0
        products: Tensor | float = 0.0
        for _, piece in self._pieces():
            given, count = piece.given(self.suspects), (piece.weights > 0).double()[..., None]
            squares = squares + (given * count).flatten(0, 1).mT @ given.flatten(0, 1)
            products = products + (given * count).flatten(0, 1).mT @ piece.values.flatten(0, 1)
        return _Explained(self.suspects, torch.linalg.pinv(torch.as_tensor(squares), hermitian=True) @ products)

    def _pieces(self) -> Iterator[tuple[int, _Piece]]:
        """Some groups at a time, and the number of the first."""
        plan, scale = self.measurement.plan, None
        for start in range(0, len(self.dealt.groups), self._together):
            numbers = self.dealt.groups[start : start + self._together]
            batch = zero_beyond(plan.sequences.read(numbers.ravel().tolist()))
            planted, single = self._coding.planted_and_single(batch)
            found = self.measurement._targets(self._shape(len(batch.x), batch.x.shape[1]), torch.float64, batch)
            values, weights = self._values(found.objective), found.shares.double().cpu()
            if scale is None:  # outputs in units of their own
                scale = values[weights > 0].std(0).clamp(min=1e-300)
            yield start, _Piece(planted.double(), single, values / scale, weights, found.times.cpu())

    @cached_property
    def _together(self) -> int:
        """Groups at a time."""
        codes, values = self._coding.project.shape[1], self._table.shape[1]
        each = 2 * self.measurement.plan.time * (codes + (self.dealt.members - 1) * values * (1 + codes))
        return max(1, ROOM // (self.dealt.members * each))

    @cached_property
    def _coding(self) -> InputCoding:
        plan = self.measurement.plan
        return wide_coding(plan, self.seed) if plan.coding.tokens else plan.coding

    def _shape(self, count: int, time: int) -> tuple[int, int, int]:
        sample = self.measurement.plan.sample()
        longest = sample.x.shape[1] if sample.lengths is None else int(sample.lengths.max())
        per_step = self.positions in (sample.x.shape[1], longest) and not self.measurement.at_end
        return count, time if per_step else self.positions, self.outputs

    @cached_property
    def _table(self) -> Float[Tensor, "output target"]:
        if self.measurement.loss != "cross_entropy" and self.outputs <= TARGETS:
            return torch.eye(self.outputs, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed + 2)
        return torch.randn(self.outputs, TARGETS, generator=generator, dtype=torch.float64)

    def _values(self, objective: Objective) -> Float[Tensor, "seq target value"]:
        y = objective.y.detach().cpu()
        if not y.is_floating_point():
            return self._table[y.clamp(min=0)]
        return torch.where(objective.weights.cpu()[..., None] > 0, y.double(), 0.0) @ self._table


@dataclass(frozen=True)
class _Explained:
    """What inputs at some lags explain of the targets, linearly; a constant stands behind them."""

    lags: tuple[int, ...]
    slopes: Float[Tensor, "given value"]


@dataclass(frozen=True)
class _Piece:
    """Some sequences: inputs (and what each holds alone behind them), targets, their weights and their steps."""

    old: Float[Tensor, "seq time code"]
    single: SingleInputs | None
    values: Float[Tensor, "seq target value"]
    weights: Float[Tensor, "seq target"]
    times: Int[Tensor, "seq target"]

    def given(self, lags: Sequence[int]) -> Float[Tensor, "seq target given"]:
        """Inputs at some lags, and a one."""
        inputs = self.old if self.single is None else self.old[..., : self.old.shape[2] // 2]
        old = _before(inputs, self.times, lags).flatten(2)
        return torch.cat((old, torch.ones_like(old[..., :1])), dim=2)

    def left(self, explained: _Explained) -> Float[Tensor, "seq target value"]:
        """Targets less what is explained."""
        return self.values - self.given(explained.lags) @ explained.slopes

    def explained_by(self, lag: int, explained: _Explained) -> Float[Tensor, "seq target value"]:
        """What one lag explains; nothing if it is no suspect."""
        if lag not in explained.lags:
            return torch.zeros_like(self.values)
        given = self.given([lag])[..., :-1]
        start = explained.lags.index(lag) * given.shape[2]
        return given @ explained.slopes[start : start + given.shape[2]]

    def up_to_anchors(self, lag: int) -> bool:
        """Whether what an input of this lag holds alone depends on where the anchor is."""
        return self.single is not None and lag < self.single.order

    def held(self, lag: int, codes: int) -> Float[Tensor, "seq time code"]:
        """Inputs, or what each holds alone."""
        if self.single is not None and self.up_to_anchors(lag):
            return self.single.up_to(lag).double()
        return self.old[..., -codes:]


def _common(weights: Float[Tensor, "seq target"], members: int) -> Float[Tensor, "seq pairing target"]:
    """Weights of the targets that a sequence and its partner have both, in every pairing."""
    own = weights.unflatten(0, (-1, members))
    made = []
    for shift in range(1, members):
        others = own[:, [member ^ shift for member in range(members)]]
        made.append(torch.where((own > 0) & (others > 0), (own + others) / 2, 0.0))
    return torch.stack(made, dim=2).flatten(0, 1)


def _contrasts(
    values: Float[Tensor, "seq target value"], common: Float[Tensor, "seq pairing target"], members: int
) -> Float[Tensor, "seq pairing target value"]:
    """Each one's targets less its partner's, in every pairing."""
    own = values.unflatten(0, (-1, members))
    apart = [own - own[:, [member ^ shift for member in range(members)]] for shift in range(1, members)]
    return common[..., None] * torch.stack(apart, dim=2).flatten(0, 1)


def _before(
    values: Float[Tensor, "seq time code"], times: Int[Tensor, "seq target"], lags: Sequence[int]
) -> Float[Tensor, "seq target lag code"]:
    """Values so many steps before; zero where there are none."""
    then = times[:, :, None] - torch.tensor(list(lags), dtype=torch.long)
    seq = torch.arange(len(values))[:, None, None]
    return torch.where((then >= 0)[..., None], values[seq, then.clamp(min=0)], 0.0)


def _products(
    old: Float[Tensor, "seq time code"],
    contrast: Float[Tensor, "seq pairing target value"],
    times: Int[Tensor, "seq target"],
    lags: Sequence[int],
) -> Float[Tensor, "seq pairing lag code value"]:
    """Sums over targets of each sequence of the contrasts, times the inputs so many steps before."""
    if contrast.shape[2] <= FEW or len(lags) == 1:
        return torch.einsum("nalc,ngav->nglcv", _before(old, times, lags), contrast)
    length = 1 << (old.shape[1] + max(lags) - 1).bit_length()
    placed = contrast.new_zeros(*contrast.shape[:2], old.shape[1], contrast.shape[3])
    placed.scatter_add_(2, times[:, None, :, None].expand_as(contrast), contrast)
    spectra = [torch.fft.rfft(part.transpose(-1, -2), length) for part in (old, placed)]
    products = torch.einsum("ncf,ngvf->ngcvf", spectra[0].conj(), spectra[1])
    return torch.fft.irfft(products, length)[..., list(lags)].movedim(-1, 2)
