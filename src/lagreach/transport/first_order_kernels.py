"""First-order windows and their sums in one pass over time, compiled.

A unit of a sequence is followed on its own: for a block of anchors, the dual product over the window grows by one step
per lag and is summed while it lies in the nearest cache. A block carries one power of two, so that nothing under- or
overflows; what vanishes beside the largest product of its block could not be seen in a sum. The plain version is
`lagreach.transport.dual`.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np
from numba import njit

ANCHORS = 256  # of a block
UNITS = 16  # that are laid out in one go: a cache line of float32
CHECK_EVERY = 4  # lags; four factors of 2**-126 (the smallest normal float32) stay far above float64's smallest
TOO_SMALL, TOO_LARGE = 2.0**-300, 2.0**300
UNSET = np.iinfo(np.int64).min // 4  # exponent of a sum without terms

compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
@no_type_check
def _lay_out(values, n, first, many, out):
    """Copy some units of a sequence (time, unit) into rows of their own, (unit, time), float64."""
    for t in range(values.shape[1]):
        for q in range(many):
            out[q, t] = values[n, t, first + q]


@compiled
@no_type_check
def _grow(real, slope, factor, slant):
    """Put an older step behind each window."""
    for i in range(len(real)):
        kept = real[i]
        slope[i] = kept * slant[i] + slope[i] * factor[i]
        real[i] = kept * factor[i]


@compiled
@no_type_check
def _closed(real, slope, factor, slant, to_real, to_slope):
    """Windows with the oldest step behind them, in other memory."""
    for i in range(len(real)):
        to_slope[i] = real[i] * slant[i] + slope[i] * factor[i]
        to_real[i] = real[i] * factor[i]


@compiled
@no_type_check
def _rescaled(real, slope, exponent):
    """Bring a block of windows back to order one when it has drifted; return its exponent."""
    largest = 0.0
    for i in range(len(real)):
        largest = max(largest, max(abs(real[i]), abs(slope[i])))
    if largest == 0.0 or TOO_SMALL <= largest <= TOO_LARGE or not math.isfinite(largest):
        return exponent
    shift = math.frexp(largest)[1]
    half = shift // 2
    first, second = math.ldexp(1.0, -half), math.ldexp(1.0, half - shift)
    for i in range(len(real)):
        real[i] = real[i] * first * second
        slope[i] = slope[i] * first * second
    return exponent + shift


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
def _size_terms(real, slope, terms):
    kept, moved, both = 0.0, 0.0, 0.0
    for i in range(len(real)):
        kept += abs(real[i])
        moved += abs(slope[i])
        both += abs(real[i] + slope[i])
    terms[0], terms[1], terms[2] = kept, moved, both


@compiled
@no_type_check
def _square_terms(real, slope, delta, terms):
    total = 0.0
    for i in range(len(real)):
        value = (real[i] + slope[i]) * delta[i]
        total += value * value
    terms[0] = total


@compiled
@no_type_check
def _matched_terms(real, slope, delta, moved, terms):
    plain, weighted = 0.0, 0.0
    for i in range(len(real)):
        zeta = delta[i] * moved[i]
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
                        asked = lags[column] == lag
                        # slices, so that every loop counts from zero: only then is it vectorised
                        re, sl, far_re, far_sl = real[low:high], slope[low:high], far_real[low:high], far_slope[low:high]
                        at = slice(start + low, start + high)
                        reached = slice(at.start - lag, at.stop - lag)
                        joined = slice(reached.start + 1, reached.stop + 1)
                        if uniform:
                            _grow(re, sl, rows[0, q, joined], rows[1, q, joined])
                            far_re, far_sl = re, sl
                        elif lag == 1:
                            far_re[:], far_sl[:] = rows[6, q, at], rows[7, q, at]
                            re[:], sl[:] = rows[2, q, at], rows[3, q, at]
                        else:
                            if asked:
                                _closed(re, sl, rows[4, q, joined], rows[5, q, joined], far_re, far_sl)
                            _grow(re, sl, rows[0, q, joined], rows[1, q, joined])
                        if asked and kind == SIZES:
                            _size_terms(far_re, far_sl, terms)
                            _add(sums, exponents, column, first + q, terms, exponent)
                        elif asked and kind == SQUARES:
                            _square_terms(far_re, far_sl, own_delta[q, at], terms)
                            _add(sums, exponents, column, first + q, terms, 2 * exponent)
                        elif asked:
                            _matched_terms(far_re, far_sl, own_delta[q, at], own_moved[q, reached], terms)
                            plain[n, column, first + q] += terms[0]
                            weighted[n, column, first + q] += math.ldexp(terms[1], max(exponent, -5000))
                        if asked:
                            column += 1
                        if lag % CHECK_EVERY == 0:
                            exponent = _rescaled(re, sl, exponent)
