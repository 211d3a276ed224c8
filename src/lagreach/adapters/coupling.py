"""Has a sequence an output of its own? Refused is a model that mixes sequences, is random, or keeps a state between calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagreach._util.full_precision import full_precision
from lagreach.adapters.calling import Call, agreement, as_output, captured, untouched
from lagreach.adapters.kept import named_states, reset_call
from lagreach.adapters.view import check_finite, check_inputs
from lagreach.data.batch import Batch, without_mixing
from lagreach.errors import InputError, LagreachError, UnstableModelError


@full_precision()
def refuse_coupling(model: nn.Module, call: Call, batch: Batch, time: int) -> None:
    """Refuse models whose output for a sequence depends on other sequences or earlier calls, or differs from run to run."""

    def output_of(rows: Batch) -> Tensor:
        return as_output(call(model, rows), rows, time)

    with torch.no_grad(), untouched(model) as kept:
        whole = output_of(batch)
        changed = kept.changed()
        try:
            again = output_of(batch)
        except Exception as error:
            raise _stateful(changed, f"a second call fails, {type(error).__name__}: {error}") from error
        kept.restore()
        afresh = again if _equal(whole, again) else output_of(batch)
    if not _equal(whole, again):
        apart = f"a difference of {(whole - again).abs().max().item():.3g} between two calls with the same input"
        if _equal(whole, afresh):
            raise _stateful(changed, apart)
        raise UnstableModelError(
            "two runs of the model on the same input differ",
            got=apart,
            fix="remove what is random in evaluation mode, or set torch.use_deterministic_algorithms(True); if the model keeps "
            f"a state between calls{f', say in {named_states(changed)}' if changed else ''}, pass call= that resets it first",
        )
    _refuse_nan(model, whole, batch)
    one = batch.select(slice(0, 1))
    with torch.no_grad(), untouched(model):
        try:
            alone = output_of(one)
        except LagreachError:
            raise
        except Exception as error:
            raise InputError(
                "the model does not run on a single sequence",
                got=f"{type(error).__name__}: {error}, for x of shape {tuple(one.x.shape)}; {len(batch)} together do run",
                fix="sequences are run in groups of any size: let the model take their number from x"
                + (f"; if {named_states(changed)} is a state, {reset_call(changed)}" if changed else ""),
            ) from error
    last = len(batch) - 1
    with torch.no_grad(), untouched(model):  # where sequences see those before them alone, the first one sees none
        among_copies = output_of(batch.select([last] * len(batch)))
    for row, elsewhere in ((0, alone[0]), (last, among_copies[last])):
        length = None if batch.lengths is None else int(batch.lengths[row])
        moved = _apart(whole[row], elsewhere, length)
        if moved is not None:
            raise UnstableModelError(
                "the output of a sequence depends on the other sequences in its batch",
                got=f"a difference of {moved:.3g}",
                fix=how_to_part(model, call, batch),
            )


def _apart(beside: Tensor, elsewhere: Tensor, length: int | None) -> float | None:
    """How far two outputs (position, out) of a sequence differ, if by more than rounding."""
    width = min(len(beside), len(elsewhere))
    if length is not None and width > 1:  # what is unpacked ends with the longest sequence of a batch
        width = min(width, length)
    beside, elsewhere = beside[:width], elsewhere[:width]
    tolerance = agreement(beside.dtype)
    if torch.allclose(beside, elsewhere, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    return (beside - elsewhere).abs().max().item()


def how_to_part(model: nn.Module, call: Call, batch: Batch) -> str:
    """What to do about a model that mixes sequences; names a layer that takes steps first and is given sequences first."""
    layers = {path: m for path, m in model.named_modules() if getattr(m, "batch_first", None) is False}
    with torch.no_grad(), untouched(model), captured(list(layers.values())) as calls:
        call(model, batch)
    for path, layer in layers.items():
        for args, kwargs, _ in calls[layer]:
            given = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(given, Tensor) and given.ndim == 3 and given.shape[0] == len(batch) != given.shape[1]:
                return (
                    f"build {path or 'the model'} ({type(layer).__name__}) with batch_first=True: without it, it takes the "
                    f"first axis for steps, and is given {tuple(given.shape)} for {len(batch)} sequences"
                )
    return without_mixing(batch.x)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same, also where they are not numbers."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def _refuse_nan(model: nn.Module, output: Tensor, batch: Batch) -> None:
    """Refuse outputs that are NaN at steps that count, and name the cause; infinite ones may be meant, as masked logits."""
    wrong = torch.isnan(output).any(-1)
    if batch.lengths is not None and wrong.shape[1] == batch.x.shape[1]:
        wrong &= torch.arange(wrong.shape[1], device=wrong.device) < batch.lengths.to(wrong.device)[:, None]
    if not bool(wrong.any()):
        return
    check_inputs(batch)
    for name, weight in model.named_parameters():
        check_finite(f"the weight {name}", weight.detach())
    sequence, step = wrong.nonzero()[0].tolist()
    raise InputError(
        "the output of the model is not finite",
        got=f"NaN at position {step}, for inputs from {batch.x[sequence].min()} to {batch.x[sequence].max()}",
        expected="finite outputs",
        fix="its states overflow: scale the inputs, lower the recurrent weights, or run it in float64: model.double()",
    )


def _stateful(changed: list[str], got: str) -> UnstableModelError:
    """The error for a module that hands a state on from call to call."""
    return UnstableModelError(
        f"the model keeps a state between calls, in {named_states(changed) or 'something that is no attribute of a module'}",
        got=got,
        expected="the same output for the same input, whatever was called before",
        fix=reset_call(changed),
    )
