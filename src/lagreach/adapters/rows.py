"""Rows of a layer that are not in the order of the batch: models that sort their sequences before they pack them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from lagreach.adapters.calling import agreement
from lagreach.adapters.view import BoundRecurrence, OwnUse, View
from lagreach.data.batch import Batch, without_mixing
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan_stack

NOWHERE = -1  # owner of a row that the output does not look at


def row_owners(bound: BoundRecurrence, sequences: int) -> Int[Tensor, "row"]:
    """Which sequence's output looks at each row of the layer's states, from gradients; `NOWHERE` if none does.

    A random sum of the outputs is differentiated by the states twice, once with every sequence's share multiplied by a label of
    its own: the ratio of a row's two gradients is the label of its sequence, and nobody's if the row serves several.
    """
    recurrence, generator = bound.recurrence, torch.Generator().manual_seed(0)
    with torch.no_grad():
        states = scan_stack(recurrence.stack, bound.x, recurrence.initial_state(bound.x), recurrence.params)
    labels = torch.arange(1, sequences + 1) + torch.rand(sequences, generator=generator, dtype=torch.float64) / 4
    with torch.enable_grad():
        leaves = states.detach().requires_grad_()
        output = recurrence.head(leaves, {name: p.detach() for name, p in recurrence.head_params.items()}).double()
        draw = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.device)
        shares = (output * draw).flatten(1).sum(1)
        plain = torch.autograd.grad(shares.sum(), leaves, retain_graph=True, materialize_grads=True)[0]
        labelled = torch.autograd.grad((labels.to(shares) * shares).sum(), leaves, materialize_grads=True)[0]
    plain, labelled = (gradient.flatten(1).double().cpu() for gradient in (plain, labelled))
    size = plain.abs().amax(1, keepdim=True)
    looked_at = size[:, 0] > 0
    plain, labelled = (torch.where(looked_at[:, None], gradient / size, 1.0) for gradient in (plain, labelled))
    ratio = (plain * labelled).sum(1) / plain.square().sum(1)
    owners = (ratio - labels[:, None]).abs().argmin(0)
    mixed = looked_at & ((ratio - labels[owners]).abs() > 1e-4 * labels[owners])
    if bool(mixed.any()):
        raise UnsupportedError(
            "the output of a sequence depends on rows of another sequence",
            got=f"{len(states)} rows for {sequences} sequences; row {int(mixed.nonzero()[0])} serves several",
            fix=without_mixing(bound.x),
        )
    return torch.where(looked_at, owners, NOWHERE)


def sequence_of_rows(bound: BoundRecurrence, sequences: int) -> Int[Tensor, "row"]:
    """Number of the sequence that each row of the layer is; rows that nothing looks at take what is left, in order."""
    number = row_owners(bound, sequences)
    taken = set(number[number != NOWHERE].tolist())
    number[number == NOWHERE] = torch.tensor([n for n in range(sequences) if n not in taken], dtype=torch.long)
    return number


class SortedView(View):
    """A recurrence whose model sorts the sequences inside; bound, its rows are in the order of the batch again."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.name, self.local, self.template = view.name, view.local, view.template

    def trained(self, batch: Batch, losses: Callable[[Tensor], Tensor]) -> OwnUse | None:
        """Gradients of the weights: sums over sequences, whatever their order."""
        return self.view.trained(batch, losses)

    def learns(self, batch: Batch) -> bool:
        """Whether gradients arrive, whatever the order of sequences."""
        return self.view.learns(batch)

    def bind(self, batch: Batch) -> BoundRecurrence:
        """Bind the recurrence, and put its rows back into the order of the batch."""
        bound = self.view.bind(batch)
        number = sequence_of_rows(bound, len(batch)).to(bound.x.device)
        row, recurrence = number.argsort(), bound.recurrence
        initial = recurrence.initial_state(bound.x)
        return BoundRecurrence(
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


def _turn_round_together(bound: BoundRecurrence, turned: BoundRecurrence) -> bool:
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
