"""Adding, copy, exclusive or, flip-flop, recall: definitions against slow loops, chance, and outputs that forget."""

import math

import pytest
import torch

from lagreach.errors import InputError
from lagreach.tasks.adding import Adding
from lagreach.tasks.copy import Copy
from lagreach.tasks.flip_flop import FlipFlop
from lagreach.tasks.recall import Recall
from lagreach.tasks.xor import Xor


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


# --- adding -----------------------------------------------------------------------------------------------


def test_the_sum_of_the_marked_numbers(generator):
    x, y = Adding(length=10).sample(200, generator)
    for row, target in zip(x.tolist(), y[:, -1, 0].tolist(), strict=True):
        marked = [t for t, (_, marker) in enumerate(row) if marker == 1.0]
        assert len(marked) == 2
        assert marked[0] < 5 <= marked[1]
        assert target == pytest.approx(sum(row[t][0] for t in marked))
    assert set(x[..., 1].unique().tolist()) == {0.0, 1.0}


def test_moments_of_the_adding_problem(generator):
    task = Adding(length=10)
    x, y = task.sample(50_000, generator)
    sums = y[:, -1, 0]
    assert abs(sums.mean().item() - 1.0) < 4 * math.sqrt(1 / 6 / 50_000)
    assert abs(sums.var().item() - 1 / 6) < 4 * math.sqrt(7 / 360 / 50_000)  # variance of (s - 1)^2, s triangular
    share = x[..., 1].mean(0)
    torch.testing.assert_close(share, torch.full((10,), 0.2), rtol=0, atol=4 * math.sqrt(0.16 / 50_000))


def test_forgetting_the_first_half_shows_in_the_far_bins(generator):
    task = Adding(length=12, bins=4)
    x, y = task.sample(500, generator)
    near = torch.zeros_like(y)
    near[:, -1, 0] = (x[:, 6:, 0] * x[:, 6:, 1]).sum(1)
    scores = task.recovered(x, y, near)
    # the other markers' positions are chance, so a near sum alone has the coefficient 1 near and 0 far
    torch.testing.assert_close(scores, doubles(1, 1, 0, 0), rtol=0, atol=1e-6)


def test_bins_cover_all_distances_once():
    for length, bins in ((10, 4), (100, 7), (7, 3)):
        task = Adding(length=length, bins=bins)
        which = [distance * bins // length for distance in range(length)]
        expected = [[d for d in range(length) if which[d] == b] for b in range(bins)]
        assert task.lags == tuple((group[0] + group[-1]) // 2 for group in expected)


@pytest.mark.parametrize("options", [{"length": 1}, {"bins": 0}, {"length": 6, "bins": 4}])
def test_bad_adding_options(options):
    with pytest.raises(InputError, match="must be a whole number"):
        Adding(**options)


# --- copy -------------------------------------------------------------------------------------------------


def test_symbols_are_wanted_one_lag_later(generator):
    task = Copy(length=30, items=5, symbols=4)
    x, y = task.sample(20, generator)
    assert (x.sum(-1) == 1).all()
    seen = x.argmax(-1)
    assert torch.equal(y[:, 25:], seen[:, :5])
    assert (seen[:, :5] < 4).all()
    cue = torch.full((30,), 4)
    cue[24] = 5
    assert (seen[:, 5:] == cue[5:]).all()
    assert task.mask().nonzero().flatten().tolist() == list(range(25, 30))
    assert task.lags == (25,)


def test_symbols_are_fair(generator):
    task = Copy(length=21, items=10, symbols=8)
    _, y = task.sample(5000, generator)
    counts = torch.bincount(y[:, 11:].flatten(), minlength=8) / 50_000
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=4 * math.sqrt(7 / 64 / 50_000))


def test_the_loss_of_a_guess_is_the_stated_one(generator):
    task = Copy(length=21, items=10, symbols=8)
    _, y = task.sample(10, generator)
    guess = torch.zeros(10, 10, 8)
    loss = torch.nn.functional.cross_entropy(guess.flatten(0, 1), y[:, 11:].flatten())
    assert loss.item() == pytest.approx(task.chance)


def test_a_copy_of_half_the_symbols_has_half_the_score(generator):
    task = Copy(length=40, items=8, symbols=5)
    x, y = task.sample(3000, generator)
    output = torch.nn.functional.one_hot(y, 5).float()
    output[:, 36:] = torch.rand(3000, 4, 5, generator=generator)
    error = 4 * math.sqrt(0.2 * 0.8 / 12_000) / 0.8 / 2
    torch.testing.assert_close(task.recovered(x, y, output), doubles(0.5), rtol=0, atol=error)


@pytest.mark.parametrize("options", [{"symbols": 1}, {"items": 0}, {"length": 20, "items": 10}])
def test_bad_copy_options(options):
    with pytest.raises(InputError, match=r"whole number|do not fit"):
        Copy(**options)


# --- exclusive or -----------------------------------------------------------------------------------------


def test_products_and_nothing_linear(generator):
    task = Xor(lags=(1, 3), length=10)
    x, y = task.sample(10_000, generator)
    assert set(x.unique().tolist()) == {-1.0, 1.0}
    for t in range(3, 10):
        assert torch.equal(y[:, t, 0], x[:, t - 1, 0] * x[:, t - 3, 0])
    for lag in range(4):
        covariance = (x[:, 3 - lag : 10 - lag, 0] * y[:, 3:, 0]).mean().item()
        assert abs(covariance) < 4 / math.sqrt(70_000), lag
    assert task.mask().tolist() == [0.0] * 3 + [1.0] * 7


def test_one_bit_alone_recovers_nothing_of_the_product(generator):
    task = Xor(lags=(1, 3), length=10)
    x, y = task.sample(10_000, generator)
    single = torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
    assert task.recovered(x, y, single).abs().max() < 4 / math.sqrt(70_000)
    torch.testing.assert_close(task.recovered(x, y, 0.25 * y + single), doubles(0.25, 0.25), rtol=0, atol=0.02)


@pytest.mark.parametrize("lags", [(1,), (1, 2, 3)])
def test_the_exclusive_or_takes_two_bits(lags):
    with pytest.raises(InputError, match="takes two bits"):
        Xor(lags=lags)


# --- flip-flop --------------------------------------------------------------------------------------------

FLIPS = FlipFlop(lags=(0, 1, 5), length=30, channels=2, rate=0.1)


def test_outputs_hold_the_last_pulse(generator):
    x, y = FLIPS.sample(50, generator)
    held = torch.zeros(50, 2)
    for t in range(30):
        held = torch.where(x[:, t] != 0, x[:, t], held)
        assert torch.equal(y[:, t], held)


def test_pulses_come_at_their_rate_and_signs_are_fair(generator):
    x, _ = FLIPS.sample(5000, generator)
    later = x[:, 1:]
    count = later.numel()
    assert abs((later != 0).double().mean().item() - 0.1) < 4 * math.sqrt(0.09 / count)
    assert abs(x.mean().item()) < 4 * math.sqrt((29 * 0.1 + 1) / 30 / x.numel())


def test_a_network_that_forgets_after_two_steps(generator):
    x, y = FLIPS.sample(2000, generator)
    age = torch.zeros(2000, 30, 2)
    for t in range(1, 30):
        age[:, t] = torch.where(x[:, t] != 0, 0.0, age[:, t - 1] + 1)
    scores = FLIPS.recovered(x, y, torch.where(age <= 2, y, 0.0))
    torch.testing.assert_close(scores, doubles(1, 1, 0), rtol=0, atol=0)
    assert FLIPS.recovered(x, y, torch.where(age == 5, 0.3 * y, 7.0))[2].item() == pytest.approx(0.3, abs=1e-6)


def test_a_lag_that_never_occurs_has_no_score():
    task = FlipFlop(lags=(1, 5), length=10, rate=1.0)
    x, y = task.sample(3, torch.Generator().manual_seed(0))
    assert task.recovered(x, y, y).isnan().all()


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.5}, {"channels": 0}, {"lags": (1, 200)}])
def test_bad_flip_flop_options(options):
    with pytest.raises(InputError, match=r"out of range|whole number|does not fit"):
        FlipFlop(**options)


