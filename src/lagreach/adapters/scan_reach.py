"""How far back gradients get inside a gated linear layer: as far as its decays carry them, or a detach stops them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters.scan_cell import ScanCell, copies
from lagreach.adapters.scan_layer import ScanLayer
from lagreach.errors import UnsupportedError
from lagreach.kernels import scan

TOO_LITTLE = 1e-9  # of the largest gradient: what arrives of less could vanish by rounding


def refuse_truncation(layer: ScanLayer, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a layer whose last output has no gradient at all for an input that its decays carry to it.

    A replay cannot see it, since values stay what they are, and neither can the sum of lag gradients be compared with the
    model's: the weights of such layers also act beside the scan.
    """
    cell, values = layer.cell, [*args, *kwargs.values()]
    place = next((i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()), None)
    if place is None or not isinstance(cell, ScanCell) or not cell.diagonal:
        return
    with torch.enable_grad():
        leaf = values[place] = values[place].detach().requires_grad_()
        args, kwargs = tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))
        expected = _carried(layer, cell, leaf, args, kwargs)
        result = layer.module(*args, **kwargs)
        while isinstance(result, (tuple, list)):
            result = result[0]
        if not result.requires_grad:  # a kernel for inference alone, which says nothing of training
            return
        gradient = torch.autograd.grad((result[:, -1] * _draw(result)).sum(), leaf, materialize_grads=True)[0]
    sizes = expected.flatten(2).abs().amax(-1)
    stopped = (gradient.flatten(2) == 0).all(-1) & (sizes > TOO_LITTLE * sizes.amax(1, keepdim=True))
    if not bool(stopped.any()):
        return
    time = gradient.shape[1]
    reach = time - 1 - int(stopped.any(0).nonzero().max())
    raise UnsupportedError(
        f"gradients stop inside {name}: training gets lags 0 to {reach - 1} only",
        got=f"the last of {time} outputs has no gradient for inputs {reach} steps back",
        expected="gradients as far back as the layer's decays carry them",
        fix=f"give sequences of {reach} steps to see the lags that training gets; or take detach() out of the layer while you "
        "diagnose, to see what backpropagation through all steps would need",
    )


def _carried(
    layer: ScanLayer, cell: ScanCell, leaf: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Float[Tensor, "seq time input"]:
    """Gradient of the last output for the inputs, through what they add to the state and the decays that follow."""
    scan_inputs, weights = layer.read_call(*args, **kwargs), layer.weights()
    written = cell.write(scan_inputs.x, weights)
    with torch.no_grad():
        states = scan(cell, scan_inputs.x.detach(), scan_inputs.initial, weights)
        later = torch.nn.functional.pad(written.log_decay.double()[:, 1:], (0, 0, 0, 1))
        kept = later.flip(1).cumsum(1).flip(1).exp().repeat_interleave(copies(written), dim=-1)
    at_states = states.detach().requires_grad_()
    output = layer.output(scan_inputs, at_states)
    arrives = torch.autograd.grad(
        (output[:, -1] * _draw(output)).sum(), at_states, retain_graph=True, materialize_grads=True
    )[0][:, -1:]
    start = kept * arrives * scan_inputs.valid[..., None] * scan_inputs.valid[:, -1:, None]
    return torch.autograd.grad((written.value * start.to(written.value)).sum(), leaf, materialize_grads=True)[0]


def _draw(output: Float[Tensor, "seq time out"]) -> Float[Tensor, "seq out"]:
    last = output[:, -1]
    return torch.randn(last.shape, generator=torch.Generator().manual_seed(0)).to(last)
