"""Labels of language models: which step of the input does a label belong to?

Hugging Face's causal models take ``labels = input_ids`` and shift them by one inside, so that step t predicts the token at
t + 1. Taken as they stand, such labels would ask for a token that the model is looking at. Models say themselves what they
do: their own loss is compared with that of shifted and of unshifted labels.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lagreach.adapters.calling import Call, default_call
from lagreach.data.batch import Batch
from lagreach.data.sequences import Sequences
from lagreach.errors import InputError
from lagreach.transport.losses import IGNORE_INDEX, as_loss
from lagreach.whole_model.running import at_rest, unwrapped

SHIFTED = (
    "labels equal the inputs and the model shifts them by one inside: the target at step t is the token at t + 1, so a "
    "dependency on the token just before it is at lag 0"
)
UNSHIFTED = (
    "the targets equal the inputs: the target at step t is what the model reads at step t, and lag 0 is no finding. "
    "For next-step prediction pass y = x[:, 1:] with x = x[:, :-1]"
)
CLEAR = 10.0  # times as far the other reading of the labels must be from the model's own loss


@dataclass(frozen=True)
class ShiftedSequences:
    """Sequences whose labels stand one step too late: each belongs to the step before."""

    inside: Sequences

    def __len__(self) -> int:
        return len(self.inside)

    def read(self, index: Sequence[int]) -> Batch:
        """Return the sequences with their labels one step earlier; the last step has none."""
        batch = self.inside.read(index)
        none = batch.y.new_full((len(batch), 1), IGNORE_INDEX)
        mask = (
            None if batch.mask is None else torch.cat((batch.mask[:, 1:], torch.zeros_like(batch.mask[:, :1])), dim=1)
        )
        return replace(batch, y=torch.cat((batch.y[:, 1:], none), dim=1), mask=mask)


def aligned_labels(
    model: Any, sequences: Sequences, loss: Any, call: Call | None
) -> tuple[Sequences, Any, tuple[str, ...]]:
    """Shift labels if the model does so itself, and take cross-entropy for labels that it takes for classes.

    Returns the sequences, the loss, and what should be said about it.
    """
    loss = as_loss(loss)
    sample = sequences.read(range(min(2, len(sequences))))
    tokens = not sample.x.is_floating_point() and not sample.y.is_floating_point() and sample.x.ndim == 2
    if not tokens or sample.y.shape != sample.x.shape or not isinstance(model, nn.Module):
        return sequences, loss, ()
    named = sample.name == "input_ids"
    same = bool(((sample.y == sample.x) | (sample.y == IGNORE_INDEX)).all())
    if not named and not same:
        return sequences, loss, ()
    chosen = "cross_entropy" if named and loss == "mse" else loss
    shifts = _shifts_labels(unwrapped(model), sample, call)
    if shifts:
        return ShiftedSequences(sequences), chosen, (SHIFTED,) if same else ()
    return sequences, chosen, (UNSHIFTED,) if same else ()


def _shifts_labels(model: nn.Module, sample: Batch, call: Call | None) -> bool:
    """Whether a model's own loss is that of labels shifted by one."""
    if call is not None or "labels" not in inspect.signature(model.forward).parameters:
        return False
    others = sample.others if isinstance(sample.others, dict) else {}
    asked = replace(sample, others=others | {"labels": sample.y}, name="input_ids")
    with at_rest(model), torch.no_grad():
        try:
            returned = default_call(model, asked)
        except (Exception, SystemExit):  # labels of another kind than the model's: nothing is shifted
            return False
    loss, logits = (returned.get(name) if isinstance(returned, dict) else None for name in ("loss", "logits"))
    if not isinstance(loss, Tensor) or not isinstance(logits, Tensor) or logits.shape[:2] != sample.x.shape:
        return False
    y = sample.y.to(logits.device)
    shifted, unshifted = (
        abs(float(cross_entropy(part.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)) - float(loss))
        for part, labels in ((logits[:, :-1], y[:, 1:]), (logits, y))
    )
    if max(shifted, unshifted) >= CLEAR * min(shifted, unshifted):
        return shifted < unshifted
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):  # say, with a loss that balances experts on top
        return True
    raise InputError(
        "it cannot be told whether the model shifts its labels",
        got=f"a loss of {float(loss):.4g} with labels; {shifted:.3g} away from shifted labels, {unshifted:.3g} unshifted",
        fix="pass (x, y) with y[:, t] the target of step t, shifted as it should be",
    )
