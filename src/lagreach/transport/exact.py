"""Exact transport: carry the loss gradient back l steps, for all times at once.

With ``lambda_{t,0} = delta_t`` and ``lambda_{t,l} = J_{t-l+1}^T lambda_{t,l-1}``, one lag is one vector-Jacobian
product of `step` over all (sequence, time): no loop over time and no H x H matrix per step. The result for lag l
is stored by the position ``t - l`` it has reached, so that one lag step is "pull back, then shift by one".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.transport.cotangent import Cotangent
from lagreach.transport.rollout import Rollout

RELINEARISE_BELOW = 0.7  # rebuild the graph once this share of its positions is left
RESCALE_EVERY = 4  # lags


class Linearisation:
    """`step` at the first `length` positions of a rollout, its graph kept for repeated pullbacks."""

    def __init__(self, rollout: Rollout, length: int) -> None:
        recurrence = rollout.recurrence
        self.length = length
        self.params = {name: p.detach().requires_grad_() for name, p in recurrence.params.items()}
        with torch.enable_grad():
            self.previous = rollout.previous[:, :length].detach().requires_grad_()
            self.states = recurrence.stack.step(rollout.x[:, :length], self.previous, self.params)

    def pull(
        self, cotangent: Tensor, *, state: bool = False, params: Collection[str] = ()
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Apply the transposed Jacobians: to the state before each step, and to the named weights (summed)."""
        missing = self.length - cotangent.shape[1]
        padded = torch.nn.functional.pad(cotangent, (0, 0, 0, missing)) if missing else cotangent
        wanted = ([self.previous] if state else []) + [self.params[name] for name in params]
        grads = list(
            torch.autograd.grad(self.states, wanted, grad_outputs=padded, retain_graph=True, materialize_grads=True)
        )
        state_grad = grads.pop(0) if state else None
        return state_grad, dict(zip(params, grads, strict=True))


def exact_transport(
    rollout: Rollout,
    delta: Float[Tensor, "seq time state"],
    lags: Sequence[int],
    *,
    params: Collection[str] = (),
) -> Iterator[tuple[Cotangent, dict[str, Tensor]]]:
    """Yield the cotangent at each wanted lag (ascending) and its gradients of the weights named in `params`.

    The gradients are ``sum_{n,t} B_{t-l}^T lambda_{t,l}``: summed over the sequences of the rollout.
    """
    time = delta.shape[1]
    wanted, last = set(lags), max(lags)
    linear = Linearisation(rollout, time)
    current = Cotangent(0, delta)
    for lag in range(last + 1):
        left = time - lag
        if left <= RELINEARISE_BELOW * linear.length:
            linear = Linearisation(rollout, left)
        if lag % RESCALE_EVERY == 0:
            current = current.rescaled()
        go_on, names = lag < last, params if lag in wanted else ()
        grads: dict[str, Tensor] = {}
        pulled: Tensor | None = None
        if names and current.exponent is not None:  # weights need the plain values, the state the mantissas
            grads, names = linear.pull(current.value(), params=names)[1], ()
        if go_on or names:
            pulled, joint = linear.pull(current.mantissa, state=go_on, params=names)
            grads = grads or joint
        if lag in wanted:
            yield current, grads
        if pulled is not None:
            exponent = None if current.exponent is None else current.exponent[:, 1:]
            current = Cotangent(lag + 1, pulled[:, 1:left].detach(), exponent)
