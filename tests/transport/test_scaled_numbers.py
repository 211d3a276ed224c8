"""Numbers with a carried power of two: exact where floats end, and plain where they do not."""

import math

import pytest
import torch

from lagreach import GatedRNN, rollout
from lagreach.cells import Dual, Factors
from lagreach.transport import carry
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.dual import LagProduct, windows
from lagreach.transport.exact import exact_transport
from lagreach.transport.first_order import _total
from lagreach.transport.scaled import ScaledSum, size_in_powers_of_two, times_power_of_two
from tests.cases import normal

DOUBLE = torch.float64


@pytest.mark.parametrize(
    ("dtype", "value", "exponent"),
    [(DOUBLE, -1000, 1990), (DOUBLE, 1000, -1990), (DOUBLE, -1000, 1991), (torch.float32, -120, 241)],
)
def test_powers_of_two_beyond_the_range_of_one_factor(dtype, value, exponent):
    scaled = times_power_of_two(torch.tensor([3 * 2.0**value], dtype=dtype), torch.tensor([exponent]))
    assert scaled.item() == 3 * 2.0 ** (value + exponent)


@pytest.mark.parametrize(
    ("values", "power"), [([0.0, -3.0], 4.0), ([0.75, 0.1], 1.0), ([1.0], 2.0), ([0.0], 1.0), ([-(2.0**-70)], 2.0**-69)]
)
def test_the_power_of_two_above_the_largest_entry(values, power):
    assert size_in_powers_of_two(torch.tensor(values)) == power


def test_zeros_never_set_the_scale_of_a_sum():
    """Whatever exponent a zero has; far above the float range its power of two is infinite."""
    for far in (-9000, 0, 9000):
        summed = ScaledSum.of(torch.tensor([0.0, 3.0]), torch.tensor([far, -4000]), dim=0)
        assert (summed.mantissa.item(), summed.exponent.item()) == (3.0, -4000)
        nothing = ScaledSum.of(torch.zeros(2), torch.tensor([far, far]), dim=0)
        assert (nothing.mantissa.item(), nothing.exponent.item()) == (0.0, 0)
        assert nothing.log10().item() == -math.inf
        pair = Cotangent.aligned(1, torch.tensor([[[0.0, 3.0]]], dtype=DOUBLE), torch.tensor([[[far, 5]]]))
        assert pair.double().flatten().tolist() == [0.0, 96.0]
        total, exponent = _total([(torch.zeros(1), torch.tensor([far])), (torch.ones(1), torch.tensor([5]))])
        assert exponent is not None
        assert total.item() * 2.0 ** exponent.item() == 32.0


def test_nothing_but_zeros_has_no_exponent():
    cotangent = Cotangent.aligned(1, torch.zeros(1, 2, 3, dtype=DOUBLE), torch.full((1, 2, 3), 7))
    assert cotangent.exponent is None
    total, exponent = _total([(torch.zeros(2), torch.tensor([7, -7]))])
    assert exponent is not None
    assert (total.tolist(), exponent.tolist()) == ([0.0, 0.0], [0, 0])


@pytest.mark.parametrize("apart", [-3, 0, 3, 5000])
def test_sums_of_sums(apart):
    one, other = (
        ScaledSum(torch.tensor(3.0), torch.tensor(4000)),
        ScaledSum(torch.tensor(5.0), torch.tensor(4000 - apart)),
    )
    expected = 4000 * math.log10(2) + math.log10(3 + 5 * 2.0 ** -min(apart, 2000))
    for both in (one + other, other + one):
        assert both.exponent.item() == max(4000, 4000 - apart)
        torch.testing.assert_close(both.log10().item(), expected, rtol=1e-14, atol=0.0)


def test_sums_of_squares(generator):
    values = normal(generator, 2, 3, 4, dtype=torch.float32) * 1e-25  # whose squares float32 does not hold
    total = ScaledSum.of_squares(values)
    torch.testing.assert_close(total.mantissa, values.double().square().sum())
    assert total.exponent.item() == 0
    exponent = torch.tensor([[[5], [-900], [3]]]).expand(2, 3, 1)
    scaled = Cotangent(1, values, exponent)
    expected = (values.double().square().sum(-1).sum(0) * torch.tensor([1024.0, 0.0, 64.0])).sum()
    torch.testing.assert_close(scaled.square_norm().log10(), expected.log10(), rtol=1e-12, atol=0.0)


def at_rest(gain, dtype, time=12):
    """Rollout of units at zero that hand on `gain` times their state: transport is a power of it."""
    model = GatedRNN("diag_elman", 2, 3, 1, dtype=dtype)
    torch.nn.init.constant_(model.layers[0]["u_h"], gain)
    torch.nn.init.zeros_(model.layers[0]["b_h"])
    return rollout(model, torch.zeros(2, time, 2, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e3), (torch.float32, 1e-3), (DOUBLE, 1e100), (DOUBLE, 1e-100)]
)
def test_gradients_of_ordinary_size_carry_no_exponent(dtype, size, generator):
    """Not even when most of them are zero."""
    part = at_rest(0.5, dtype)
    delta = torch.zeros_like(part.states)
    delta[:, -1] = size * normal(generator, 2, 3, dtype=dtype)
    for arrived, _ in exact_transport(part, delta, [0, 4, 8, 11]):
        assert arrived.exponent is None
        torch.testing.assert_close(arrived.value()[:, -1], delta[:, -1] * 0.5**arrived.lag)


