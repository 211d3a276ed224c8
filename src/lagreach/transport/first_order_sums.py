"""Sums over anchors of first-order windows, compiled.

`rate_sums`, `square_sums` and `LagSums.add` return None where the compiled sweep cannot work: without numba, or on
another device. The caller then adds up the plain windows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach._util.progress import waiting
from lagreach.cells import Factors, Params
from lagreach.cells.stack import Layer
from lagreach.errors import InputError
from lagreach.kernels.entry import check_arrays
from lagreach.transport.scaled import ScaledSum

ROWS = 4096  # steps whose factors are made together: they are used while they lie in the cache
CHANNELS = ("retention", "correction", "rate")

_ready: set[tuple[str, bool, bool, bool]] = set()  # kinds of sweeps that this process has called


@cache
def kernels() -> ModuleType | None:
    """Return the compiled functions, or None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("lagreach.kernels.cpu.first_order")


def steps_of(layer: Layer, direction: Params | None = None) -> tuple[Factors, Tensor | None]:
    """First-order factors of all steps of a layer and, if a compiled kernel knows it, how its states move along a direction."""
    if kernels() is not None:
        compiled = importlib.import_module("lagreach.kernels.cpu.steps")
        fused = compiled.first_order_steps(layer.cell, layer.x, layer.previous, layer.params, direction)
        if fused is not None:
            return fused.factors, fused.moved
    return factors_of(layer), None


def factors_of(layer: Layer) -> Factors:
    """First-order factors of all steps of a layer, one for every unit of its output."""
    factors, shape = layer.cell.factors(layer.x, layer.previous, layer.params), (*layer.x.shape[:2], units_of(layer))
    parts = {
        f"{place}.{part}": (getattr(dual, part), shape)
        for place, dual in factors._asdict().items()
        for part in dual._fields
    }
    check_arrays(
        f"first order of {type(layer.cell).__name__}",
        parts,
        fix="check the cell's factors(), retention() and correction()",
    )
    return factors


