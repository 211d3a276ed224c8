"""The compiled sweep over lags and the closed forms that feed it, beside the plain windows and autodiff."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from lagreach import GatedRNN, all_cells, effective_rates, rollout
from lagreach._util.autodiff import directional_derivative
from lagreach.adapters.torch_cells import cell_of
from lagreach.cells import Dual, Factors
from lagreach.kernels.cpu.steps import DIAGONALS, first_order_steps
from lagreach.papers.livi.matched import matched_statistic, rates_and_matched_statistic
from lagreach.transport import first_order_sums
from lagreach.transport.dual import windows
from lagreach.transport.first_order_sums import LagSums
from lagreach.transport.scaled import times_power_of_two
from lagreach.transport.sensitivity import immediate_sensitivity
from tests.cases import normal

DTYPES = {torch.float32: {"rtol": 2e-5, "atol": 1e-6}, torch.float64: {"rtol": 1e-11, "atol": 1e-13}}


def example(cell, generator, dtype=torch.float64):
    x, s, params = cell.example(generator, hidden_size=19, time=11)
    direction = {name: normal(generator, *p.shape).to(dtype) for name, p in params.items()}
    return x.to(dtype), s.to(dtype), {name: p.to(dtype) for name, p in params.items()}, direction


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*DIAGONALS, "torch.nn.LSTM"])
def test_compiled_steps_equal_the_cell_and_autodiff(name, dtype, generator):
    cell = cell_of(nn.LSTM(3, 19)) if name == "torch.nn.LSTM" else all_cells()[name]()
    x, s, params, direction = example(cell, generator, dtype)
    steps = first_order_steps(cell, x, s, params, direction)
    expected = cell.factors(x, s, params)
    torch.testing.assert_close(tuple(steps.factors), tuple(expected), **DTYPES[dtype])
    assert steps.factors.is_uniform == expected.is_uniform
    moved = directional_derivative(lambda p: cell.step(x, s, p), params, direction)
    torch.testing.assert_close(steps.moved, moved, **DTYPES[dtype])
    assert first_order_steps(cell, x, s, params).moved is None


def test_compiled_steps_leave_other_cells_alone(generator):
    class Mine(all_cells()["diag_gate"]):
        pass

    for cell in (all_cells()["gru"](), all_cells()["lstm"](layernorm=True), Mine()):
        x, s, params, _ = example(cell, generator)
        assert first_order_steps(cell, x, s, params) is None


@pytest.mark.parametrize("gate", [1e-4, 1 - 1e-4])
def test_compiled_steps_keep_nearly_closed_and_nearly_open_gates(gate, generator):
    cell = all_cells()["diag_gate"]()
    x, s, params, _ = example(cell, generator, torch.float32)
    params |= {
        "b_s": torch.full((19,), math.log(gate / (1 - gate))),
        "W_s": params["W_s"] / 100,
        "U_s": params["U_s"] / 100,
    }
    middle = first_order_steps(cell, x, s, params).factors.middle
    exact = cell.factors(x.double(), s.double(), {name: p.double() for name, p in params.items()}).middle
    torch.testing.assert_close(middle.real.double(), exact.real, rtol=1e-5, atol=0)
    size = exact.slope.abs().mean().item()
    torch.testing.assert_close(middle.slope.double(), exact.slope, rtol=1e-5, atol=1e-5 * size)


def options(cls):
    yield cls()
    if "layernorm" in {f.name for f in dataclasses.fields(cls)}:
        yield cls(layernorm=True)


@pytest.mark.parametrize("name", sorted(all_cells()))
def test_immediate_sensitivity_is_the_derivative_of_one_step(name, generator):
    for cell in options(all_cells()[name]):
        model = GatedRNN(cell, 2, 5, 1, generator=generator, dtype=torch.float64)
        part = rollout(model, normal(generator, 3, 40, 2))
        direction = {n: normal(generator, *p.shape) for n, p in part.recurrence.params.items()}
        stack = part.recurrence.stack
        expected = directional_derivative(
            lambda p, part=part, stack=stack: stack.step(part.x, part.previous, p), part.recurrence.params, direction
        )
        torch.testing.assert_close(immediate_sensitivity(part, direction), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["const_gate", "gru", "lstm"])
def test_both_together_are_the_two_apart(name, layers, generator):
    model = GatedRNN(name, 2, 5, 1, num_layers=layers, generator=generator, dtype=torch.float64)
    x, y = normal(generator, 9, 40, 2), normal(generator, 9, 40, 1)
    for lags, options in (
        ([0, 1, 2, 7, 39], {}),
        ([3, 4], {"chunk": 4}),
        ([1, 5], {"lengths": [40, 7, 9, 40, 2, 1, 40, 3, 5]}),
    ):
        rates, matched = rates_and_matched_statistic(model, x, y, lags, lr=0.1, generator=3, **options)
        alone = effective_rates(model, x, lags, lr=0.1, **options)
        torch.testing.assert_close(rates.log10_rates, alone.log10_rates, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(rates.log10_channels, alone.log10_channels, rtol=1e-10, atol=1e-10)
        assert (rates.lr, rates.form, rates.status) == (alone.lr, alone.form, alone.status)
        apart = matched_statistic(model, x, y, lags, generator=3, **options)
        np.testing.assert_allclose(matched.values, apart.values, rtol=1e-9, atol=1e-15)
        np.testing.assert_array_equal(matched.used, apart.used)


def test_both_together_without_the_compiled_sweep(monkeypatch, generator):
    model = GatedRNN("diag_gate", 2, 5, 1, generator=generator, dtype=torch.float64)
    x, y = normal(generator, 8, 40, 2), normal(generator, 8, 40, 1)
    fused = rates_and_matched_statistic(model, x, y, [0, 1, 2, 30])
    monkeypatch.setattr(first_order_sums, "kernels", lambda: None)
    plain = rates_and_matched_statistic(model, x, y, [0, 1, 2, 30])
    torch.testing.assert_close(fused[0].log10_rates, plain[0].log10_rates, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fused[1].values, plain[1].values, rtol=1e-9, atol=1e-15)


def drawn(generator, kind, time, dtype):
    """Factors of one window's step: hardly any decay, fast decay, growth, or one that changes on the way."""
    shape = (2, time, 18)
    slow = 1 - 0.02 * torch.rand(*shape, generator=generator)
    t = torch.arange(time)[:, None]
    real = {
        "slow": slow,
        "fast": 0.02 * slow,
        "growing": 1.5 * slow,
        "sudden": torch.where(t < time // 2, slow, 0.9 * slow),  # too much for float32
        "forgetting": torch.where((t > time // 3) & (t < time // 2), 1e-7 * slow, slow),  # and this for float64
        "erasing": torch.where(t == time // 2, 0.0, torch.where(t > time // 2, 1e-3 * slow, slow)),
    }[kind].to(dtype)
    return Dual(real, 0.1 * real * torch.randn(*shape, generator=generator).to(dtype))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", ["slow", "fast", "growing", "sudden", "forgetting", "erasing"])
def test_sums_of_sizes_squares_and_products_equal_those_of_plain_windows(kind, ends, dtype, generator):
    time, lags = 1100, [1, 2, 3, 8, 9, 30, 64, 65, 200, 1040]  # more anchors than a block holds
    middle = drawn(generator, kind, time, dtype)
    places = (drawn(generator, kind, time, dtype) for _ in range(3))
    factors = Factors(next(places), middle, next(places), next(places)) if ends else Factors.uniform(middle)
    delta, moved = (torch.randn(2, time, 18, generator=generator).to(dtype) for _ in range(2))
    sizes, squares = LagSums(lags, 18, "sizes"), LagSums(lags, 18, "squares")
    plain, weighted = sizes.add(factors, delta=delta, moved=moved)
    assert squares.add(factors, delta=delta) is not None
    log_sizes = {name: s.log10() for name, s in sizes.sizes().items()}
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    for i, window in enumerate(windows(factors, lags)):
        exponent = torch.zeros_like(window.real, dtype=torch.int32) if window.exponent is None else window.exponent
        for name, values in (("retention", window.real), ("correction", window.slope), ("rate", window.rate())):
            log_sum = log10_sum(values.abs(), exponent, (0, 1))
            torch.testing.assert_close(log_sizes[name][i], log_sum, **tolerance)
        squared = log10_sum((window.rate() * delta[:, window.lag :]).square(), 2 * exponent, (0, 1))
        torch.testing.assert_close(squares.squares().log10()[i], squared, **tolerance)
        zeta = (delta[:, window.lag :] * moved[:, : time - window.lag]).double()
        rate = times_power_of_two(window.rate(), exponent)
        size = times_power_of_two(window.real.abs() + window.slope.abs(), exponent)  # what rounding is relative to
        for products, factor, scale in ((plain[:, i], 1.0, 1.0), (weighted[:, i], rate, size)):
            error = np.abs(products - (factor * zeta).sum(1).numpy())
            assert (error <= tolerance["rtol"] * (scale * zeta.abs()).sum(1).numpy()).all()


def test_products_of_very_small_numbers_are_kept_in_float32(generator):
    factors = Factors.uniform(drawn(generator, "slow", 300, torch.float32))
    delta, moved = (torch.randn(2, 300, 18, generator=generator) for _ in range(2))
    usual = LagSums([1, 9], 18).add(factors, delta=delta, moved=moved)
    small = LagSums([1, 9], 18).add(factors, delta=2.0**-110 * delta, moved=2.0**-110 * moved)
    np.testing.assert_allclose(2.0**220 * small, usual, rtol=1e-5, atol=1e-5)


def test_a_gate_that_opens_wide_for_a_while(monkeypatch, generator):
    model = GatedRNN("diag_gate", 1, 3, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["W_s"][:] = 1.0
    x = torch.where((torch.arange(300) // 60 % 2 == 1)[:, None], 8.0, -8.0).double()[None]
    lags = [1, 2, 30, 59, 60, 61, 150, 250]
    fused, single = effective_rates(model, x, lags), effective_rates(copy.deepcopy(model).float(), x.float(), lags)
    monkeypatch.setattr(first_order_sums, "kernels", lambda: None)
    plain = effective_rates(model, x, lags)
    assert plain.log10_rates[-1].max() < -350
    torch.testing.assert_close(fused.log10_rates, plain.log10_rates, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(single.log10_rates, plain.log10_rates, rtol=1e-4, atol=1e-4)


def log10_sum(values, exponents, dim):
    """Logarithm of a sum of values * 2**exponents, the slow way."""
    logs = torch.log10(values.double()) + exponents.double() * math.log10(2)
    return torch.logsumexp(logs * math.log(10), dim) / math.log(10)
