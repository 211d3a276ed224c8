"""One ordinary backward pass through a user's model: the gradient that training gives the weights of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lagreach._util.full_precision import without_cudnn
from lagreach.adapters.calling import Call, agreement, as_output, replaced, untouched
from lagreach.adapters.view import OwnUse
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError


class _Layer(nn.Module):
    """A layer whose weights can be exchanged for one call, without its hooks being called twice."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self._own_forward = layer, forward
        self.training = layer.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._own_forward(*args, **kwargs)


def no_gradient() -> UnsupportedError:
    """The error for a model whose output does not hang on its weights."""
    return UnsupportedError(
        "the model's output has no gradient",
        got="an output that is cut off from the weights",
        fix="take out torch.no_grad, inference_mode, detach or rounding between the layer and the output",
    )


def run_with_own_weights(
    model: nn.Module, path: str, call: Call, batch: Batch, time: int
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Run a model whose layer uses copies of its weights; return output, copies and weights, by their names in the model.

    The copies hang on the weights in the graph, so gradients of both can be asked for: those of a copy come through the layer
    alone, those of a weight from everywhere.
    """
    output, copies, weights = _run_with_own_weights(model, path, call, batch, time)
    if not output.requires_grad:
        raise no_gradient()
    named = [{f"{path}.{name}".lstrip("."): value for name, value in group.items()} for group in (copies, weights)]
    return output, named[0], named[1]


def learns(model: nn.Module, path: str, call: Call, batch: Batch, time: int) -> bool:
    """Whether autograd finds a way from the model's output back to any weight of a layer, through the layer's own use of it."""
    output, copies, _ = _run_with_own_weights(model, path, call, batch, time)
    if not output.requires_grad:
        return False
    with torch.enable_grad(), without_cudnn():
        grads = torch.autograd.grad(output.sum(), list(copies.values()), allow_unused=True)
    return any(grad is not None for grad in grads)


def _run_with_own_weights(
    model: nn.Module, path: str, call: Call, batch: Batch, time: int
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The same, also of an output without gradient, with names as the layer has them."""
    layer = model.get_submodule(path)
    weights = {
        name: weight if weight.requires_grad else weight.detach().requires_grad_()  # frozen ones have a gradient too
        for name, weight in layer.named_parameters(remove_duplicate=False)
    }
    with torch.enable_grad(), without_cudnn():  # cuDNN has no gradient in evaluation mode
        copies = {name: weight.clone() for name, weight in weights.items()}
        held, exchanged = _Layer(layer, layer.forward), {f"layer.{name}": copy for name, copy in copies.items()}

        def forward(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(held, exchanged, args, kwargs, tie_weights=False)

        with untouched(model), _same_flat_weights(layer), replaced(layer, forward):
            output = as_output(call(model, batch), batch, time)
    return output, copies, weights


@contextmanager
def _same_flat_weights(layer: nn.Module) -> Iterator[None]:
    """Let torch's recurrent layers forget the copies: else their next call would lay out their weights in new memory."""
    noted = [(part, vars(part)["_flat_weight_refs"]) for part in layer.modules() if "_flat_weight_refs" in vars(part)]
    try:
        yield
    finally:
        for part, references in noted:
            vars(part)["_flat_weight_refs"] = references


def own_use(
    model: nn.Module, path: str, call: Call, batch: Batch, time: int, losses: Callable[[Tensor], Tensor]
) -> OwnUse:
    """Gradients of the losses' sum, by one backward pass through the whole model."""
    output, copies, weights = run_with_own_weights(model, path, call, batch, time)
    with torch.enable_grad(), without_cudnn():
        wanted = [*copies.values(), *weights.values()]
        grads = torch.autograd.grad(losses(output).sum(), wanted, materialize_grads=True)
    of_layer = dict(zip(copies, grads, strict=False))
    whole = dict(zip(weights, grads[len(copies) :], strict=True))
    elsewhere = [name for name in of_layer if not _agree(of_layer[name], whole[name])]
    return OwnUse(of_layer, tuple(elsewhere), output.dtype)


def _agree(of_layer: Tensor, whole: Tensor) -> bool:
    apart, size = (value.double().norm() for value in (whole - of_layer, torch.stack((whole, of_layer))))
    return bool(apart <= agreement(of_layer.dtype) * size)