class LagSums:
    """Sums over all sequences and anchors of one layer's windows, to which groups of sequences are added.

    Parameters
    ----------
    lags
        Ascending; lag 0 is left out.
    of
        "sizes": |retention|, |correction| and |rate|. "squares": (rate delta)^2. "": nothing but what `add` returns.
    """

    def __init__(self, lags: Sequence[int], units: int, of: str = "") -> None:
        self._lags, self._of = np.array([lag for lag in lags if lag > 0], dtype=np.int64), of
        self._sums = np.zeros((units, len(self._lags), {"sizes": 3, "squares": 1, "": 0}[of]))
        self._exponents: np.ndarray | None = None

    def add(
        self,
        factors: Factors,
        lengths: Tensor | None = None,
        delta: Float[Tensor, "seq time unit"] | None = None,
        moved: Float[Tensor, "seq time unit"] | None = None,
    ) -> Float[np.ndarray, "2 seq lag unit"] | None:
        """Add sequences; return for each of them the sums of zeta = delta moved and of rate zeta (none without `moved`).

        Anchors beyond a sequence's length do not count. None if the sweep cannot work.
        """
        compiled, real = kernels(), factors.middle.real
        if compiled is None or real.device.type != "cpu" or real.dtype not in (torch.float32, torch.float64):
            return None
        count, time, units = real.shape
        products = np.zeros((count, units, len(self._lags), 2)) if moved is not None else None
        if not len(self._lags):
            return np.zeros((2, count, 0, units))
        if self._exponents is None:
            self._exponents = np.full(self._sums.shape[:2], compiled.UNSET)
        stops = np.full(count, time) if lengths is None else lengths.cpu().numpy()
        self._check(factors, stops, delta, moved)
        places = [factors.middle], [] if factors.is_uniform else [factors.newest, factors.oldest, factors.single]
        scales = [1.0 if moved is None or v is None else _power_of_two(v) for v in (delta, moved)]
        inverse = (1 / scales[0], 1 / scales[1])
        middle, ends = (tuple(_array(part, real.dtype) for dual in group for part in dual) for group in places)
        seen = real.new_empty(0, 0, 0) if delta is None else delta
        other = _array(seen, real.dtype), None if moved is None else _array(moved, real.dtype)
        sums = (self._sums if self._of else None, self._of == "squares")
        how = (*compiled.RANGES[middle[0].dtype], middle, ends or None, *other, inverse, self._lags, stops)
        key = (str(real.dtype), factors.is_uniform, bool(self._of), products is None)
        shown = nullcontext() if key in _ready else waiting("compiling the sweep over lags for this machine, once ...")
        _ready.add(key)
        with shown:
            unequal = np.zeros((count, units, -(-time // compiled.ANCHORS)), dtype=bool)
            room = compiled.scratch(middle[0].dtype, time, len(self._lags))
            for each in (None, True):  # the second way is for what the first one leaves out
                if each is None or unequal.any():
                    compiled.sweep(*how, *sums, self._exponents, products, unequal, each, room)
        if products is None:
            return np.zeros((2, count, 0, units))
        return products.transpose(3, 0, 2, 1) * (scales[0] * scales[1])

    def _check(self, factors: Factors, stops: np.ndarray, delta: Tensor | None, moved: Tensor | None) -> None:
        """Compare what `sweep` is given with what it takes for granted."""
        shape = tuple(factors.middle.real.shape)
        arrays: dict[str, tuple[Tensor | np.ndarray | None, tuple[int, ...]]] = {
            f"{place} of a step": (part, shape) for place, dual in factors._asdict().items() for part in dual
        }
        arrays |= {"gradients": (delta, shape), "movements": (moved, shape), "lengths": (stops, shape[:1])}
        arrays["sums"] = self._sums, (shape[2], *self._sums.shape[1:])
        check_arrays("the sweep over lags", arrays)
        ascending = bool((np.diff(self._lags) > 0).all()) and self._lags[0] > 0
        if not ascending or stops.dtype.kind not in "iu" or (len(stops) and stops.max() > shape[1]):
            raise InputError(
                "the sweep over lags was given lags or lengths that do not fit",
                got=f"lags {self._lags[:6].tolist()}, lengths up to {stops.max()}",
                expected=f"ascending lags from 1 on, lengths up to {shape[1]}",
            )

    def sizes(self, anchors: int | None = None) -> dict[str, ScaledSum]:
        """Sums of |retention|, |correction| and |rate|, (lag, unit); first those of lag 0 if the anchors there are given."""
        sums = {name: self._scaled(k) for k, name in enumerate(CHANNELS)}
        if anchors is None:
            return sums
        one = torch.full((1, len(self._sums)), float(anchors), dtype=torch.float64)  # nothing is carried
        none = torch.zeros_like(one, dtype=torch.int64)
        start = {"retention": one, "correction": torch.zeros_like(one), "rate": one}
        return {
            name: ScaledSum(torch.cat((start[name], s.mantissa)), torch.cat((none, s.exponent)))
            for name, s in sums.items()
        }

    def squares(self) -> ScaledSum:
        """Sums of (rate delta)^2, (lag, unit)."""
        return self._scaled(0)

    def _scaled(self, part: int) -> ScaledSum:
        exponents = np.zeros(self._sums.shape[:2], np.int64) if self._exponents is None else self._exponents
        sums = self._sums[..., part]
        # a zero has no exponent: no anchor reaches back so far, or this part is zero
        exponents = np.where(sums > 0, exponents, 0)
        return ScaledSum(*(torch.from_numpy(np.ascontiguousarray(v.T)) for v in (sums, exponents)))


def rate_sums(layer: Layer, lags: Sequence[int], anchors: Bool[Tensor, "seq time"]) -> dict[str, ScaledSum] | None:
    """Sum |retention|, |correction| and |rate| over sequences and anchors: (lag, unit)."""
    sums, lengths = LagSums(lags, units_of(layer), "sizes"), anchors.sum(1)
    for rows in groups(*layer.x.shape[:2]):
        if sums.add(steps_of(part_of(layer, rows))[0], lengths[rows]) is None:
            return None
    return sums.sizes(int(lengths.sum()) if lags[0] == 0 else None)


def square_sums(layer: Layer, seen: Float[Tensor, "seq time unit"], lags: Sequence[int]) -> list[ScaledSum] | None:
    """Sum (rate * seen)^2 over sequences, anchors and units, for every positive lag."""
    sums = LagSums(lags, units_of(layer), "squares")
    for rows in groups(*layer.x.shape[:2]):
        if sums.add(steps_of(part_of(layer, rows))[0], delta=seen[rows]) is None:
            return None
    squares = sums.squares()
    return [ScaledSum.of(m, e, dim=0) for m, e in zip(squares.mantissa, squares.exponent, strict=True)]


def units_of(layer: Layer) -> int:
    """Width of the layer's output."""
    return layer.cell.output(layer.previous[:1]).shape[-1]


def part_of(layer: Layer, rows: slice) -> Layer:
    """Some sequences of a layer."""
    return layer._replace(x=layer.x[rows], previous=layer.previous[rows])


def groups(count: int, time: int) -> Iterator[slice]:
    """Slices of sequences that are worked on together."""
    many = max(1, ROWS // time)
    for start in range(0, count, many):
        yield slice(start, min(start + many, count))


def _power_of_two(values: Tensor) -> float:
    """Return the order of magnitude of the largest: float32 has a narrow range, and one over it must lie within."""
    low, high = torch.aminmax(values)
    return 2.0 ** min(max(int(torch.frexp(torch.maximum(-low, high)).exponent.item()), -100), 100)


def _array(values: Tensor, dtype: torch.dtype) -> np.ndarray:
    return values.detach().to(dtype).contiguous().numpy()
