"""First-order windows and their sums in one pass over time, compiled.

A unit of a sequence is followed on its own: for a block of anchors, the dual product over the window grows by one step
per lag and is summed while it lies in the nearest cache. A block carries one power of two, so that nothing under- or
overflows. Should the products of a block differ by more than float64 can hold (gates that let through 1e-38), the sweep
gives up and the plain version in `lagreach.transport.dual` takes over.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np
from numba import njit, uintp

ANCHORS = 256  # of a block
UNITS = 16  # that are laid out in one go: a cache line of float32
CHECK_EVERY = 4  # lags; four factors of 2**-126 (the smallest normal float32) stay far above float64's smallest
TOO_SMALL, TOO_LARGE = 2.0**-300, 2.0**300
LOST = 2.0**-500  # smaller windows may underflow before the next check
UNSET = np.iinfo(np.int64).min // 4  # exponent of a sum without terms

compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
@no_type_check
def _lay_out(values, n, first, many, out):
    """Copy some units of a sequence (time, unit) into rows of their own, (unit, time), float64."""
    for t in range(values.shape[1]):
        for q in range(many):
            out[q, t] = values[n, t, first + q]


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
    retained, corrected, rate = 0.0, 0.0, 0.0
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
def _rescaled(real, slope, low, high, exponent):
    """Bring a block of windows back to order one when it has drifted.

    Returns its exponent, and whether its windows have become too unequal to share one.
    """
    size, lost = 0.0, 0  # a sum, since a maximum is not vectorised
    for k in range(high - low):
        i = uintp(k + low)
        own = abs(real[i]) + abs(slope[i])
        size += own
        lost += (own > 0.0) & (own < LOST)
    if size == 0.0 or TOO_SMALL <= size <= TOO_LARGE or not math.isfinite(size):
        return exponent, lost > 0
    shift = math.frexp(size)[1]
    half = shift // 2
    first, second = math.ldexp(1.0, -half), math.ldexp(1.0, half - shift)
    for i in range(low, high):
        real[i] = real[i] * first * second
        slope[i] = slope[i] * first * second
    return exponent + shift, lost > 0


@compiled
@no_type_check
def _add(sums, exponents, column, unit, terms, exponent):
    """Add ``terms * 2**exponent`` to the sums of a lag and unit."""
    before = exponents[column, unit]
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
    retained, corrected, rate = 0.0, 0.0, 0.0
    for k in range(high - low):
        i = uintp(k + low)
        retained += abs(real[i])
        corrected += abs(slope[i])
        rate += abs(real[i] + slope[i])
    terms[0], terms[1], terms[2] = retained, corrected, rate


@compiled
@no_type_check
def _square_terms(real, slope, low, high, delta, anchor, terms):
    total = 0.0
    for k in range(high - low):
        i = uintp(k + low)
        value = (real[i] + slope[i]) * delta[uintp(k + anchor)]
        total += value * value
    terms[0] = total


@compiled
@no_type_check
def _matched_terms(real, slope, low, high, delta, anchor, moved, reached, terms):
    plain, weighted = 0.0, 0.0
    for k in range(high - low):
        i = uintp(k + low)
        zeta = delta[uintp(k + anchor)] * moved[uintp(k + reached)]
        plain += zeta
        weighted += (real[i] + slope[i]) * zeta
    terms[0], terms[1] = plain, weighted


SIZES, SQUARES, MATCHED = 0, 1, 2


@compiled
@no_type_check
def sweep(kind, uniform, factors, delta, moved, lags, lengths, sums, exponents, plain, weighted):
    """Sum over anchors what first-order windows say at ascending lags >= 1.

    Parameters
    ----------
    kind
        SIZES: sums of |retention|, |correction| and |rate| by lag and unit, into `sums` (3, lag, unit) and `exponents`.
        SQUARES: of (rate delta)^2, into `sums` (1, lag, unit). MATCHED: of zeta = delta moved and of rate zeta, into `plain`
        and `weighted` (seq, lag, unit), where moved is taken at the position reached.
    uniform
        Whether every place in a window has the factor of the middle.
    factors
        (8, seq, time, unit): real and slope of middle, newest, oldest, single; (2, ...) if uniform.
    lengths
        Anchors beyond a sequence's length do not count.

    Returns
    -------
    Whether it worked: False if windows of one block differ by more than float64 can hold.
    """
    count, time, units = factors.shape[1:]
    last = lags[-1]
    rows = np.empty((len(factors), UNITS, time))
    own_delta = np.empty((UNITS, time))
    own_moved = np.empty((UNITS, time))
    real, slope = np.empty(ANCHORS), np.empty(ANCHORS)
    far_real, far_slope = np.empty(ANCHORS), np.empty(ANCHORS)
    terms = np.zeros(len(sums)) if kind != MATCHED else np.zeros(2)
    for n in range(count):
        for first in range(0, units, UNITS):
            many = min(UNITS, units - first)
            for k in range(len(factors)):
                _lay_out(factors[k], n, first, many, rows[k])
            if kind != SIZES:
                _lay_out(delta, n, first, many, own_delta)
            if kind == MATCHED:
                _lay_out(moved, n, first, many, own_moved)
            for q in range(many):
                middle, slant = rows[0, q], rows[1, q]
                d, m = own_delta[q], own_moved[q]
                for start in range(0, lengths[n], ANCHORS):
                    high = min(ANCHORS, lengths[n] - start)
                    real[:high] = 1.0
                    slope[:high] = 0.0
                    exponent = 0
                    column = 0
                    for lag in range(1, last + 1):
                        low = max(0, lag - start)  # earlier anchors do not reach back that far
                        if low >= high:
                            break
                        asked, anchor = lags[column] == lag, start + low
                        older = anchor - lag + 1
                        seen_real, seen_slope = real, slope
                        if uniform and asked and kind == SIZES:
                            _grow_and_size(real, slope, low, high, middle, slant, older, terms)
                        elif uniform:
                            _grow(real, slope, low, high, middle, slant, older)
                        else:
                            seen_real, seen_slope = far_real, far_slope
                            if lag == 1:
                                for i in range(low, high):
                                    far_real[i], far_slope[i] = rows[6, q, start + i], rows[7, q, start + i]
                                    real[i], slope[i] = rows[2, q, start + i], rows[3, q, start + i]
                            else:
                                if asked:
                                    _closed(real, slope, low, high, rows[4, q], rows[5, q], older, far_real, far_slope)
                                _grow(real, slope, low, high, middle, slant, older)
                        if asked:
                            if kind == SIZES:
                                if not uniform:
                                    _size_terms(seen_real, seen_slope, low, high, terms)
                                _add(sums, exponents, column, first + q, terms, exponent)
                            elif kind == SQUARES:
                                _square_terms(seen_real, seen_slope, low, high, d, anchor, terms)
                                _add(sums, exponents, column, first + q, terms, 2 * exponent)
                            else:
                                _matched_terms(seen_real, seen_slope, low, high, d, anchor, m, older - 1, terms)
                                plain[n, column, first + q] += terms[0]
                                weighted[n, column, first + q] += math.ldexp(terms[1], max(exponent, -5000))
                            column += 1
                        if lag % CHECK_EVERY == 0:
                            exponent, lost = _rescaled(real, slope, low, high, exponent)
                            if lost:
                                return False
    return True
