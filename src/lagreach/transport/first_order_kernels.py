"""First-order windows and their sums in one pass over time, compiled.

A unit of a sequence is followed on its own: for a block of anchors, the dual product over the window grows by one step
per lag and is summed while it lies in the nearest cache. A block carries one power of two, so that nothing under- or
overflows. Should the products of a block differ by more than their type can hold (gates that let through 1e-38), the
sweep gives up: float32 is followed by float64, and that by the plain version in `lagreach.transport.dual`.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np
from numba import njit, uintp

ANCHORS = 1024  # of a block
PAD = 64  # zeros around every row: loops run over multiples of this many anchors, so that none ends in single steps
UNITS = 16  # that are laid out in one go: a cache line of float32
CHECK_EVERY = 4  # lags
RANGES = {  # a block is rescaled beyond 2**+-first; windows below 2**-second are lost beside their neighbours
    np.dtype(np.float32): (2.0**20, 2.0**-60),
    np.dtype(np.float64): (2.0**300, 2.0**-500),
}
SINGLE = 2.0**-100  # float32's `least` lies above, float64's below; an exact zero may be a lost float32
UNSET = np.iinfo(np.int64).min // 4  # exponent of a sum without terms

compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
@no_type_check
def _lay_out(values, n, first, many, out):
    """Copy some units of a sequence (time, unit) into rows of their own, (unit, pad + time + pad)."""
    for t in range(values.shape[1]):
        for q in range(many):
            out[q, PAD + t] = values[n, t, first + q]


# Below, `low` and `high` bound the anchors of a block that reach back far enough, and `older` is the step that the first of
# them meets. Indices are unsigned: a check for negative ones would keep loops from being vectorised.


@compiled
@no_type_check
def _grow(real, slope, low, high, factor, slant, older):
    """Put an older step behind each window."""
    for k in range(high - low):
        i, j = uintp(k + low), uintp(k + older)
        kept = real[i]
        slope[i] = kept * slant[j] + slope[i] * factor[j]
        real[i] = kept * factor[j]


@compiled
@no_type_check
def _grow_and_size(real, slope, low, high, factor, slant, older, terms):
    """Do what `_grow` and `_size_terms` do, in one pass."""
    retained = corrected = rate = real.dtype.type(0)
    for k in range(high - low):
        i, j = uintp(k + low), uintp(k + older)
        kept = real[i]
        y = kept * slant[j] + slope[i] * factor[j]
        x = kept * factor[j]
        slope[i], real[i] = y, x
        retained += abs(x)
        corrected += abs(y)
        rate += abs(x + y)
    terms[0], terms[1], terms[2] = retained, corrected, rate


@compiled
@no_type_check
def _closed(real, slope, low, high, factor, slant, older, to_real, to_slope):
    """Windows with the oldest step behind them, in other memory."""
    for k in range(high - low):
        i, j = uintp(k + low), uintp(k + older)
        to_slope[i] = real[i] * slant[j] + slope[i] * factor[j]
        to_real[i] = real[i] * factor[j]


@compiled
@no_type_check
def _rescaled(real, slope, low, high, exponent, large, least, padded):
    """Bring a block of windows back to order one when it has drifted.

    Returns its exponent, and whether its windows have become too unequal to share one; `padded` of them are zero anyway.
    """
    size, lost = real.dtype.type(0), 0  # a sum, since a maximum is not vectorised
    bound, zeros_too = real.dtype.type(least), least > SINGLE
    expected = padded if zeros_too else 0
    for k in range(high - low):
        i = uintp(k + low)
        own = abs(real[i]) + abs(slope[i])
        size += own
        lost += (own < bound) & ((own > 0) | zeros_too)
    if size == 0.0 or 1 / large <= size <= large or not math.isfinite(size):
        return exponent, lost > expected
    shift = math.frexp(size)[1]
    half = shift // 2
    first, second = real.dtype.type(math.ldexp(1.0, -half)), real.dtype.type(math.ldexp(1.0, half - shift))
    for i in range(low, high):
        real[i] = real[i] * first * second
        slope[i] = slope[i] * first * second
    return exponent + shift, lost > expected


@compiled
@no_type_check
def _add(sums, exponents, column, unit, terms, exponent):
    """Add ``terms * 2**exponent`` to the sums of a lag and unit."""
    before = exponents[column, unit]
    if before == exponent:
        for k in range(len(terms)):
            sums[k, column, unit] += terms[k]
        return
    if before == UNSET or exponent > before:
        if before != UNSET:
            for k in range(len(terms)):
                sums[k, column, unit] = math.ldexp(sums[k, column, unit], max(before - exponent, -5000))
        exponents[column, unit] = exponent
        before = exponent
    for k in range(len(terms)):
        sums[k, column, unit] += math.ldexp(terms[k], max(exponent - before, -5000))


@compiled
@no_type_check
def _size_terms(real, slope, low, high, terms):
    retained = corrected = rate = real.dtype.type(0)
    for k in range(high - low):
        i = uintp(k + low)
        retained += abs(real[i])
        corrected += abs(slope[i])
        rate += abs(real[i] + slope[i])
    terms[0], terms[1], terms[2] = retained, corrected, rate


@compiled
@no_type_check
def _square_terms(real, slope, low, high, delta, anchor, terms):
    total = 0.0  # float64: squares leave float32's range early
    for k in range(high - low):
        i = uintp(k + low)
        value = np.float64(real[i] + slope[i]) * delta[uintp(k + anchor)]
        total += value * value
    terms[0] = total


@compiled
@no_type_check
def _matched_terms(real, slope, low, high, delta, anchor, moved, reached, terms):
    plain = weighted = real.dtype.type(0)
    for k in range(high - low):
        i = uintp(k + low)
        zeta = delta[uintp(k + anchor)] * moved[uintp(k + reached)]
        plain += zeta
        weighted += (real[i] + slope[i]) * zeta
    terms[0], terms[1] = plain, weighted


@compiled
@no_type_check
def _grow_and_match(real, slope, low, high, factor, slant, older, delta, anchor, moved, terms):
    """Do what `_grow` and `_matched_terms` do, in one pass."""
    plain = weighted = real.dtype.type(0)
    for k in range(high - low):
        i, j = uintp(k + low), uintp(k + older)
        kept = real[i]
        y = kept * slant[j] + slope[i] * factor[j]
        x = kept * factor[j]
        slope[i], real[i] = y, x
        zeta = delta[uintp(k + anchor)] * moved[uintp(k + older - 1)]
        plain += zeta
        weighted += (x + y) * zeta
    terms[0], terms[1] = plain, weighted


SIZES, SQUARES, MATCHED = 0, 1, 2  # sums of first powers, of squares, of products with zeta


@compiled
@no_type_check
def sweep(kind, uniform, large, least, factors, delta, moved, lags, lengths, sums, exponents, plain, weighted):
    """Sum over anchors what first-order windows say at ascending lags >= 1.

    Parameters
    ----------
    kind
        SIZES: sums of |retention|, |correction| and |rate| by lag and unit, into `sums` (3, lag, unit) and `exponents`.
        SQUARES: of (rate delta)^2, into `sums` (1, lag, unit). MATCHED: of zeta = delta moved and of rate zeta, into `plain`
        and `weighted` (seq, lag, unit), where moved is taken at the position reached.
    uniform
        Whether every place in a window has the factor of the middle.
    large, least
        See `RANGES`.
    factors
        (8, seq, time, unit): real and slope of middle, newest, oldest, single; (2, ...) if uniform. Their type is the one
        that windows are computed in.
    lengths
        Anchors beyond a sequence's length do not count.

    Returns
    -------
    Whether it worked: False if windows of one block differ by more than their type can hold.
    """
    count, time, units = factors.shape[1:]
    last = lags[-1]
    rows = np.zeros((len(factors), UNITS, PAD + time + PAD), factors.dtype)
    own_delta = np.zeros((UNITS, PAD + time + PAD), factors.dtype)
    own_moved = np.zeros((UNITS, PAD + time + PAD), factors.dtype)
    real, slope = np.zeros(ANCHORS, factors.dtype), np.zeros(ANCHORS, factors.dtype)
    far_real, far_slope = np.zeros(ANCHORS, factors.dtype), np.zeros(ANCHORS, factors.dtype)
    terms = np.zeros(len(sums)) if kind != MATCHED else np.zeros(2)
    for n in range(count):
        for first in range(0, units, UNITS):
            many = min(UNITS, units - first)
            for k in range(len(factors)):
                _lay_out(factors[k], n, first, many, rows[k])
                rows[k, :, PAD] = 0.0  # no window holds the first step: an anchor that would reach it ends there
            if kind != SIZES:
                _lay_out(delta, n, first, many, own_delta)
            if kind == MATCHED:
                _lay_out(moved, n, first, many, own_moved)
            for q in range(many):
                middle, slant = rows[0, q], rows[1, q]
                d, m = own_delta[q], own_moved[q]
                for start in range(0, lengths[n], ANCHORS):
                    ends = min(ANCHORS, lengths[n] - start)
                    high = min(ANCHORS, (ends + PAD - 1) // PAD * PAD)
                    real[:ends], real[ends:high] = 1.0, 0.0
                    slope[:high] = 0.0
                    exponent = 0
                    column = 0
                    for lag in range(1, last + 1):
                        begins = max(0, lag - start)  # earlier anchors do not reach back that far
                        if begins >= ends:
                            break
                        low = begins // PAD * PAD
                        asked, anchor = lags[column] == lag, PAD + start + low
                        older = anchor - lag + 1
                        if uniform:
                            if asked and kind == SIZES:
                                _grow_and_size(real, slope, low, high, middle, slant, older, terms)
                            elif asked and kind == MATCHED:
                                _grow_and_match(real, slope, low, high, middle, slant, older, d, anchor, m, terms)
                            else:
                                _grow(real, slope, low, high, middle, slant, older)
                                if asked:
                                    _square_terms(real, slope, low, high, d, anchor, terms)
                        else:
                            if lag == 1:
                                for i in range(ends):
                                    at = PAD + start + i
                                    far_real[i], far_slope[i] = rows[6, q, at], rows[7, q, at]
                                    real[i], slope[i] = rows[2, q, at], rows[3, q, at]
                                far_real[ends:], far_slope[ends:] = 0.0, 0.0
                            else:
                                if asked:
                                    _closed(real, slope, low, high, rows[4, q], rows[5, q], older, far_real, far_slope)
                                _grow(real, slope, low, high, middle, slant, older)
                            if asked and kind == SIZES:
                                _size_terms(far_real, far_slope, low, high, terms)
                            elif asked and kind == SQUARES:
                                _square_terms(far_real, far_slope, low, high, d, anchor, terms)
                            elif asked:
                                _matched_terms(far_real, far_slope, low, high, d, anchor, m, older - 1, terms)
                        if asked:
                            if kind == MATCHED:
                                plain[n, column, first + q] += terms[0]
                                weighted[n, column, first + q] += math.ldexp(terms[1], max(exponent, -5000))
                            else:
                                _add(sums, exponents, column, first + q, terms, (1 + kind) * exponent)
                            column += 1
                        if lag % CHECK_EVERY == 0:
                            padded = high - low - (ends - begins)
                            exponent, lost = _rescaled(real, slope, low, high, exponent, large, least, padded)
                            if lost:
                                return False
    return True
