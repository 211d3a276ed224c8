"""Sums over anchors of first-order windows, compiled.

Every function returns None where the compiled sweep cannot work: without numba, on another device, or when products
differ too much. The caller then adds up the plain windows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach.cells.stack import Layer
from lagreach.transport.scaled import ScaledSum

ROWS = 2048  # steps whose factors are made together: they are used while they lie in the cache


@cache
def kernels() -> ModuleType | None:
    """Return the compiled functions, or None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("lagreach.transport.first_order_kernels")


def rate_sums(
    layer: Layer, lags: Sequence[int], anchors: Bool[Tensor, "seq time"]
) -> dict[str, list[ScaledSum]] | None:
    """Sum |retention|, |correction| and |rate| over sequences and anchors: (unit,) for every lag."""
    names = ("retention", "correction", "rate")
    swept = _sweep(layer, lags, "SIZES", lengths=anchors.sum(1))
    if swept is None:
        return None
    sums, exponents = swept
    found = {name: [ScaledSum(m, e) for m, e in zip(sums[k], exponents, strict=True)] for k, name in enumerate(names)}
    if lags[0] == 0:  # nothing is carried: every rate is one
        one = torch.full_like(sums[0, 0], float(anchors.sum()))
        start = {"retention": one, "correction": torch.zeros_like(one), "rate": one}
        none = torch.zeros_like(exponents[0])
        found = {name: [ScaledSum(start[name], none), *values] for name, values in found.items()}
    return found


def square_sums(layer: Layer, seen: Float[Tensor, "seq time unit"], lags: Sequence[int]) -> list[ScaledSum] | None:
    """Sum (rate * seen)^2 over sequences, anchors and units, for every positive lag."""
    swept = _sweep(layer, lags, "SQUARES", delta=seen)
    if swept is None:
        return None
    sums, exponents = swept
    return [ScaledSum.of(m, e, dim=0) for m, e in zip(sums[0], exponents, strict=True)]


def matched_sums(
    layer: Layer, seen: Float[Tensor, "seq time unit"], moved: Float[Tensor, "seq time unit"], lags: Sequence[int]
) -> tuple[Float[Tensor, "seq lag unit"], Float[Tensor, "seq lag unit"]] | None:
    """Sum zeta = seen moved, and rate zeta, over the anchors of each sequence, for every positive lag."""
    shape = (len(seen), sum(lag > 0 for lag in lags), seen.shape[2])
    plain, weighted = np.zeros(shape), np.zeros(shape)
    scales = [2.0 ** torch.frexp(v.abs().max()).exponent.item() for v in (seen, moved)]  # float32 has a narrow range
    ones = {"delta": seen / scales[0], "moved": moved / scales[1]}
    if _sweep(layer, lags, "MATCHED", out=(plain, weighted), **ones) is None:
        return None
    scale = scales[0] * scales[1]
    return torch.from_numpy(plain * scale), torch.from_numpy(weighted * scale)


def _sweep(
    layer: Layer,
    lags: Sequence[int],
    kind: str,
    *,
    lengths: Tensor | None = None,
    delta: Tensor | None = None,
    moved: Tensor | None = None,
    out: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Run the compiled sweep over groups of sequences; return sums (kind of sum, lag, unit) and exponents (lag, unit)."""
    compiled = kernels()
    if compiled is None or layer.x.device.type != "cpu" or layer.x.dtype not in (torch.float32, torch.float64):
        return None
    positive = np.array([lag for lag in lags if lag > 0], dtype=np.int64)
    count, time = layer.x.shape[:2]
    ends = np.full(count, time) if lengths is None else lengths.cpu().numpy()
    units = layer.cell.output(layer.previous[:1]).shape[-1]
    sums = np.zeros((3 if kind == "SIZES" else 1, len(positive), units))
    exponents = np.full((len(positive), units), compiled.UNSET)
    for own in groups(count, time):
        factors = layer.cell.factors(layer.x[own], layer.previous[own], layer.params)
        places = (
            [factors.middle] if factors.is_uniform else [factors.middle, factors.newest, factors.oldest, factors.single]
        )
        tensors = [torch.stack([part for dual in places for part in dual])]
        tensors += [layer.x.new_zeros(0, 0, 0) if v is None else v[own].to(layer.x.dtype) for v in (delta, moved)]
        into = [v[own] for v in out] if out is not None else [np.zeros((0, 0, 0))] * 2
        for dtype in dict.fromkeys((layer.x.dtype, torch.float64)):
            arrays = [v.to(dtype).contiguous().numpy() for v in tensors]
            found = sums.copy(), exponents.copy(), *(np.zeros_like(v) for v in into)
            how = (getattr(compiled, kind), factors.is_uniform, *compiled.RANGES[arrays[0].dtype])
            if not len(positive) or compiled.sweep(*how, *arrays, positive, ends[own], *found):
                break
        else:
            return None
        sums, exponents = found[:2]
        for target, values in zip(into, found[2:], strict=True):
            target[...] = values
    exponents[exponents == compiled.UNSET] = 0  # no anchor reaches back that far: a sum without terms
    return torch.from_numpy(sums), torch.from_numpy(exponents)


def groups(count: int, time: int) -> Iterator[slice]:
    """Slices of sequences that are worked on together."""
    many = max(1, ROWS // time)
    for start in range(0, count, many):
        yield slice(start, min(start + many, count))
