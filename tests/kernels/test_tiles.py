"""Products in register tiles against numpy: any shape, strided rows, and nothing beyond the columns that were asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from lagreach.kernels.cpu.compiled import use_whole_registers
from lagreach.kernels.cpu.tiles import ROWS, VECTOR_BYTES, VECTORS, sum_of_products

WIDE = VECTORS * VECTOR_BYTES // 4  # columns of a tile in float32
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-13}
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SIZES = st.tuples(st.integers(1, 2 * ROWS + 3), st.integers(0, 9), st.integers(1, 2 * WIDE + 5), st.integers(0, 99))


@njit
def add(C, start, pairs, lo, hi, prefetch=()):
    """As kernels call it: only compiled code can."""
    sum_of_products(C, start, pairs, lo, hi, prefetch)


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def assert_sum(C, start, pairs, lo, hi, exact):
    """Compare with the exact sum, and the other columns with what they were."""
    expected = C.astype(np.float64)
    expected[:, lo:hi] = exact[:, lo:hi]
    add(C, start, pairs, lo, hi)
    np.testing.assert_allclose(C, expected, rtol=0, atol=TOLERANCE[C.dtype.type] * max(1, np.abs(expected).max()))


@DTYPES
@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_a_product_is_added_to_some_columns(dtype, sizes):
    rows, terms, columns, seed = sizes
    rng = np.random.default_rng(seed)
    lo, hi = sorted(rng.integers(0, columns + 1, 2))
    A, W, C = normal(rng, dtype, rows, terms), normal(rng, dtype, terms, columns), normal(rng, dtype, rows, columns)
    assert_sum(C, C, ((A, W),), lo, hi, C + A.astype(np.float64) @ W)


@DTYPES
@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 5))
def test_two_products_on_top_of_one_row(dtype, sizes, more):
    rows, terms, columns, seed = sizes
    rng = np.random.default_rng(seed)
    C, row = normal(rng, dtype, rows, columns), normal(rng, dtype, columns)
    A, W = normal(rng, dtype, 2 * rows, terms + 3)[::2, 2 : terms + 2], normal(rng, dtype, terms, columns)
    B, V = normal(rng, dtype, rows, more), normal(rng, dtype, more, columns)
    assert_sum(C, row, ((A, W), (B, V)), 0, columns, row + A.astype(np.float64) @ W + B.astype(np.float64) @ V)


@DTYPES
@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 4))
def test_sums_over_two_axes_of_terms(dtype, sizes, steps):
    rows, terms, columns, seed = sizes
    rng = np.random.default_rng(seed)
    A = normal(rng, dtype, steps, terms + 2, rows)[:, 1 : terms + 1]
    W, C = normal(rng, dtype, steps, terms, columns), normal(rng, dtype, rows, columns)
    assert_sum(C, C, ((A, W),), 0, columns, C + np.einsum("str,stc->rc", A.astype(np.float64), W))


@DTYPES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row_or_column(dtype, bad):
    for rows in (ROWS, ROWS + 1, 2 * ROWS - 1):  # the last tile is full, a single row, or repeats its last row
        rng = np.random.default_rng(rows)
        columns = WIDE + 3
        A, W, C = normal(rng, dtype, rows, 4), normal(rng, dtype, 4, columns), np.zeros((rows, columns), dtype)
        A[-1, 2], W[1, -1] = bad, bad
        add(C, C, ((A, W),), 0, columns)
        assert not np.isfinite(C[-1]).any()
        assert not np.isfinite(C[:, -1]).any()
        assert np.isfinite(C[:-1, :-1]).all()


@DTYPES
def test_an_element_does_not_depend_on_where_it_lies(dtype):
    rng = np.random.default_rng(0)
    A, W = normal(rng, dtype, 1, 37), normal(rng, dtype, 37, 1)
    C = np.zeros((2 * ROWS + 3, 2 * WIDE + 5), dtype)
    add(C, C, ((np.repeat(A, len(C), 0), np.repeat(W, C.shape[1], 1)),), 0, C.shape[1])
    assert np.unique(C).size == 1


@pytest.mark.parametrize("size", [0, 1, 17, 5000])
def test_asking_for_memory_ahead_changes_nothing(size):
    rng = np.random.default_rng(size)
    A, W, later = normal(rng, np.float32, 19, 20), normal(rng, np.float32, 20, 70), normal(rng, np.float32, 1, size)
    C, plain, untouched = np.zeros((19, 70), np.float32), np.zeros((19, 70), np.float32), later.copy()
    add(plain, plain, ((A, W),), 0, 70)
    add(C, C, ((A, W),), 0, 70, (later, later))
    np.testing.assert_array_equal(C, plain)
    np.testing.assert_array_equal(later, untouched)


def test_other_layouts_and_mixed_dtypes_are_refused():
    A, W, C = np.ones((3, 4)), np.ones((4, 5)), np.zeros((3, 5))
    with pytest.raises(TypingError, match="contiguous"):
        add(C, C, ((A, np.asfortranarray(W)),), 0, 5)
    with pytest.raises(TypingError, match="last axis of A"):
        add(C, C, ((np.asfortranarray(A), W),), 0, 5)
    with pytest.raises(TypingError, match="dtype"):
        add(C, C, ((A.astype(np.float32), W),), 0, 5)


def test_loops_may_use_the_longest_vectors():
    """LLVM would not on processors of Intel. Where it matters cannot be seen here, but what LLVM is told can."""

    def plain(a):
        for i in range(a.size):
            a[i] *= 2

    def whole(a):
        use_whole_registers()
        for i in range(a.size):
            a[i] *= 2

    told = []
    for function in map(njit, (plain, whole)):
        function(np.zeros(3, np.float32))
        (code,) = function.inspect_llvm().values()
        told.append('"prefer-vector-width"="512"' in code)
    assert told == [False, True]
