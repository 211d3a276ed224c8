"""tanh and folded gates of the compiled kernels against extended precision."""

import numpy as np
import pytest

from lagreach.kernels.cpu.nonlinear import activate, activate_gates

EVERYWHERE = np.concatenate((np.linspace(-30, 30, 4001), np.geomspace(1e-30, 30, 2001), -np.geomspace(1e-30, 30, 2001)))


def applied(function, values, dtype):
    arguments = values.astype(dtype)[None].copy()
    result = arguments.copy()
    function(result, 0, result.shape[1])
    return arguments[0].astype(np.longdouble), result[0].astype(np.longdouble)


def largest_error(computed, exact, dtype):
    """In units of the spacing of numbers at the exact value."""
    return float(np.max(np.abs(computed - exact) / np.spacing(np.abs(exact.astype(dtype))).astype(np.longdouble)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh(dtype):
    x, computed = applied(activate, EVERYWHERE, dtype)
    assert largest_error(computed, np.tanh(x), dtype) < 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_and_their_complements(dtype):
    a, folded = applied(activate_gates, EVERYWHERE, dtype)
    smaller = 1 / (1 + np.exp(np.abs(a)))  # of s and 1 - s
    assert largest_error(np.abs(folded), smaller, dtype) < 3
    assert ((folded > 0) == (a <= 0)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30])
    _, tanh = applied(activate, special, dtype)
    np.testing.assert_array_equal(tanh, [np.nan, 1, -1, 0, 1, -1])
    _, gates = applied(activate_gates, special, dtype)
    np.testing.assert_allclose(gates.astype(float), [np.nan, 0, 0, 0.5, 0, 0], atol=1e-37)
    assert (np.signbit(gates[1:].astype(float)) == [True, False, False, True, False]).all()


def test_offsets_choose_columns():
    a = np.arange(12.0).reshape(2, 6)
    expected = a.copy()
    expected[:, 2:5] = np.tanh(expected[:, 2:5])
    activate(a, 2, 5)
    np.testing.assert_allclose(a, expected, rtol=1e-15)
