"""Lag gradients of the weights that read the input, through any differentiable model.

``g^(l)`` sums, over the outputs of a sequence, what reaches the input l steps before: the outer product of the gradient
at the input module's output there and of the input. Over all outputs and lags it is autograd's gradient of those weights.
This is the plain form, one way back for every output, that tests compare the measurement with; a measurement carries only
a few outputs back (`lagreach.whole_model.anchors`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.data.batch import Batch
from lagreach.data.lags import check_lags
from lagreach.errors import InputError
from lagreach.gradients.output_anchors import AT_THE_END
from lagreach.transport.losses import Loss
from lagreach.whole_model.find_input import find_input_module
from lagreach.whole_model.input_module import InputModule, Reading, read
from lagreach.whole_model.outputs import (
    cotangents,
    decide_outputs,
    input_steps,
    objective_for,
    output_steps,
    used_outputs,
)
from lagreach.whole_model.running import WholeModel, at_rest, whole_model


@dataclass(frozen=True)
class ModelLagGradients:
    """``g^(l)`` of the input weights, averaged over sequences.

    `grads[name]` is (lag, ...) followed by the weight's shape. `ahead` sums what reaches inputs that lie *behind* an
    output in time (bidirectional models); it is zero for a model that does not look ahead.
    """

    lags: Int[Tensor, "lag"]
    grads: dict[str, Tensor]
    ahead: dict[str, Tensor]
    loss: Float[Tensor, ""]
    time: int
    source: InputModule

    def total(self) -> dict[str, Tensor]:
        """Sum over lags, and over what lies ahead: the gradient of the loss. Needs every lag from 0 to T-1."""
        if self.lags.tolist() != list(range(self.time)):
            raise InputError(
                "the lags do not add up to the whole gradient",
                got=f"{len(self.lags)} of {self.time} lags",
                fix=f"ask for lags=range({self.time})",
            )
        return {name: g.sum(0) + self.ahead[name] for name, g in self.grads.items()}


@leaves_as_it_was
def model_lag_gradients(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss = "mse",
    lags: Iterable[int] | None = None,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    steps: Any = None,
    outputs: str | None = None,
    others: Any = None,
    inputs: str | None = None,
    call: Call | None = None,
) -> ModelLagGradients:
    """Split the gradient of the input weights by how many steps before an output the input stands.

    Parameters
    ----------
    inputs
        Path of the module that reads the input; found by what it is given if None.
    others
        Inputs beside x: a tuple of what follows it, or a dict by name.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    >>> x, y = torch.randn(4, 6, 2).double(), torch.randn(4, 6, 1).double()
    >>> gradients = model_lag_gradients(model, x, y)
    >>> (model(x) - y).square().mean().backward()
    >>> torch.allclose(gradients.total()["0.weight"], model[0].weight.grad)
    True
    >>> gradients.grads["0.weight"][1:].abs().max().item()  # every step for itself: lag 0 alone
    0.0
    """
    whole = whole_model(model, call)
    batch = Batch(x, y, mask, lengths, others=others)
    with at_rest(whole.module):
        source = find_input_module(whole, batch.select(slice(0, 2)), inputs)
        reading, output = read(whole, source, batch)
        time = reading.inputs.shape[1]
        wanted = check_lags(range(time) if lags is None else lags, time)
        field, losses = cotangents(objective_for(loss, batch, output, time, steps), output)
        inside = input_steps(batch, reading)
        which = decide_outputs(reading, output, outputs)
        stand = output_steps(inside, output.shape[1], after=which == AT_THE_END)
        tables = _tables(reading, output, field, stand)
    count = len(batch)
    shaped = [as_weights(whole, source, table / count) for table in (*(tables[lag] for lag in wanted), tables[-1])]
    return ModelLagGradients(
        lags=torch.tensor(wanted),
        grads={name: torch.stack([one[name] for one in shaped[:-1]]) for name in shaped[0]},
        ahead=shaped[-1],
        loss=losses.mean(),
        time=time,
        source=source,
    )


def _tables(reading: Reading, output: Tensor, field: Tensor, stand: Tensor) -> Tensor:
    """Sums (lag, row, width) over sequences and outputs; the last of the first axis is of what lies ahead."""
    seq, time = reading.inputs.shape[:2]
    rows = torch.arange(seq, device=output.device)
    tables: Tensor | None = None
    used = used_outputs(field).any(0)
    for position in used.nonzero().flatten().tolist():
        gradient = reading.pull(output[:, position], field[:, position])
        if tables is None:
            tables = gradient.new_zeros(time + 1, row_count(reading), gradient.shape[-1])
        lag = stand[:, position, None] - torch.arange(time, device=output.device)
        place = torch.where(lag >= 0, lag, time)  # (seq, time)
        for n in rows.tolist():
            if reading.source.reads_tokens:
                tables.index_put_((place[n], reading.inputs[n]), gradient[n], accumulate=True)
            else:
                tables.index_add_(0, place[n], reading.inputs[n, :, :, None] * gradient[n, :, None, :])
    assert tables is not None
    return tables


def row_count(reading: Reading) -> int:
    """Rows of the table of input weights: tokens, or inputs."""
    return int(reading.inputs.max()) + 1 if reading.source.reads_tokens else reading.inputs.shape[2]


def as_weights(model: WholeModel, source: InputModule, table: Float[Tensor, "row width"]) -> dict[str, Tensor]:
    """Bring a table (input, output of the input modules) to the shape of the modules' weights.

    An identity layer in front of a module, or of the model, is called "input" and has (out, in) like any linear layer.
    """
    weights = {}
    start = 0
    for port in source.ports:
        module = model.module.get_submodule(port.path or "")
        if port.kind == "embedding":
            size = int(getattr(module, "embedding_dim", table.shape[1] - start))
            part = table[:, start : start + size]
            rows = int(getattr(module, "num_embeddings", len(part)))
            weights[f"{port.path}.weight"] = nn.functional.pad(part, (0, 0, 0, rows - len(part)))
        elif port.kind == "convolution":
            assert isinstance(module, nn.Conv1d)
            size = table.shape[1]
            taps = table.view(len(table), module.kernel_size[0], module.out_channels)
            weights[f"{port.path}.weight"] = taps.permute(2, 0, 1)  # (out, in, tap)
        elif port.kind == "linear":
            weight = module.weight
            assert isinstance(weight, Tensor)
            turned = not isinstance(module, nn.Linear)  # transformers' Conv1D holds (in, out)
            size = weight.shape[1 if turned else 0]
            part = table[:, start : start + size]
            weights[f"{port.path}.weight"] = part if turned else part.T
        else:
            size = table.shape[1]
            weights["input" if port.path is None else f"{port.path}.input"] = table.T
        start += size
    return weights


def as_table(model: WholeModel, source: InputModule, weights: dict[str, Tensor]) -> Float[Tensor, "row width"]:
    """Bring something of the shape of the input modules' weights to a table: what `as_weights` turns back."""
    parts = []
    for port in source.ports:
        weight = weights[f"{port.path}.weight"]
        if port.kind == "convolution":
            parts.append(weight.permute(1, 2, 0).flatten(1))  # (in, tap and out)
        elif port.kind == "linear" and isinstance(model.module.get_submodule(port.path or ""), nn.Linear):
            parts.append(weight.T)
        else:  # an embedding, or transformers' Conv1D, which holds (in, out)
            parts.append(weight)
    return torch.cat(parts, dim=1)
