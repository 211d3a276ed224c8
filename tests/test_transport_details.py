"""Small things that transport rests on: exponents that are put together, what a loss is told, which lag an error names."""

import pytest
import torch

from lagreach import GatedRNN, lag_gradients
from lagreach.cells import Dual, Factors
from lagreach.errors import InputError
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.first_order import _total
from lagreach.transport.first_order_sums import WindowSums, _power_of_two
from lagreach.transport.lags import check_lags


@pytest.mark.parametrize("largest", [1.0, 0.75, -1.0])
def test_units_with_exponents_of_their_own_are_aligned_at_the_largest(largest):
    values = torch.tensor([[[largest, 0.5, 0.0]]], dtype=torch.float64)
    exponents = torch.tensor([[[5, 3, 90]]])  # a zero may have any exponent
    found = Cotangent.aligned(2, values, exponents)
    torch.testing.assert_close(found.double(), torch.tensor([[[32 * largest, 4.0, 0.0]]], dtype=torch.float64))
    assert found.exponent is not None
    assert found.exponent.flatten().tolist() == [5]


@pytest.mark.parametrize("first", [1.0, 0.75])
def test_sums_of_numbers_with_different_exponents(first):
    parts = [
        (torch.tensor([first]), torch.tensor([5])),
        (torch.tensor([0.5]), None),
        (torch.zeros(1), torch.tensor([90])),
    ]
    total, exponent = _total(parts)
    assert exponent is not None
    assert (exponent.item(), total.item() * 2.0**5) == (5, 32 * first + 0.5)


@pytest.mark.parametrize(("lags", "named"), [([-1, 3], "lag -1"), ([1, 9], "lag 9"), ([1, 8], "lag 8")])
def test_the_lag_that_cannot_be_is_named(lags, named):
    with pytest.raises(InputError, match=named):
        check_lags(lags, time=8)


@pytest.mark.parametrize(
    ("values", "order"), [([-8.0, 1.0], 16.0), ([-1.0, 8.0], 16.0), ([0.0, 0.25], 0.5), ([0.0], 1.0)]
)
def test_the_order_of_magnitude_is_that_of_the_largest_size(values, order):
    assert _power_of_two(torch.tensor(values)) == order


def test_without_lags_there_are_no_sums():
    ones = Dual(torch.ones(3, 4, 2), torch.ones(3, 4, 2))
    found = WindowSums([0], 2, "sizes").add(Factors.uniform(ones), moved=torch.ones(3, 4, 2))
    assert found is not None
    assert found.shape == (2, 3, 0, 2)


@pytest.mark.parametrize("wrong", [3, 4, -1])
def test_classes_end_before_the_number_of_outputs(wrong, generator):
    model = GatedRNN("diag_gate", 2, 4, 3, generator=generator)
    x, y = torch.randn(2, 5, 2, generator=generator), torch.zeros(2, 5, dtype=torch.long)
    y[1, 3] = wrong
    with pytest.raises(InputError, match="class index") as raised:
        lag_gradients(model, x, y, "cross_entropy", lags=[1])
    assert str(wrong) in str(raised.value)


def test_a_loss_of_ones_own_is_told_what_does_not_count(generator):
    model = GatedRNN("diag_gate", 2, 4, 1, generator=generator)
    x, y = torch.randn(2, 5, 2, generator=generator), torch.zeros(2, 5, 1)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    seen = []

    def loss(output, target, counts):
        seen.append(counts)
        return ((output - target).square().squeeze(-1) * counts).sum(1)

    lag_gradients(model, x, y, loss, lags=[1], mask=mask)
    assert seen
    assert all(torch.equal(counts, mask[: len(counts)]) for counts in seen)  # the first sequence is also asked alone


@pytest.mark.parametrize("loss", ["mse", lambda output, target, counts: (output - target).square().mean((1, 2))])
def test_targets_that_are_no_numbers_are_refused(loss, generator):
    model = GatedRNN("diag_gate", 2, 4, 1, generator=generator)
    x, y = torch.randn(2, 5, 2, generator=generator), torch.zeros(2, 5, 1)
    y[1, 3] = torch.nan
    with pytest.raises(InputError, match="target y"):
        lag_gradients(model, x, y, loss, lags=[1])


def test_targets_may_leave_out_the_axis_of_a_single_output(generator):
    model = GatedRNN("diag_gate", 2, 4, 1, generator=generator)
    x, y = torch.randn(2, 5, 2, generator=generator), torch.randn(2, 5, 1, generator=generator)
    whole, short = (lag_gradients(model, x, target, "mse", lags=[1]).grads for target in (y, y[..., 0]))
    last, shorter = (lag_gradients(model, x, target, "mse", lags=[1]).grads for target in (y[:, -1], y[:, -1, 0]))
    for name in whole:
        torch.testing.assert_close(short[name], whole[name])
        torch.testing.assert_close(shorter[name], last[name])
    assert any(not torch.equal(last[name], whole[name]) for name in whole)
