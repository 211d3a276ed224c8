"""tanh and the sigmoid in a form that the compiler vectorises, within 2 ulp; NaN stays NaN.

Both rest on ``exp(u) = 2^k (1 + p)``, where ``p = expm1(u - k ln 2)`` is a polynomial. Two dtypes, one source: only the
constants differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
from numba import njit, types
from numba.extending import overload

from lagreach.kernels.cpu.compiled import inlined, use_whole_registers

# The reduction of the argument depends on the order of its operations, so nothing may be regrouped here.
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}

# Coefficients of (expm1(r) - r) / r^2, highest first. float32: those of Cephes; float64: Taylor's, whose remainder is
# 4e-18 for |r| <= ln(2) / 2.
SINGLE = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
DOUBLE = tuple(1 / math.factorial(n) for n in range(13, 1, -1))


def tanh(x: Any) -> Any:
    """Hyperbolic tangent; a name for the compiled function."""
    raise NotImplementedError


def fold(a: Any) -> Any:
    """``s = sigmoid(a)`` if that is below 1/2, else ``s - 1``: one number that keeps both s and 1 - s accurate."""
    raise NotImplementedError


def sigmoid_of(folded: Any) -> Any:
    """``s`` of a folded gate."""
    raise NotImplementedError


def one_minus_sigmoid_of(folded: Any) -> Any:
    """``1 - s`` of a folded gate."""
    raise NotImplementedError


@no_type_check
def _functions(real: type, integer: type) -> dict[str, Callable[[Any], Any]]:
    """Build the four functions for one dtype."""
    single = real is np.float32
    digits = 23 if single else 52
    magic = real(1.5 * 2.0**digits)  # adding it rounds to an integer, which then stands in the low bits
    log2e = real(1 / math.log(2))
    ln2_high = real(0.693359375 if single else 6.93145751953125e-1)
    ln2_low = real(-2.12194440e-4 if single else 1.42860682030941723212e-6)
    coefficients = tuple(real(c) for c in (SINGLE if single else DOUBLE))
    terms = len(coefficients)
    shift, bias = integer(digits), integer((127 if single else 1023) << digits)
    zero, one, two = real(0), real(1), real(2)
    tanh_is_one = real(20 if single else 42)  # from this value of 2 |x| on
    # Beyond this a gate is shut: 1e-38 and 1e-304 are normal numbers, never zero, so that folding keeps its sign. Unfolded, such
    # a gate and its slope are exactly zero, as torch has them: inputs of 1e30 would make something of 1e-38.
    gate_is_shut, shut = real(87 if single else 700), real(2e-38 if single else 2e-304)

    @njit(**OPTIONS)
    def split(u):
        z = real(u * log2e + magic)
        k = z - magic
        r = (u - k * ln2_high) - k * ln2_low
        p = coefficients[0]
        for n in range(1, terms):  # the compiler unrolls this; it would not unroll a loop over the tuple itself
            p = p * r + coefficients[n]
        return integer((real(z).view(integer) << shift) + bias).view(real), (p * r) * r + r

    def tanh_(x):
        u = abs(x + x)
        power, p = split(tanh_is_one if u > tanh_is_one else u)
        e = power * p + (power - one)  # expm1(2 |x|)
        t = e / (e + two)
        return t if x >= 0 else -t

    def fold_(a):
        u = abs(a)
        power, p = split(-(gate_is_shut if u > gate_is_shut else u))
        e = power * p + power  # exp(-|a|)
        small = e / (one + e)
        return -small if a > 0 else small

    def sigmoid_(folded):
        return one + folded if folded < 0 else folded if folded > shut else zero

    def one_minus_sigmoid_(folded):
        return one - folded if folded > 0 else -folded if folded < -shut else zero

    return {"tanh": tanh_, "fold": fold_, "sigmoid_of": sigmoid_, "one_minus_sigmoid_of": one_minus_sigmoid_}


_BUILT = {types.float32: _functions(np.float32, np.int32), types.float64: _functions(np.float64, np.int64)}


@overload(tanh, jit_options=OPTIONS)
@no_type_check
def _tanh(x):
    return _BUILT[x]["tanh"]


@overload(fold, jit_options=OPTIONS)
@no_type_check
def _fold(a):
    return _BUILT[a]["fold"]


@overload(sigmoid_of, jit_options=OPTIONS)
@no_type_check
def _sigmoid_of_folded(folded):
    return _BUILT[folded]["sigmoid_of"]


@overload(one_minus_sigmoid_of, jit_options=OPTIONS)
@no_type_check
def _one_minus_sigmoid_of_folded(folded):
    return _BUILT[folded]["one_minus_sigmoid_of"]


# In loops of their own, because a loop that also reads and writes other arrays is not always vectorised. Offsets are
# unsigned for the same reason: a signed index might count from the end.


@inlined
@no_type_check
def activate(a, lo, hi):
    """``a[:, lo:hi] = tanh(a[:, lo:hi])``."""
    use_whole_registers()
    start, count = np.uint64(lo), np.uint64(hi - lo)
    for i in range(a.shape[0]):
        for j in range(count):
            a[i, start + j] = tanh(a[i, start + j])


@inlined
@no_type_check
def activate_gates(a, lo, hi):
    """``a[:, lo:hi] = sigmoid(a[:, lo:hi])``, folded."""
    use_whole_registers()
    start, count = np.uint64(lo), np.uint64(hi - lo)
    for i in range(a.shape[0]):
        for j in range(count):
            a[i, start + j] = fold(a[i, start + j])
