"""What changes at a model's outputs when sequences swap their targets, and what of it is carried back everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.gradients.contrast import exchanged, step_weights, swapped
from lagreach.transport.objective import Objective
from lagreach.whole_model.anchors import draw_anchors, pair_streams
from lagreach.whole_model.measurement_plan import PairBatch, WholeModelPlan
from lagreach.whole_model.outputs import cotangents

Rows = tuple[Tensor, Tensor]  # of factors: what arrived (row, slot, signal, width), and what was read (row, slot, ...)


def swaps_of(
    piece: PairBatch, others: Sequence[Objective], weights: Tensor | None
) -> tuple[list[Float[Tensor, "seq position out"]], Float[Tensor, "seq position"]]:
    """What changes at the outputs with the targets of each partner, and the shares of the steps that all of them have."""
    swaps = []
    for other in others:
        with_own, with_other, shared = swapped(piece.objective, other, weights)
        change = cotangents(partial(exchanged, with_own, with_other), piece.output)[0]
        swaps.append(change * shared[:, None, None])
    return swaps, step_weights(with_own, piece.output.shape[1]) * shared[:, None]


def both(values: Tensor, piece: PairBatch) -> Tensor:
    """Give what belongs to a pair to both of its sequences."""
    return values.repeat_interleave(2, dim=0).to(piece.output.device)


@dataclass(frozen=True)
class Swap:
    """The targets of a piece, swapped between partners, at the steps that both have.

    `common` are the shares of these steps. `everywhere` is what changes at the outputs, on average over all pairings of a group
    where the others have the same steps and no lengths that their targets may depend on.
    """

    own: Objective
    other: Objective
    shared: Tensor
    common: Float[Tensor, "seq position"]
    everywhere: Float[Tensor, "seq position out"]

    @classmethod
    def of(cls, plan: WholeModelPlan, piece: PairBatch, rows: np.ndarray) -> Swap:
        """Swap the targets of a piece."""
        others, weights = plan.exchanged(rows, piece)
        own, other, shared = swapped(piece.objective, others[0])
        common = step_weights(own, piece.output.shape[1]) * shared[:, None]
        swap = cls(own, other, shared, common, piece.output)
        everywhere = swap.at(piece.output)
        if weights is not None and piece.batch.lengths is None:
            alike = (own.weights == weights).all(1)[:, None, None]
            everywhere = torch.where(alike, torch.stack(swaps_of(piece, others, weights)[0]).mean(0), everywhere)
        return replace(swap, everywhere=everywhere)

    def at(self, output: Float[Tensor, "seq position out"]) -> Float[Tensor, "seq position out"]:
        """What changes at some outputs with the partner's targets."""
        change = cotangents(partial(exchanged, self.own, self.other), output)[0]
        return change * self.shared[:, None, None]


def swapped_everywhere(
    plan: WholeModelPlan, piece: PairBatch, swap: Swap, lags: Sequence[int], reads: Sequence[Tensor]
) -> list[list[Rows]]:
    """Rows of factors for each lag, of swapped targets at all anchors of the first pass, with a minus sign.

    At the anchors of an exchange swapped targets have the same mean, whatever the data; what they say there besides is chance
    that the exchange shares. So a multiple of the difference can be taken off the exchange (`Exchanged.controlled`). `reads`
    are, for each lag, the inputs, or what their neighbours leave of them.
    """
    seq, time = torch.arange(len(piece.batch), device=piece.output.device), piece.inside.shape[1]
    usable = (swap.common > 0)[::2] & plan.used.to(swap.common.device)
    anchors = draw_anchors(usable, plan.anchors, pair_streams(piece.batch.x, piece.batch.lengths, plan.seed))
    made: list[list[Rows]] = [[] for _ in lags]
    for number in range(anchors.count):
        position = both(torch.from_numpy(anchors.position[:, number]), piece)
        weight = both(torch.from_numpy(anchors.weight[:, number]), piece)
        gradient = piece.pull(position, swap.everywhere[seq, position])
        for rows, lag, read in zip(made, lags, reads, strict=True):
            step = piece.stand[seq, position] - lag
            reached = step.clamp(0, time - 1)
            seen = (step >= 0) & piece.inside[seq, reached]
            factor = -(weight * (seen & seen[piece.partner])).to(gradient)
            rows.append(((factor[:, None] * gradient[seq, reached])[:, None, None], read[seq, reached][:, None]))
    return made
