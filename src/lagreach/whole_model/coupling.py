"""Does a sequence have an output of its own? Checks that know how a model's own kernels round.

Products of another batch size may round differently, so a sequence is compared with itself in batches of one size, beside
other sequences: what then changes is coupling. Two runs of the same batch show how far the model repeats itself.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from lagreach.adapters.calling import first_call
from lagreach.adapters.coupling import how_to_part
from lagreach.adapters.view import check_inputs
from lagreach.data.batch import Batch
from lagreach.errors import LagreachError, UnsupportedError
from lagreach.transport.objective import Objective
from lagreach.whole_model.running import WholeModel

ROUNDINGS = 64  # units in the last place, of the largest output, that rounding may move an output by
REPEATS = 16  # times as far as two runs differ, where a model does not repeat itself to the last bit
SMALL = 2**26  # weights up to which a copy in double precision decides


def check_model(model: WholeModel, sample: Batch) -> None:
    """Refuse a model whose output for a sequence is random, not finite, or depends on the others in its batch."""
    first_call(model.module, sample.select([0, 1]), model.call)
    with torch.no_grad():
        first, again, beside = _runs(model, sample)
    if not torch.isfinite(first).all():
        check_inputs(sample)
        raise UnsupportedError(
            "the model's output is not finite",
            got=f"{int((~torch.isfinite(first)).sum())} of {first.numel()} outputs are nan or infinite",
            fix="look at the data and the weights; a float16 model may overflow: use bfloat16 or float32",
        )
    rounding = ROUNDINGS * torch.finfo(first.dtype).eps * _size(first)
    spread = _distance(first, again)
    if spread > _tolerated(model, rounding, _size(first)):
        raise UnsupportedError(
            "two runs of the model on the same input differ",
            got=f"a difference of {spread:.3g}, for outputs of up to {_size(first):.3g}",
            fix="remove what is random in evaluation mode, and what is kept from one call to the next (reset it in call=)",
        )
    moved = _distance(first, beside)
    if moved > max(rounding, REPEATS * spread) and not _rounding_alone(model, sample, moved):
        raise UnsupportedError(
            "the output of a sequence depends on the other sequences in its batch",
            got=f"a difference of {moved:.3g} beside another sequence, {spread:.3g} when nothing changes",
            fix=how_to_part(model.module, model.call, sample),
        )


def check_loss(objective: Objective, output: Tensor) -> None:
    """Refuse a loss function whose value for one sequence depends on the others in the batch (in-batch negatives)."""
    if not callable(objective.loss) or len(output) < 3:
        return
    with torch.no_grad():
        keep, other = torch.tensor([0, 1]), torch.tensor([0, 2])
        values = [objective.select(rows.to(output.device))(output[rows.to(output.device)])[0] for rows in (keep, other)]
    size = max(abs(float(value)) for value in values)
    if abs(float(values[0] - values[1])) > ROUNDINGS * torch.finfo(output.dtype).eps * size:
        raise UnsupportedError(
            "the loss of a sequence depends on the other sequences in the batch",
            got=f"{float(values[0]):.6g} and {float(values[1]):.6g} beside two different ones",
            fix="lag gradients are defined per sequence: use a loss that treats each sequence on its own",
        )


def _runs(model: WholeModel, sample: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of two sequences together, again, and each beside a third one: always two in a batch."""
    first, again, left, right = (model.output(sample.select(rows)) for rows in ([0, 1], [0, 1], [0, 2], [2, 1]))
    length = min(left.shape[1], right.shape[1])  # packed sequences are unpacked to the longest of the batch
    return first, again, torch.stack((left[0, :length], right[1, :length]))


def _size(output: Tensor) -> float:
    return float(output.abs().max()) if output.numel() else 0.0


def _distance(a: Tensor, b: Tensor) -> float:
    length = min(a.shape[1], b.shape[1])
    a, b = a[:, :length], b[:, :length]
    return float((a - b).abs().max()) if a.numel() else 0.0


def _tolerated(model: WholeModel, rounding: float, size: float) -> float:
    """How far two runs may differ: rounding in the type of the model's weights, where kernels add in no fixed order."""
    if model.device.type == "cpu":
        return rounding
    return max(rounding, ROUNDINGS * torch.finfo(model.dtype).eps * size)


def _rounding_alone(model: WholeModel, sample: Batch, moved: float) -> bool:
    """Whether a difference vanishes in double precision, on a copy of a model that is small enough."""
    if sum(p.numel() for p in model.module.parameters()) > SMALL or model.dtype == torch.float64:
        return False
    try:
        with torch.no_grad():
            exact = WholeModel(deepcopy(model.module).double(), model.call)
            first, _, beside = _runs(exact, sample.in_precision(model.dtype, torch.float64))
    except (LagreachError, RuntimeError, TypeError):  # a model that has no double precision cannot be judged by it
        return False
    return _distance(first, beside) < 1e-3 * moved
