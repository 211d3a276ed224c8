"""Exact transport: carry the loss gradient back l steps, for all times at once.

With ``lambda_{t,0} = delta_t`` and ``lambda_{t,l} = J_{t-l+1}^T lambda_{t,l-1}``, one lag is one vector-Jacobian
product of `step` over all (sequence, time): no loop over time and no H x H matrix per step. The result for lag l
is stored by the position ``t - l`` it has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

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
    wanted, steps = set(lags), Steps(rollout, names)
    sums = WeightSums(steps) if names else None

    def collected(lag: int, _: int) -> list[WeightSums]:
        return [sums] if sums is not None and lag in wanted else []

    for lag, (arrived,) in walk_back([Carry(steps, delta, passing=not names)], max(lags), collected):
        if lag in wanted:
            flat = None if sums is None else sums.take()[0, 0]
            yield arrived, {} if flat is None else by_weight(rollout.recurrence.params, names, flat)


def walk_back(
    carries: Sequence[Carry], last: int, collected: Callable[[int, int], Sequence[WeightSums]]
) -> Iterator[tuple[int, list[Cotangent]]]:
    """Carry gradients back from lag 0 to the last one, and yield each lag with what has arrived there: the loop over lags.

    `collected` says, for a lag and the number of a carry, which sums of weights' gradients take in what arrives; they have
    done so when the lag is yielded. Nothing moves on before the next lag is asked for, unless sums need it.
    """
    for lag in range(last + 1):
        arrived = [carry.cotangent() for carry in carries]
        sums = [collected(lag, number) for number in range(len(carries))]
        moved = any(sums)
        if moved:
            _step(carries, sums, go_on=lag < last)
        yield lag, arrived
        if not moved and lag < last:
            _step(carries, sums, go_on=True)


def _step(carries: Sequence[Carry], sums: Sequence[Sequence[WeightSums]], *, go_on: bool) -> None:
    for carry, own_sums in zip(carries, sums, strict=True):
        carry.step(own_sums, go_on=go_on)


def by_weight(params: Params, names: Sequence[str], flat: Float[Tensor, "param"]) -> dict[str, Tensor]:
    """Cut a flat gradient or direction into tensors shaped and typed as the named weights."""
    pieces = flat.split([params[name].numel() for name in names])
    return {name: piece.view(params[name].shape).to(params[name]) for name, piece in zip(names, pieces, strict=True)}
