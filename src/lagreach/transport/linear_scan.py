"""Transport through gated linear recurrences: products of decays, one subtraction a lag and no loop over time.

The Jacobian of a step is its decay, so ``lambda_{t,l} = delta_t prod_{j=t-l+1}^{t} a_j``. Running sums of log decays
give the product over any window as a difference. Decays of zero (a document begins) are counted apart, since their
logarithm cannot be subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.adapters.scan_cell import ScanCell, for_every_unit
from lagreach.adapters.scan_layer import is_scan
from lagreach.transport.carry import Steps, weights_of
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.rollout import Rollout

FLOAT_RANGE = -400.0  # logarithm of a product of decays down to which float64 holds it, and a gradient times it


def decay_products(
    log_decay: Float[Tensor, "seq time unit"], lags: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "seq reached unit"]]]:
    """Yield each lag and the logarithm (float64) of the product of the decays over it.

    Entry i belongs to the window over steps ``i+1 .. i+lag``: it leads from the state after step ``i + lag`` back to the
    state after step i.

    Examples
    --------
    >>> halved = torch.full((1, 5, 1), 0.5).log()
    >>> [(lag, round(log.exp()[0, 0, 0].item(), 4)) for lag, log in decay_products(halved, [0, 1, 3])]
    [(0, 1.0), (1, 0.5), (3, 0.125)]
    """
    forgets, time = torch.isneginf(log_decay), log_decay.shape[1]
    some_forget = bool(forgets.any())
    sums = (torch.where(forgets, 0.0, log_decay.double()) if some_forget else log_decay.double()).cumsum(1)
    breaks = forgets.to(torch.int32).cumsum(1) if some_forget else None
    for lag in lags:
        product = sums[:, lag:] - sums[:, : time - lag]
        if breaks is not None:
            product = torch.where(breaks[:, lag:] > breaks[:, : time - lag], -torch.inf, product)
        yield lag, product


def only_scan(rollout: Rollout) -> ScanCell | None:
    """The one cell of a recurrence, if its transport is a product of decays."""
    cells = rollout.recurrence.stack.cells
    return cells[0] if len(cells) == 1 and isinstance(cells[0], ScanCell) and is_scan(cells[0]) else None


def jumps(rollout: Rollout, lags: Sequence[int]) -> bool:
    """Whether going to each lag directly is possible, and less work than passing through all of them."""
    return only_scan(rollout) is not None and 2 * len(lags) <= max(lags)


def scan_transport(
    rollout: Rollout,
    delta: Float[Tensor, "seq time state"],
    lags: Sequence[int],
    *,
    params: Collection[str] = (),
) -> Iterator[tuple[Cotangent, Float[Tensor, "param"] | None]]:
    """Yield the cotangent at each lag, and the flat gradient of the weights named in `params`.

    The same as `exact_transport` for a single gated linear layer, at a cost that grows with the number of lags asked
    for and not with the largest of them.
    """
    recurrence, names = rollout.recurrence, list(params)
    cell = only_scan(rollout)
    assert cell is not None
    with torch.no_grad():
        written = cell.write(rollout.x, recurrence.stack.layer_params(0, recurrence.params))
    steps = Steps(rollout, names) if names else None
    for lag, log_product in decay_products(written.log_decay, lags):
        if lag == 0 or bool(log_product.amin() > FLOAT_RANGE):
            cotangent = Cotangent(lag, for_every_unit(log_product.exp(), written) * delta[:, lag:])
        else:
            cotangent = _far_below(lag, for_every_unit(log_product / math.log(2), written), delta)
        carried = cotangent.value().to(delta.dtype)
        yield cotangent, None if steps is None else weights_of(steps, carried)[0, 0]


def _far_below(lag: int, bits: Float[Tensor, "seq reached state"], delta: Tensor) -> Cotangent:
    """Products that leave the range of numbers: mantissas and exponents apart."""
    exponent = torch.where(torch.isneginf(bits), 0.0, bits.floor())
    mantissa = torch.exp2(bits - exponent) * delta[:, lag:].double()
    return Cotangent.aligned(lag, mantissa, exponent.to(torch.int32))


def jumped(
    recurrence: Recurrence, x: Float[Tensor, "step row input"], starts: Mapping[int, Float[Tensor, "row state"]]
) -> tuple[dict[int, Float[Tensor, "row state"]], dict[int, float]]:
    """Carry gradients that start after some steps of windows back to the windows' first step.

    Returns them by lag, and the power of two that each is to be multiplied by.
    """
    (cell,) = recurrence.stack.cells
    assert isinstance(cell, ScanCell)
    with torch.no_grad():
        written = cell.write(x[1:], recurrence.stack.layer_params(0, recurrence.params))
    bits = for_every_unit(written.log_decay.double().cumsum(0) / math.log(2), written)
    carried, power = dict(starts), dict.fromkeys(starts, 1.0)
    for lag in [lag for lag in starts if lag > 0]:
        top = bits[lag - 1].max().floor().nan_to_num(neginf=0.0)
        carried[lag] = starts[lag] * torch.exp2(bits[lag - 1] - top).to(starts[lag])
        power[lag] = 2.0 ** float(top)
    return carried, power
