"""`DiagonalNetwork`: the paper's network as a torch module whose gradients come from the adjoint recursion."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach._util.arrays import Number
from lagreach.cells.activations import Activation, get_activation
from lagreach.papers.cayci.checks import check_inputs, check_pair
from lagreach.papers.cayci.initialise import Weights, symmetric_init
from lagreach.papers.cayci.streaming import outputs, pullback


class _Output(torch.autograd.Function):
    """F with the adjoint recursion as its backward pass; keeps nothing but weights and inputs."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, U: Tensor, c: Tensor, x: Tensor, activation: Activation, engine: str) -> Tensor:
        ctx.save_for_backward(W, U, c, x)
        ctx.activation, ctx.engine = activation, engine
        return outputs(Weights(W, U, c), x, activation, engine=engine)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        W, U, c, x = ctx.saved_tensors
        dW, dU = pullback(Weights(W, U, c), x, cotangents[0], ctx.activation, engine=ctx.engine)
        return dW, dU, None, None, None, None


class DiagonalNetwork(nn.Module):
    """A diagonal Elman network with trained W and U and a fixed readout (CE (2), (3)), in float64.

    Parameters
    ----------
    weights
        Where it starts, usually `symmetric_init`.
    activation
        A name or an `Activation` with its bounds.
    x_bound
        Largest ``|X_t|`` that inputs may have.
    engine
        "auto", "torch" or "numba".

    Examples
    --------
    >>> network = DiagonalNetwork.start(m=8, d=2, alpha=0.5, seed=0)
    >>> bool((network(torch.rand(3, 6, 2, dtype=torch.float64) / 2) == 0).all())
    True
    """

    W: nn.Parameter
    U: nn.Parameter
    c: Tensor
    activation: Activation
    x_bound: float
    engine: str

    def __init__(
        self,
        weights: Weights,
        activation: str | Activation = "tanh",
        *,
        x_bound: Number = 1.0,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        self.activation, self.x_bound, self.engine = get_activation(activation), float(x_bound), engine
        self.W = nn.Parameter(weights.W.detach().clone())
        self.U = nn.Parameter(weights.U.detach().clone())
        self.register_buffer("c", weights.c.detach().clone())

    @classmethod
    def start(
        cls,
        m: int,
        d: int,
        alpha: Number,
        seed: int | torch.Generator = 0,
        activation: str | Activation = "tanh",
        **options: Any,
    ) -> DiagonalNetwork:
        """Make a network at the symmetric random start."""
        return cls(symmetric_init(m, d, alpha, seed), activation, **options)

    @property
    def weights(self) -> Weights:
        """The weights as they are now, detached."""
        return Weights(self.W.detach(), self.U.detach(), self.c)

    def radii(self, rho: tuple[Number, Number]) -> list[dict[str, Any]]:
        """Parameter groups for `ProjectedGradientDescent`: W and U with their radii rho_w and rho_u."""
        rho_w, rho_u = check_pair("rho", rho)
        return [{"params": [self.W], "radius": rho_w}, {"params": [self.U], "radius": rho_u}]

    def forward(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq time"]:
        """Outputs ``F_1..F_T``."""
        check_inputs(x, self.x_bound)
        return _Output.apply(self.W, self.U, self.c, x, self.activation, self.engine)
