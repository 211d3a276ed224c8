"""Rows of a layer that are not in the order of the batch: models that sort their sequences before they pack them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from lagreach.adapters.calling import agreement
from lagreach.adapters.view import Bound, OwnUse, View
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan_stack


def sequence_of_rows(bound: Bound, sequences: int) -> Int[Tensor, "row"]:
    """Number of the sequence whose output each row of the layer makes.

    A random sum of the outputs is differentiated by the states twice, once with every sequence's share multiplied by its
    number: the ratio of the two gradients of a row is that number. Rows without a gradient take what is left, in order.
    """
    recurrence = bound.recurrence
    with torch.no_grad():
        states = scan_stack(recurrence.stack, bound.x, recurrence.initial_state(bound.x), recurrence.params)
    with torch.enable_grad():
        leaves = states.detach().requires_grad_()
        output = recurrence.head(leaves, {name: p.detach() for name, p in recurrence.head_params.items()})
        draw = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        shares = (output.double() * draw.to(output.device)).flatten(1).sum(1)
        numbers = torch.arange(1, sequences + 1, device=shares.device, dtype=torch.float64)
        plain = torch.autograd.grad(shares.sum(), leaves, retain_graph=True, materialize_grads=True)[0]
        numbered = torch.autograd.grad((numbers * shares).sum(), leaves, materialize_grads=True)[0]
    plain, numbered = (gradient.flatten(1).double().cpu() for gradient in (plain, numbered))
    size = plain.abs().amax(1, keepdim=True)
    reached = size[:, 0] > 0
    plain, numbered = (torch.where(reached[:, None], gradient / size, 0.0) for gradient in (plain, numbered))
    ratio = (plain * numbered).sum(1) / plain.square().sum(1).clamp(min=1e-300) - 1
    number = ratio.round().long()
    mixed = reached & ((ratio - number).abs() > 0.1)
    if bool(mixed.any()) or len(set(number[reached].tolist())) < int(reached.sum()):
        raise UnsupportedError(
            "rows of the recurrent layer are not single sequences of the batch",
            got=f"row {int(mixed.nonzero()[0]) if bool(mixed.any()) else 0} makes outputs of several sequences",
            fix="let every sequence of the batch be one row of the layer",
        )
    left = [n for n in range(sequences) if n not in set(number[reached].tolist())]
    number[~reached] = torch.tensor(left, dtype=torch.long)
    return number


class SortedView(View):
    """A recurrence whose model sorts the sequences inside; bound, its rows are in the order of the batch again."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.name, self.local, self.template = view.name, view.local, view.template

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse | None:
        """Gradients of the weights: sums over sequences, whatever their order."""
        return self.view.trained(batch, losses)

    def bind(self, batch: Batch) -> Bound:
        """Bind the recurrence, and put its rows back into the order of the batch."""
        bound = self.view.bind(batch)
        number = sequence_of_rows(bound, len(batch)).to(bound.x.device)
        row, recurrence = number.argsort(), bound.recurrence
        initial = recurrence.initial_state(bound.x)
        return Bound(
            replace(
                recurrence,
                head=lambda states, params: recurrence.head(states[number], params),
                initial_state=lambda _: initial[row],
            ),
            bound.x[row],
            None if bound.lengths is None else bound.lengths[row.to(bound.lengths.device)],
        )


def in_batch_order(views: list[View], sample: Batch) -> list[View]:
    """Views of one module whose rows are in the order of the batch: the views themselves, unless their model sorts sequences.

    The sample is bound as it is and turned round: whatever a model sorts by, its rows then do not turn round with it.
    """
    if len(sample) < 2:
        return views
    turned = sample.select(range(len(sample) - 1, -1, -1))
    bounds = [views[0].bind(batch) for batch in (sample, turned)]
    if len(bounds[0].x) != len(sample) or _turn_round_together(*bounds):
        return views
    return [SortedView(view) if _is_sorted(view, sample, turned) else view for view in views]


def _is_sorted(view: View, *batches: Batch) -> bool:
    """Whether rows of the layer make outputs of other sequences of a batch; never, if they make none at all."""
    return any(sequence_of_rows(view.bind(one), len(one)).tolist() != list(range(len(one))) for one in batches)


def _turn_round_together(bound: Bound, turned: Bound) -> bool:
    """Whether the layer's inputs, lengths and initial states are those of the other order, turned round."""
    tolerance = agreement(bound.x.dtype)
    initial, turned_initial = (b.recurrence.initial_state(b.x) for b in (bound, turned))
    pairs = [(bound.x, turned.x), (initial, turned_initial)]
    if bound.lengths is not None and turned.lengths is not None:
        pairs.append((bound.lengths.double(), turned.lengths.double()))
    return all(
        one.shape == other.shape and torch.allclose(one, other.flip(0), rtol=tolerance, atol=0.0, equal_nan=True)
        for one, other in pairs
    )