# --- recall -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cue", [True, False])
def test_the_bit_stands_where_it_should(cue, generator):
    task = Recall(lag=7, noise=0.25, cue=cue, length=20)
    x, y = task.sample(20_000, generator)
    bit = y[:, -1, 0]
    assert set(bit.unique().tolist()) == {-1.0, 1.0}
    covariance = (x[..., 0] * bit[:, None]).mean(0)
    expected = torch.zeros(20)
    expected[12] = 1.0
    torch.testing.assert_close(covariance, expected, rtol=0, atol=4 * 0.25 / math.sqrt(20_000))
    if cue:
        assert torch.equal(x[0, :, 1], expected)
    assert task.mask().tolist() == [0.0] * 19 + [1.0]


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0, 3.0])
def test_the_noise_floor_is_the_error_of_the_best_predictor(noise, generator):
    task = Recall(noise=noise, lag=1, length=2)
    x, y = task.sample(200_000, generator)
    errors = (task.best(x.double()) - y[:, -1, 0].double()).square()
    spread = errors.std().item() / math.sqrt(200_000)
    assert abs(errors.mean().item() - task.noise_floor) < 4 * spread + 1e-9


def test_best_predictor_bit_and_ignorance(generator):
    task = Recall(noise=1.0, lag=3, length=8)
    x, y = task.sample(20_000, generator)
    best = torch.zeros_like(y)
    best[:, -1, 0] = task.best(x)
    torch.testing.assert_close(task.recovered(x, y, best), doubles(1.0), rtol=0, atol=1e-6)
    torch.testing.assert_close(task.recovered(x, y, y), doubles(1.0), rtol=0, atol=0.04)
    elsewhere = torch.zeros_like(y)
    elsewhere[:, -1, 0] = x[:, 3, 0]  # noise of a step beside the bit
    torch.testing.assert_close(task.recovered(x, y, elsewhere), doubles(0.0), rtol=0, atol=0.04)


@pytest.mark.parametrize("options", [{"lag": 64}, {"lag": -1}, {"noise": -0.1}])
def test_bad_recall_options(options):
    with pytest.raises(InputError, match=r"does not fit|whole number|out of range"):
        Recall(**options)
