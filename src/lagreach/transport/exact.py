"""Exact transport: carry the loss gradient back l steps, for all times at once.

With ``lambda_{t,0} = delta_t`` and ``lambda_{t,l} = J_{t-l+1}^T lambda_{t,l-1}``, one lag is one vector-Jacobian
product of `step` over all (sequence, time): no loop over time and no H x H matrix per step. The result for lag l
is stored by the position ``t - l`` it has reached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from lagreach.cells import Params
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.linear_scan import jumps, scan_transport
from lagreach.transport.rollout import Rollout


def exact_transport(
    rollout: Rollout,
    delta: Float[Tensor, "seq time state"],
    lags: Sequence[int],
    *,
    params: Collection[str] = (),
) -> Iterator[tuple[Cotangent, dict[str, Tensor]]]:
    """Yield the cotangent at each wanted lag (ascending) and its gradients of the weights named in `params`.

    The gradients are ``sum_{n,t} B_{t-l}^T lambda_{t,l}``: summed over the sequences of the rollout. A cotangent's values
    are overwritten when the next lag is asked for: copy what is to be kept, and change nothing.
    """
    names = list(params)
    if jumps(rollout, lags):
        for arrived, flat in scan_transport(rollout, delta, lags, params=names):
            yield arrived, {} if flat is None else by_weight(rollout.recurrence.params, names, flat)
        return
    wanted, last = set(lags), max(lags)
    steps = Steps(rollout, names)
    if not names:
        carry = Carry(steps, delta, passing=True)
        for lag in range(last + 1):
            if lag > 0:
                carry.step()
            if lag in wanted:
                yield carry.cotangent(), {}
        return
    carry, sums = Carry(steps, delta), WeightSums(steps)
    for lag in range(last + 1):
        arrived, here = carry.cotangent(), lag in wanted
        carry.step([sums] if here else [], go_on=lag < last)
        if here:
            yield arrived, by_weight(rollout.recurrence.params, names, sums.take()[0, 0])


def by_weight(params: Params, names: Sequence[str], flat: Float[Tensor, "param"]) -> dict[str, Tensor]:
    """Cut a flat gradient or direction into tensors shaped and typed as the named weights."""
    pieces = flat.split([params[name].numel() for name in names])
    return {name: piece.view(params[name].shape).to(params[name]) for name, piece in zip(names, pieces, strict=True)}
