"""The compiled sweep over lags at its edges: blocks and lengths, mixed speeds, and which precision does the work."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lagreach.cells import Dual, Factors
from lagreach.transport import first_order_sums
from lagreach.transport.dual import windows
from lagreach.transport.first_order_sums import LagSums
from lagreach.transport.scaled import ScaledSum, times_power_of_two


def factors_of(generator, speeds, time, units=3, dtype=torch.float64, ends=False):
    """One mean factor per sequence, with slopes of either sign."""

    def one():
        wobble = 1 + 0.02 * torch.rand(len(speeds), time, units, generator=generator, dtype=torch.float64)
        real = (torch.tensor(speeds, dtype=torch.float64)[:, None, None] * wobble).to(dtype)
        return Dual(real, 0.1 * real * torch.randn(real.shape, generator=generator).to(dtype))

    middle = one()
    return Factors(one(), middle, one(), one()) if ends else Factors.uniform(middle)


def assert_like_plain_windows(factors, lags, lengths, generator, tolerance=1e-10):
    """Sizes, squares and products, anchor by anchor within the lengths."""
    real = factors.middle.real
    time, units = real.shape[1:]
    inside = torch.arange(time) < torch.as_tensor(lengths)[:, None]
    delta, moved = (torch.randn(real.shape, generator=generator).to(real) for _ in range(2))
    delta = delta * inside[..., None]
    sizes, squares = LagSums(lags, units, "sizes"), LagSums(lags, units, "squares")
    plain, weighted = sizes.add(factors, torch.as_tensor(lengths), delta, moved)
    assert squares.add(factors, torch.as_tensor(lengths), delta=delta) is not None
    logs = {name: s.log10() for name, s in sizes.sizes().items()}
    for i, window in enumerate(windows(factors, lags)):
        keep, zeta = inside[:, window.lag :, None], (delta[:, window.lag :] * moved[:, : time - window.lag]).double()
        for name, values in (("retention", window.real), ("correction", window.slope), ("rate", window.rate())):
            expected = ScaledSum.of((values * keep).abs(), window.exponent, dim=(0, 1)).log10()
            torch.testing.assert_close(logs[name][i], expected, rtol=tolerance, atol=tolerance)
        double = None if window.exponent is None else 2 * window.exponent
        expected = ScaledSum.of((window.rate() * delta[:, window.lag :]).square(), double, dim=(0, 1)).log10()
        torch.testing.assert_close(squares.squares().log10()[i], expected, rtol=tolerance, atol=tolerance)
        rate = window.rate() if window.exponent is None else times_power_of_two(window.rate(), window.exponent)
        for got, each in ((plain, zeta), (weighted, rate * zeta)):
            scale = each.abs().sum(1).numpy() + np.finfo(float).tiny
            assert (np.abs(got[:, i] - each.sum(1).numpy()) <= 100 * tolerance * scale).all()


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("speeds", [[0.9, 0.3], [0.3, 0.9], [1.2, 0.5], [0.5, 1.2]])
def test_sequences_of_different_speed_are_added_at_the_larger_scale(speeds, ends, generator):
    factors = factors_of(generator, speeds, time=200, ends=ends)
    assert_like_plain_windows(factors, [1, 2, 5, 100, 101, 199], [200, 200], generator)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 1023, 1024, 1025, 1026, 1090, 2060])
def test_lengths_around_the_edges_of_a_block(length, ends, generator):
    """64 anchors are worked on together and 1024 are a block; lags begin and end on either side of these as well."""
    lags = [1, 2, 3, 62, 63, 64, 65, 66, 1022, 1023, 1024, 1025, 1026, 2059]
    factors = factors_of(generator, [0.97, 0.9], time=2060, units=2, ends=ends)
    assert_like_plain_windows(factors, lags, [length, 70], generator)


@pytest.mark.parametrize("lags", [[1], [2], [3], [1, 2], [2, 3], [1, 3], [4, 5, 6, 7], [6, 8, 10], [5, 7, 9], [17]])
@pytest.mark.parametrize("ends", [False, True])
def test_any_pattern_of_lags(lags, ends, generator):
    """Two lags are done in one pass, wherever the pairs begin."""
    factors = factors_of(generator, [0.9, 0.8], time=18, ends=ends)
    assert_like_plain_windows(factors, lags, [18, 18], generator)


@pytest.mark.parametrize("units", [1, 15, 16, 17, 32, 33])
def test_any_number_of_units(units, generator):
    factors = factors_of(generator, [0.9, 0.8], time=9, units=units)
    assert_like_plain_windows(factors, [1, 2, 5], [9, 9], generator)


def unequal_blocks(factors, lags, lengths=None):
    """How many blocks had to be followed with a power of two for each window."""
    compiled, counts = first_order_sums.kernels(), []

    def sweep(*args):
        compiled.sweep(*args)
        if args[-2] is None:
            counts.append(args[-3].sum())

    stand_in = SimpleNamespace(
        sweep=sweep, **{name: getattr(compiled, name) for name in ("RANGES", "UNSET", "ANCHORS", "scratch")}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_order_sums, "kernels", lambda: stand_in)
        LagSums(lags, factors.middle.real.shape[2], "sizes").add(factors, lengths)
    return counts


@pytest.mark.parametrize("length", [1, 40, 64, 100, 1024, 1100])
@pytest.mark.parametrize("speed", [0.05, 0.5, 0.98, 1.0, 1.02, 1.5, 20.0])
def test_ordinary_windows_share_a_power_of_two_in_float32(speed, length, generator):
    """However fast they decay or grow, and wherever sequences end."""
    factors = factors_of(generator, [speed, speed], 1100, dtype=torch.float32)
    lags = [1, 2, 30, 64, 65, 1000, 1099]
    assert unequal_blocks(factors, lags, torch.tensor([length, 1100])) == [0]


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("step", [200, 398])  # beyond the last but one there is one window, or two
@pytest.mark.parametrize(
    ("dtype", "value", "blocks"),
    [(torch.float32, 1e-20, 6), (torch.float32, 0.0, 6), (torch.float64, 0.0, 0), (torch.float64, 1e-200, 6)],
)
def test_a_gate_that_shuts_makes_windows_unequal(dtype, value, blocks, step, ends, generator):
    """Windows with the shut step are lost beside those without, unless it is zero; in float32 a zero may be one of them."""
    factors = factors_of(generator, [1.0, 1.0], 400, dtype=dtype, ends=ends)
    factors.middle.real[:, step], factors.middle.slope[:, step] = value, 0.0
    assert unequal_blocks(factors, [1, 2, 300]) == [blocks]
    assert_like_plain_windows(factors, [1, 2, 300], [400, 350], generator, 1e-10 if dtype == torch.float64 else 2e-5)


def test_what_grows_without_a_correction_has_none():
    """A part that is exactly zero stays so, though the other is far outside the range of floats."""
    factor = torch.full((2, 3001, 1), 3.0, dtype=torch.float64)
    sums = LagSums([1, 3000], 1, "sizes")
    assert sums.add(Factors.uniform(Dual(factor, torch.zeros_like(factor)))) is not None
    sizes = sums.sizes()
    expected = torch.tensor([[math.log10(3) + math.log10(6000)], [3000 * math.log10(3) + math.log10(2)]]).double()
    for twice in (1, 2):
        added = {name: s if twice == 1 else s + s for name, s in sizes.items()}
        torch.testing.assert_close(added["retention"].log10(), expected + math.log10(twice))
        assert (added["correction"].log10() == -math.inf).all()
