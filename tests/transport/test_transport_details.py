"""Small things that transport rests on: exponents that are put together, what a loss is told, which lag an error names."""

from contextlib import nullcontext

import pytest
import torch

from lagreach import GatedRNN, lag_gradients, rollout
from lagreach.cells import Dual, Factors
from lagreach.data.lags import check_lags
from lagreach.errors import InputError
from lagreach.transport import carry, first_order_sums
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.exact import exact_transport
from lagreach.transport.first_order import (
    _total,
    first_order_transport,
    first_order_transports,
    first_order_windows,
)
from lagreach.transport.first_order_sums import LagSums, _power_of_two, groups, steps_of
from lagreach.transport.rollout import chunks
from lagreach.transport.windows import Windows
from tests.cases import normal


@pytest.mark.parametrize("largest", [1.0, 0.75, -1.0])
def test_units_with_exponents_of_their_own_are_aligned_at_the_largest(largest):
    values = torch.tensor([[[largest, 0.5, 0.0]]], dtype=torch.float64)
    exponents = torch.tensor([[[5, 3, 90]]])  # a zero may have any exponent
    cotangent = Cotangent.aligned(2, values, exponents)
    torch.testing.assert_close(cotangent.double(), torch.tensor([[[32 * largest, 4.0, 0.0]]], dtype=torch.float64))
    assert cotangent.exponent is not None
    assert cotangent.exponent.flatten().tolist() == [5]


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


@pytest.mark.parametrize(("lags", "named"), [([-1, 3], "lag -1"), ([0, 2, 9], "lag 9"), ([1, 8], "lag 8")])
def test_the_lag_that_cannot_be_is_named(lags, named):
    with pytest.raises(InputError, match=named):
        check_lags(lags, time=8)


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([-8.0, 1.0], 16.0),
        ([-1.0, 8.0], 16.0),
        ([0.0, 0.25], 0.5),
        ([0.0], 1.0),
        ([1e-38, -1e-36], 2.0**-100),
        ([1e36, -1.0], 2.0**100),
    ],
)
def test_the_order_of_magnitude_is_that_of_the_largest_size(values, order):
    assert _power_of_two(torch.tensor(values)) == order