def test_only_gradients_that_leave_the_range_get_an_exponent():
    part = at_rest(0.5, torch.float32)
    delta = torch.ones_like(part.states)
    delta[:, 5], delta[:, 7], delta[:, 9] = 2.0**-60, 2.0**60, 0.0
    cotangent = Carry(Steps(part), delta).cotangent()
    assert cotangent.exponent is not None
    exponents = cotangent.exponent[0, :, 0].tolist()
    assert [exponents[t] for t in (0, 5, 7, 11)] == [0, -59, 61, 0]
    torch.testing.assert_close(cotangent.value(), delta, rtol=0, atol=0)


@pytest.mark.parametrize("gain", [2.0**-20, 2.0**20])
def test_steps_that_shrink_or_grow_by_a_million_lose_nothing_in_float32(gain):
    """From the edge of what is left alone, the range must hold until the next look."""
    part = at_rest(gain, torch.float32, time=40)
    edge = 1.3 * 2.0 ** (-39 if gain < 1 else 38)
    delta = torch.full_like(part.states, edge)
    for arrived, _ in exact_transport(part, delta, list(range(40))):
        log_norm = arrived.square_norm().log10().item()
        expected = 2 * (math.log10(edge) + arrived.lag * math.log10(gain)) + math.log10(6 * (40 - arrived.lag))
        assert abs(log_norm - expected) < 1e-4


def test_weights_are_summed_once_when_no_row_weights_are_given(generator):
    part = at_rest(0.5, DOUBLE)
    steps = Steps(part, ["layers.0.b_h"])
    sums = WeightSums(steps)
    delta = normal(generator, *part.states.shape)
    Carry(steps, delta).step([sums], go_on=False)
    torch.testing.assert_close(sums.take(), delta.sum((0, 1))[None, None])  # at rest, tanh has a slope of one


@pytest.mark.parametrize(
    ("count", "time", "largest"),
    [(1, 128, 16), (1, 127, 8), (3, 40, 6), (4, 32, 16), (8, 3, 8), (9, 3, 9), (20, 2, 20)],
)
def test_blocks_hold_what_a_cache_holds(monkeypatch, generator, count, time, largest):
    """Whole positions, as many as fit into ROWS rows (half of them where there are few), and at least one."""
    monkeypatch.setattr(carry, "ROWS", 16)
    sizes, linearised = [], carry.linearised

    def seen(part, positions, names):
        sizes.append(count * (positions.stop - positions.start))
        return linearised(part, positions, names)

    monkeypatch.setattr(carry, "linearised", seen)
    Steps(rollout(GatedRNN("diag_gate", 1, 2, 1, generator=generator), torch.zeros(count, time, 1)))
    sizes = sizes[1:]  # the first one was to see whether a kernel knows the cell
    assert sum(sizes) == count * time
    assert set(sizes[:-1]) <= {largest}
    assert max(sizes) == largest


def product_of(real, slope):
    return LagProduct(
        1, torch.tensor(real, dtype=DOUBLE)[None, :, None], torch.tensor(slope, dtype=DOUBLE)[None, :, None]
    )


@pytest.mark.parametrize("size", [1e-50, 1e-3, 1e3, 1e50])
def test_windows_of_ordinary_size_carry_no_exponent(size):
    product = product_of([size, 0.0, 1.0], [1.0, 0.0, -size]).after(product_of([1.0, 1.0, 1.0], [0.0, 1.0, 0.5]))
    assert product.exponent is None
    assert (product.lag, product.real.shape) == (2, (1, 2, 1))


@pytest.mark.parametrize("big", [2.0**150, 2.0**-150])
def test_only_windows_that_leave_the_range_get_an_exponent(big):
    newer, older = product_of([1.0, big, 2.0], [0.0, 0.0, 1.0]), product_of([3 * big, 5.0, 1.0], [big, 1.0, 0.0])
    product = newer.after(older)
    (first, second) = product.exponent.flatten().tolist()
    log2 = math.log2(big)
    assert (first, second) == (2 * log2 + 2, 0)  # 3 lies between 2 and 4
    assert product.real.flatten().tolist() == [0.75, 10.0]
    assert product.slope.flatten().tolist() == [0.25, 2.0 + 5.0]


def test_a_window_far_outside_the_range_at_a_lag_in_between():
    """The slope alone may be large: (1 + 2^300 E)^l = 1 + l 2^300 E."""
    factor = Dual(torch.ones(1, 9, 1, dtype=DOUBLE), torch.full((1, 9, 1), 2.0**300, dtype=DOUBLE))
    for window in windows(Factors.uniform(factor), [1, 2, 5, 8]):
        exponent = 0 if window.exponent is None else window.exponent[0, 0, 0].item()
        assert math.ldexp(window.slope[0, 0, 0].item(), exponent - 300) == window.lag
