"""Independent models of one shape as one computation: their weights side by side in one tensor.

Row r of `Replicas.flat` holds all weights of model r, so that clipping and optimiser steps are a few operations on one
tensor, and a frozen or failed model is one row that is left alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.threads import one_thread
from lagreach.errors import InputError
from lagreach.kernels import check_kernel, scan_readout, scan_stack
from lagreach.kernels.gpu import check_precision, precision
from lagreach.kernels.gpu.readout import ReadOne, knows
from lagreach.models.gated_rnn import GatedRNN

READOUT = ("readout.weight", "readout.bias")


class Replicas:
    """R models of one shape, run together.

    Examples
    --------
    >>> models = [GatedRNN("diag_gate", 2, 4, 1, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    >>> Replicas(models)(torch.zeros(3, 5, 7, 2)).shape
    torch.Size([3, 5, 7, 1])
    """

    def __init__(
        self,
        models: Sequence[GatedRNN],
        *,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        precision: str = "float32",
    ) -> None:
        if not models:
            raise InputError("there is no model to train", got="an empty list", expected="one model or more")
        if torch.device(device or "cpu").type == "cuda" and not torch.cuda.is_available():
            raise InputError("there is no CUDA device here", got=f"device={device!r}", fix='use device="cpu"')
        self._template = models[0]
        self.stack, self.kernel = models[0].stack, check_kernel(kernel)
        self.precision = check_precision(precision)
        self.shapes = {name: tuple(p.shape) for name, p in models[0].named_parameters()}
        for number, model in enumerate(models):
            _check_same_shape(models[0], model, number)
        rows = [
            torch.cat([dict(m.named_parameters())[name].detach().flatten() for name in self.shapes]) for m in models
        ]
        self.flat: Float[Tensor, "replica param"] = torch.stack(rows).to(device or rows[0].device)
        top = self.stack.cells[-1].state_size(self.stack.hidden_size)
        before = self.stack.state_size - top  # the output is the first block of the top layer
        self._beside_output = (before, top - models[0].hidden_size)
        # leaves that share the memory of `flat`: an optimiser changes `flat`, the models see it
        self.params = {name: weight.requires_grad_() for name, weight in self._views(self.flat).items()}

    def __len__(self) -> int:
        return len(self.flat)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = flat.split(sizes, dim=-1)
        return {
            name: part.detach().view(len(flat), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def __call__(self, x: Float[Tensor, "replica seq time input"]) -> Float[Tensor, "replica seq time output"]:
        """Outputs of every model on its own sequences."""
        s0 = x.new_zeros(*x.shape[:2], self.stack.state_size)
        weight, bias = (self.params[name] for name in READOUT)
        with precision(self.precision):
            in_one_pass = scan_readout(self.stack, x, s0, self.params, weight, bias, kernel=self.kernel)
            if in_one_pass is not None:
                return in_one_pass
            states = scan_stack(self.stack, x, s0, self.params, kernel=self.kernel)
        # the readout reads the whole state, with zeros where it has no weights: cheaper than cutting the state up
        whole = torch.nn.functional.pad(weight, self._beside_output)
        if knows(states, whole):
            first = self._beside_output[0]
            read_one: Tensor = ReadOne.apply(states, whole, bias, first, first + weight.shape[2])
            return read_one
        if states.is_cuda:
            return read(states, whole, bias)
        outputs: Tensor = Readout.apply(states, whole, bias)
        return outputs

    def gradient(self, losses: Float[Tensor, "replica"]) -> Float[Tensor, "replica param"]:
        """Gradient of each model's own loss; models do not share weights, so one backward pass gives them all."""
        gradients = torch.autograd.grad(losses.sum(), list(self.params.values()))
        return torch.cat([g.flatten(1) for g in gradients], dim=1)

    def load(self, flat: Float[Tensor, "replica param"]) -> None:
        """Replace all weights."""
        with torch.no_grad():
            self.flat.copy_(flat)

    def model(self, replica: int) -> GatedRNN:
        """Return a copy of one model, on the CPU."""
        built = copy.deepcopy(self._template).cpu()
        weights = {name: p[replica].detach().cpu() for name, p in self.params.items()}
        built.load_state_dict(weights, strict=False)
        return built


def read(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``W s + b`` for each replica."""
    return torch.einsum("rbts,ros->rbto", states, weight) + bias[:, None, None]


class Readout(torch.autograd.Function):
    """`read` on the CPU. Sums over all rows are made on one thread: on several they would be cut by the number of these."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Read every state."""
        ctx.save_for_backward(states, weight)
        return read(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the states, of W and of b."""
        states, weight = ctx.saved_tensors
        with one_thread():
            sums = torch.einsum("rbto,rbts->ros", grad, states), grad.sum((1, 2))
        return torch.einsum("rbto,ros->rbts", grad, weight), *sums


def _check_same_shape(first: GatedRNN, other: GatedRNN, number: int) -> None:
    shapes = [{name: tuple(p.shape) for name, p in m.named_parameters()} for m in (first, other)]
    dtypes = [{p.dtype for p in m.parameters()} for m in (first, other)]
    if first.stack.cells != other.stack.cells or shapes[0] != shapes[1] or dtypes[0] != dtypes[1]:
        raise InputError(
            "models that train together must have the same cell, options, sizes and dtype",
            got=f"model 0 is {first.extra_repr()}, model {number} is {other.extra_repr()}",
            fix="train each kind on its own; initial weights, seeds and learning rates may differ",
        )