def test_without_lags_there_are_no_sums():
    ones = Dual(torch.ones(3, 4, 2), torch.ones(3, 4, 2))
    products = LagSums([0], 2, "sizes").add(Factors.uniform(ones), moved=torch.ones(3, 4, 2))
    assert products is not None
    assert products.shape == (2, 3, 0, 2)
    nothing_moves = LagSums([1, 2], 2, "sizes").add(Factors.uniform(ones))
    assert nothing_moves is not None
    assert nothing_moves.shape == (2, 3, 0, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_left_to_the_plain_windows(dtype):
    ones = Dual(torch.ones(3, 4, 2, dtype=dtype), torch.ones(3, 4, 2, dtype=dtype))
    assert LagSums([1], 2, "sizes").add(Factors.uniform(ones)) is None


def test_groups_of_sequences_hold_what_a_cache_holds():
    assert list(groups(10, 1024)) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert list(groups(3, 4096)) == list(groups(3, 10**6)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert list(groups(3, 1)) == [slice(0, 3)]


@pytest.mark.parametrize(("dtype", "per_chunk"), [(torch.float64, 2), (torch.float32, 4)])
def test_states_of_a_chunk_stay_within_their_bytes(monkeypatch, dtype, per_chunk):
    """An LSTM with 3 units has 6 numbers per step: 480 bytes for 10 steps in double precision."""
    monkeypatch.setattr("lagreach.transport.rollout.CHUNK_BYTES", 1000)
    recurrence = rollout(GatedRNN("lstm", 2, 3, 1, dtype=dtype), torch.zeros(1, 10, 2, dtype=dtype)).recurrence
    expected = [slice(i, min(i + per_chunk, 5)) for i in range(0, 5, per_chunk)]
    assert list(chunks(recurrence, (5, 10, 2))) == expected
    assert list(chunks(recurrence, (2, 10_000, 2))) == [slice(0, 1), slice(1, 2)]  # one at least
    assert list(chunks(recurrence, (5, 10, 2), chunk=3)) == [slice(0, 3), slice(3, 5)]


def test_compiled_steps_are_used_where_they_exist(generator):
    """A cell that a kernel knows also says how its states move; others give their factors."""
    for name, known in (("diag_gate", True), ("gru", False)):
        part = rollout(GatedRNN(name, 2, 4, 1, generator=generator), torch.randn(2, 5, 2, generator=generator))
        (layer,) = part.recurrence.stack.layers(part.x, part.previous, part.states, part.recurrence.params)
        direction = {n: torch.randn(p.shape, generator=generator) for n, p in layer.params.items()}
        factors, moved = steps_of(layer, direction)
        torch.testing.assert_close(tuple(factors), tuple(layer.cell.factors(layer.x, layer.previous, layer.params)))
        assert (moved is not None) == known


@pytest.mark.thorough
def test_compiling_is_announced_once_for_each_kind_of_sweep(monkeypatch):
    shown = []

    def waiting(text):
        shown.append(text)
        return nullcontext()

    monkeypatch.setattr(first_order_sums, "waiting", waiting)
    monkeypatch.setattr(first_order_sums, "_ready", set())
    ones = Factors.uniform(Dual(torch.ones(3, 4, 2), torch.ones(3, 4, 2)))
    some = torch.ones(3, 4, 2)
    # sizes and squares are one sweep, so that a diagnosis, which asks for both, waits once
    for kind, moved, announced in (("sizes", None, 1), ("squares", None, 1), ("sizes", some, 2), ("", some, 3)):
        assert LagSums([1], 2, kind).add(ones, delta=some, moved=moved) is not None
        assert len(shown) == announced


def test_sizes_and_squares_are_one_compiled_sweep():
    ones = Factors.uniform(Dual(torch.ones(3, 4, 2), torch.ones(3, 4, 2)))
    sweep, counts = first_order_sums.kernels().sweep, []
    for kind, delta in (("sizes", None), ("squares", torch.ones(3, 4, 2)), ("sizes", torch.ones(3, 4, 2))):
        assert LagSums([1], 2, kind).add(ones, delta=delta) is not None
        counts.append(len(sweep.signatures))
    assert counts[0] == counts[1] == counts[2]


def test_windows_and_transports_tell_their_lags(generator):
    part = rollout(GatedRNN("lstm", 2, 4, 1, generator=generator), torch.randn(2, 7, 2, generator=generator))
    (layer,) = part.recurrence.stack.layers(part.x, part.previous, part.states, part.recurrence.params)
    for lags in ([0, 1, 2, 5], [1, 6], [3]):
        assert [window.lag for window in first_order_windows(layer, lags)] == lags
        delta = torch.randn(part.states.shape, generator=generator)
        first = list(first_order_transport(part, delta, lags))
        assert [c.lag for c in first] == [c.lag for c, _ in exact_transport(part, delta, lags)] == lags
        torch.testing.assert_close(first[0].value() if lags[0] == 0 else delta, delta)


@pytest.mark.parametrize("cell", ["diag_gate", "lstm"])
def test_gradients_that_share_their_rates_arrive_as_each_does_alone(cell, generator):
    model = GatedRNN(cell, 2, 4, 1, num_layers=2, generator=generator)
    part = rollout(model, torch.randn(2, 40, 2, generator=generator))
    deltas, lags = [torch.randn(part.states.shape, generator=generator) for _ in range(3)], [0, 1, 2, 5, 39]
    together = [list(arriving) for arriving in first_order_transports(part, deltas, lags)]
    for number, delta in enumerate(deltas):
        for arrived, alone in zip(together, first_order_transport(part, delta, lags), strict=True):
            assert arrived[number].lag == alone.lag
            torch.testing.assert_close(arrived[number].double(), alone.double(), rtol=0, atol=0)


@pytest.mark.parametrize("layernorm", [False, True])
@pytest.mark.parametrize("cell", ["const_gate", "gru", "lstm"])
def test_windows_lead_all_gradients_back_as_each_alone(cell, layernorm, generator):
    """On a GPU all of them go together."""
    recurrence = rollout(
        GatedRNN(cell, 2, 4, 1, layernorm=layernorm, generator=generator).double(), normal(generator, 3, 6, 2)
    ).recurrence
    windows = Windows(recurrence, normal(generator, 5, 3, 2), normal(generator, 3, recurrence.stack.state_size))
    cotangents = [normal(generator, 3, recurrence.stack.state_size) for _ in range(4)]
    alone = list(windows.back(2, cotangents))
    windows.together, windows._kept = True, None
    for one, other in zip(windows.back(2, cotangents), alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layernorm", [False, True])
@pytest.mark.parametrize("cell", ["diag_gate", "gru", "lstm"])
def test_steps_that_are_recorded_lead_back_as_others(cell, layernorm, generator, monkeypatch):
    """A GPU repeats what was recorded; here the step itself is taken every time."""
    model = GatedRNN(cell, 2, 4, 1, layernorm=layernorm, generator=generator).double()
    part = rollout(model, normal(generator, 3, 6, 2))
    monkeypatch.setattr(carry, "recorded", lambda step: step)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    usual, again = carry.one_position_back(part), carry._recorded_step(part)
    for position in (5, 2, 0):
        after = normal(generator, *part.states[:, 0].shape)
        before = torch.full_like(after, torch.nan), torch.full_like(after, torch.nan)
        usual(position, after, before[0])
        again(position, after, before[1])
        torch.testing.assert_close(before[1], before[0], rtol=1e-12, atol=1e-14)


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
    assert all(any(torch.equal(row, mask_row) for mask_row in mask) for counts in seen for row in counts)
    assert any(torch.equal(counts, mask) for counts in seen)


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
