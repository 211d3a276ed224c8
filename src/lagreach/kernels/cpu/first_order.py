"""First-order windows and their sums in one pass over time, compiled.

A unit of a sequence is followed on its own: for a block of anchors, the dual product over the window grows by two steps
per pass and is summed while it lies in the nearest cache. A block carries one power of two, so that nothing under- or
overflows. Should the products of a block differ by more than their type can hold (a gate that is wide open for a while),
the block is followed again in float64, with a power of two for each window.

What is not asked for is passed as None, and numba compiles without it. Sizes and squares are compiled together: one who waits
for one kind of sum seldom wants no other.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

import numpy as np
from numba import uintp

from lagreach.kernels.cpu.compiled import compiled, part

ANCHORS = 1024  # of a block
PAD = 64  # loops run over multiples of this many anchors, so that none ends in single steps
BEFORE = PAD + 16  # zeros before every row, a few more than a pass of two lags may reach; PAD of them behind it
UNITS = 16  # that are laid out in one go: a cache line of float32
SOON, LATE = 4, 16  # lags between two looks at a block: the wait doubles as long as the block is steady
STEADY = 64.0  # its size has changed by less than this factor
RANGES = {  # a block is rescaled beyond 2**+-first; windows below 2**-second are lost beside their neighbours
    np.dtype(np.float32): (2.0**20, 2.0**-60),
    np.dtype(np.float64): (2.0**300, 2.0**-500),
}
EACH = (2.0**-100, 2.0**100)  # a window with a power of two of its own is rescaled outside
# a range whose second number is above is float32's: there, an exact zero may be a window that was lost
SINGLE = 2.0**-100
# Rows of a unit; factors have two, real and slope. With a type: for a literal, what is called is compiled once more.
ZERO = np.int64(0)
MIDDLE, NEWEST, OLDEST, ONLY, DELTA, MOVED = (ZERO + row for row in (0, 2, 4, 6, 8, 9))
SQUARE, PLAIN, WEIGHTED, TERMS = 3, 4, 5, 6  # of a lag: three sizes, a square and two products
UNSET = np.iinfo(np.int64).min // 4  # exponent of a sum without terms


@part
@no_type_check
def _lay_out(values, n, first, many, scale, k, rows):
    """Copy some units of a sequence (time, unit), scaled, into rows k of their own, (unit, k, zeros + time + zeros)."""
    by = rows.dtype.type(scale)
    if many == UNITS:  # a loop of known length is unrolled
        for t in range(values.shape[1]):
            for q in range(UNITS):
                rows[uintp(q), k, uintp(BEFORE + t)] = by * values[n, uintp(t), uintp(first + q)]
        return
    for t in range(values.shape[1]):
        for q in range(many):
            rows[q, k, BEFORE + t] = by * values[n, t, first + q]


# Below, `low` and `high` bound the anchors of a block that reach back far enough, `anchor` is the first of them and `older`
# the step that it meets. Indices are unsigned: a check for negative ones would keep loops from being vectorised.


@part
@no_type_check
def _grow(real, slope, low, high, factor, slant, older):
    """Put two older steps behind each window."""
    for k in range(high - low):
        i, j = uintp(k + low), uintp(k + older)
        x, y = real[i], slope[i]
        a, b = factor[j], slant[j]
        x, y = x * a, x * b + y * a
        a, b = factor[j - uintp(1)], slant[j - uintp(1)]
        real[i], slope[i] = x * a, x * b + y * a


@part
@no_type_check
def _grow_and_sum(
    real, slope, low, high, factor, slant, ends, end, end_slant, older, delta, anchor, moved,
    sizes, squares, products, terms, one, two,
):  # fmt: skip
    """Do what `_grow` does and sum the windows of both lags.

    `end` and `end_slant` are the factors of the oldest step in a window, where `ends` have their own. What is wanted of
    `sizes`, `squares` and `products` (None or anything else) goes to the terms of rows `one` and `two`.
    """
    zero = real.dtype.type(0)
    retained_1 = retained_2 = corrected_1 = corrected_2 = rate_1 = rate_2 = zero
    plain_1 = plain_2 = weighted_1 = weighted_2 = zero
    square_1 = square_2 = 0.0  # float64: squares leave float32's range early
    for k in range(high - low):
        i, j, t = uintp(k + low), uintp(k + older), uintp(k + anchor)
        x, y = real[i], slope[i]
        a, b = factor[j], slant[j]
        newer_x, newer_y = x * a, x * b + y * a
        a, b = factor[j - uintp(1)], slant[j - uintp(1)]
        last_x, last_y = newer_x * a, newer_x * b + newer_y * a
        real[i], slope[i] = last_x, last_y
        if ends is None:
            x_1, y_1, x_2, y_2 = newer_x, newer_y, last_x, last_y
        else:
            a, b = end[j], end_slant[j]
            x_1, y_1 = x * a, x * b + y * a
            a, b = end[j - uintp(1)], end_slant[j - uintp(1)]
            x_2, y_2 = newer_x * a, newer_x * b + newer_y * a
        mu_1, mu_2 = x_1 + y_1, x_2 + y_2
        if sizes is not None:
            retained_1 += abs(x_1)
            retained_2 += abs(x_2)
            corrected_1 += abs(y_1)
            corrected_2 += abs(y_2)
            rate_1 += abs(mu_1)
            rate_2 += abs(mu_2)
        if squares is not None:
            value_1, value_2 = np.float64(mu_1) * delta[t], np.float64(mu_2) * delta[t]
            square_1 += value_1 * value_1
            square_2 += value_2 * value_2
        if products is not None:
            zeta_1, zeta_2 = delta[t] * moved[j - uintp(1)], delta[t] * moved[j - uintp(2)]
            plain_1 += zeta_1
            plain_2 += zeta_2
            weighted_1 += mu_1 * zeta_1
            weighted_2 += mu_2 * zeta_2
    terms[one, 0], terms[one, 1], terms[one, 2] = retained_1, corrected_1, rate_1
    terms[two, 0], terms[two, 1], terms[two, 2] = retained_2, corrected_2, rate_2
    terms[one, SQUARE], terms[two, SQUARE] = square_1, square_2
    terms[one, PLAIN], terms[one, WEIGHTED] = plain_1, weighted_1
    terms[two, PLAIN], terms[two, WEIGHTED] = plain_2, weighted_2


@part
@no_type_check
def _rescaled(real, slope, low, high, exponent, large, least, padded):
    """Bring a block of windows back to order one when it has drifted.

    Returns its exponent, its size, and whether its windows have become too unequal to share one exponent; `padded` of them
    are zero anyway.
    """
    size, lost = real.dtype.type(0), 0  # a sum, since a maximum is not vectorised
    bound, zeros_too = real.dtype.type(least), least > SINGLE
    expected = padded if zeros_too else 0
    for k in range(high - low):
        i = uintp(k + low)
        magnitude = abs(real[i]) + abs(slope[i])
        size += magnitude
        lost += (magnitude < bound) & ((magnitude > 0) | zeros_too)
    if size == 0.0 or 1 / large <= size <= large or not math.isfinite(size):
        return exponent, size, lost > expected
    shift = math.frexp(size)[1]
    half = shift // 2
    first, second = real.dtype.type(math.ldexp(1.0, -half)), real.dtype.type(math.ldexp(1.0, half - shift))
    for i in range(low, high):
        real[i] = real[i] * first * second
        slope[i] = slope[i] * first * second
    return exponent + shift, size, lost > expected


@part
@no_type_check
def _scaled(value, exponent):
    """``value * 2**exponent``; the exponent is seldom anything but zero."""
    return value if exponent == 0 or value == 0 else math.ldexp(value, max(exponent, -5000))


@part
@no_type_check
def _add(sums, exponents, terms, powers, columns):
    """Add terms ``* 2**powers`` to the sums of the first columns (lags): sizes if there are three, else squares."""
    first = 0 if sums.shape[1] == SQUARE else SQUARE
    for column in range(columns):
        before, power = exponents[column], powers[column]
        if before == power:
            for k in range(sums.shape[1]):
                sums[column, k] += terms[column, first + k]
            continue
        some = False  # zeros must not set the scale
        for k in range(sums.shape[1]):
            some |= terms[column, first + k] != 0
        if some:
            top = power if before == UNSET else max(before, power)
            exponents[column] = top
            for k in range(sums.shape[1]):
                added = _scaled(terms[column, first + k], power - top)
                sums[column, k] = _scaled(sums[column, k], before - top) + added


@part
@no_type_check
def _follow(large, least, start, stop, lags, real, slope, rows, ends, sizes, squares, products, terms, powers):
    """Follow the windows of one unit, anchored at the steps from `start` on, through all lags.

    Terms and powers of two have a row for each lag and one for what nobody asked for. Returns the number of lags that some
    anchor reaches, or -1 if windows differ too much.
    """
    a, b, d, m = rows[MIDDLE], rows[MIDDLE + 1], rows[DELTA], rows[MOVED]
    c, e = rows[OLDEST], rows[OLDEST + 1]
    high = min(ANCHORS, (stop + PAD - 1) // PAD * PAD)
    real[:stop], real[stop:high] = 1.0, 0.0
    slope[:high] = 0.0
    exponent = column = ZERO
    begin, at, nowhere = 1, BEFORE + start, len(lags)
    if ends is not None:
        # a window's only step first, then its newest one; passes of two lags follow
        if lags[0] == 1:
            _grow_and_sum(
                real, slope, ZERO, high, a, b, ends, rows[ONLY], rows[ONLY + 1], at, d, at, m,
                sizes, squares, products, terms, ZERO, nowhere,
            )  # fmt: skip
            powers[0] = 0
            column += 1
        for i in range(stop):
            real[i], slope[i] = rows[NEWEST, at + i], rows[NEWEST + 1, at + i]
        real[stop:high], slope[stop:high] = 0.0, 0.0
        begin = 2
    wait, check, known = SOON, SOON, np.float64(stop)
    for lag in range(begin, lags[-1] + 1, 2):
        if lag - start >= stop:
            break  # no anchor reaches back that far
        low = max(0, lag - start) // PAD * PAD
        anchor = at + low
        older = anchor - lag + 1
        one = column if column < nowhere and lags[column] == lag else nowhere
        column += one < nowhere
        two = column if column < nowhere and lags[column] == lag + 1 else nowhere
        column += two < nowhere
        if one == two:
            _grow(real, slope, low, high, a, b, older)
        else:
            powers[one] = powers[two] = exponent
            _grow_and_sum(
                real, slope, low, high, a, b, ends, c, e, older, d, anchor, m, sizes, squares, products, terms, one, two
            )  # fmt: skip
        if lag >= check:
            padded = high - low - (stop - min(stop, max(0, lag + 1 - start)))
            before = exponent
            exponent, size, lost = _rescaled(real, slope, low, high, exponent, large, least, padded)
            if lost:
                return -1
            steady = exponent == before and size < STEADY * known and known < STEADY * size
            wait = min(2 * wait, LATE) if steady else SOON
            check, known = lag + wait, 1.0 if exponent != before else size
    return column


@part
@no_type_check
def _follow_each(start, stop, lags, rows, uniform, terms, powers):
    """Do what `_follow` does, lag by lag, with a power of two for every window: however unequal they are.

    Powers of two take the time here, so that all terms are summed. Every step is like the others if they are `uniform`.
    """
    real, slope, exponents = np.ones(stop), np.zeros(stop), np.zeros(stop, np.int64)
    at, column = BEFORE + start, ZERO
    for lag in range(1, lags[-1] + 1):
        low = max(0, lag - start)
        if low >= stop:
            break
        older, grown = at - lag + 1, MIDDLE
        if lags[column] == lag:
            end = MIDDLE if uniform else ONLY if lag == 1 else OLDEST
            powers[column] = _sum_each(real, slope, exponents, low, stop, rows, end, older, at, at - lag, terms, column)
            column += 1
        if lag == 1 and not uniform:
            grown = NEWEST
        factor, slant, drifted = rows[grown], rows[grown + 1], 0
        for k in range(stop - low):
            i, j = uintp(k + low), uintp(k + low + older)
            x, y = real[i], slope[i]
            a, b = np.float64(factor[j]), np.float64(slant[j])
            x, y = x * a, x * b + y * a
            real[i], slope[i] = x, y
            magnitude = abs(x) + abs(y)
            drifted += ((magnitude < EACH[0]) | (magnitude > EACH[1])) & (magnitude > 0)
        if drifted:
            for i in range(low, stop):
                magnitude = abs(real[i]) + abs(slope[i])
                if (magnitude < EACH[0] or magnitude > EACH[1]) and magnitude > 0:
                    shift = math.frexp(magnitude)[1]
                    real[i], slope[i] = math.ldexp(real[i], -shift), math.ldexp(slope[i], -shift)
                    exponents[i] += shift
    return column


@part
@no_type_check
def _sum_each(real, slope, exponents, low, stop, rows, end, older, anchor, reached, terms, column):
    """Sum windows with powers of two of their own, closed by the factors `end`; return the power of two of the sums."""
    top = UNSET
    for i in range(low, stop):
        if real[i] != 0 or slope[i] != 0:
            top = max(top, exponents[i])
    retained = corrected = rate = square = plain = weighted = 0.0
    for i in range(low, stop):
        x, y = _scaled(real[i], exponents[i] - top), _scaled(slope[i], exponents[i] - top)
        a, b = np.float64(rows[end, older + i]), np.float64(rows[end + 1, older + i])
        x, y = x * a, x * b + y * a
        retained += abs(x)
        corrected += abs(y)
        rate += abs(x + y)
        value = (x + y) * rows[DELTA, anchor + i]
        square += value * value
        zeta = np.float64(rows[DELTA, anchor + i]) * rows[MOVED, reached + i]
        plain += zeta
        weighted += (x + y) * zeta
    terms[column, 0], terms[column, 1], terms[column, 2] = retained, corrected, rate
    terms[column, SQUARE], terms[column, PLAIN], terms[column, WEIGHTED] = square, plain, weighted
    return 0 if top == UNSET else top


def scratch(dtype: np.dtype[Any], time: int, lags: int) -> tuple[np.ndarray, ...]:
    """Room for a sweep: rows of units, windows, terms of lags and their powers. Made here, it needs no compiling."""
    sizes = (UNITS, 10, BEFORE + time + PAD), (2, ANCHORS), (lags + 1, TERMS)
    dtypes = dtype, dtype, np.float64
    return *(np.zeros(size, kind) for size, kind in zip(sizes, dtypes, strict=True)), np.zeros(lags + 1, np.int64)


@compiled
@no_type_check
def sweep(
    large, least, middle, ends, delta, moved, scales, lags, lengths, sums, squared, exponents, products, unequal, each, room
):  # fmt: skip
    """Sum over anchors what first-order windows say at ascending lags >= 1.

    Parameters
    ----------
    large, least
        See `RANGES`.
    middle
        Real and slope of the factor of a step, each (seq, time, unit). Their type is the one that windows are computed in.
    ends
        The same for the newest, the oldest and the only step of a window; None if they are no different.
    delta, moved
        (seq, time, unit): at the anchor and at the position reached. Where nothing needs them, delta is empty and moved None.
    scales
        What delta and moved are multiplied with: float32 has a narrow range.
    lengths
        Anchors beyond a sequence's length do not count.
    sums, squared
        (unit, lag, 3): sums of |retention|, |correction| and |rate|, or None; if `squared`, (unit, lag, 1): of (rate delta)^2,
        without `products`.
    exponents
        (unit, lag): powers of two of `sums`.
    products
        (seq, unit, lag, 2): sums of zeta = delta moved and of rate zeta, or None.
    unequal, each
        (seq, unit, block): where windows are too unequal to share one power of two. While `each` is None these blocks are marked
        and left out; a second call with anything else adds them. It is seldom needed, and compiled when it is.
    room
        From `scratch`.
    """
    count, _, units = middle[0].shape
    rows, windows, terms, powers = room
    real, slope = windows[0], windows[1]
    for n in range(count):
        for first in range(0, units, UNITS):
            many = min(UNITS, units - first)
            for k in range(2):
                _lay_out(middle[k], n, first, many, 1.0, MIDDLE + k, rows)
            if ends is not None:
                for k in range(6):
                    _lay_out(ends[k], n, first, many, 1.0, NEWEST + k, rows)
            rows[:, :DELTA, BEFORE] = 0.0  # no window holds the first step: an anchor that would reach it ends there
            if delta.size:
                _lay_out(delta, n, first, many, scales[0], DELTA, rows)
            if moved is not None:
                _lay_out(moved, n, first, many, scales[1], MOVED, rows)
            for q in range(many):
                unit = first + q
                for start in range(0, lengths[n], ANCHORS):
                    stop = min(ANCHORS, lengths[n] - start)
                    block = start // ANCHORS
                    if each is not None:
                        if not unequal[n, unit, block]:
                            continue
                        reached = _follow_each(start, stop, lags, rows[q], ends is None, terms, powers)
                    else:
                        if products is not None:
                            reached = _follow(
                                large, least, start, stop, lags, real, slope, rows[q], ends, sums, None, products, terms, powers
                            )  # fmt: skip
                        else:  # sizes or squares: for both, what takes long to compile is compiled once
                            reached = _follow(
                                large, least, start, stop, lags, real, slope, rows[q], ends, True, True, None, terms, powers
                            )  # fmt: skip
                        if reached < 0:
                            unequal[n, unit, block] = True
                            continue
                    if products is not None:
                        for column in range(reached):
                            products[n, unit, column, 0] += terms[column, PLAIN]
                            products[n, unit, column, 1] += _scaled(terms[column, WEIGHTED], powers[column])
                    if squared:
                        powers *= 2
                    if sums is not None:
                        _add(sums[unit], exponents[unit], terms, powers, reached)
