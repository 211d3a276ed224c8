"""Tokens and classes: a dependency in the data is found whatever codes are drawn, and what few directions miss is not denied."""

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

import lagreach
from lagreach.forecasting.limits import limits

TOKENS = 24


class Tagger(nn.Module):
    """A small recurrent network that reads and names tokens."""

    def __init__(self):
        super().__init__()
        self.read, self.inner, self.name = nn.Embedding(TOKENS, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, TOKENS)

    def forward(self, x):
        return self.name(self.inner(self.read(x))[0])


def copied(seed, share, lag=2, sequences=96):
    """Targets that are the token `lag` steps before in some cases, and any token otherwise."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, TOKENS, (sequences, 14), generator=generator) for _ in range(2))
    copy = torch.rand(y.shape, generator=generator) < share
    y[:, lag:] = torch.where(copy[:, lag:], x[:, :-lag], y[:, lag:])
    return x, y


def named(seed, share):
    """Lags that the data are said to depend on."""
    torch.manual_seed(seed)
    data, options = copied(seed, share), {"loss": "cross_entropy", "weights": "readout", "seed": seed}
    made = lagreach.forecast(Tagger(), data, [1000], range(5), **options)
    return {lag for lag, p in zip(made.lags, made.adjusted_p, strict=True) if p <= made.error}


@pytest.mark.thorough
def test_tokens_that_are_copied_are_found_in_every_draw():
    assert all(2 in named(seed, 0.3) for seed in range(5))


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_other_lags_are_named_no_more_often_than_the_error_allows(share):
    runs = 30
    assert sum(bool(named(seed, share) - {2}) for seed in range(runs)) <= binom.isf(1e-3, runs, 0.05)


def test_a_masked_target_counts_for_nothing():
    torch.manual_seed(0)
    (x, y), model = copied(0, 0.5), Tagger()
    options = {"loss": "cross_entropy", "weights": "readout"}
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    mask = (~hidden).float()
    first, second = (
        lagreach.forecast(model, (x, torch.where(hidden, other, y), mask), [100], [0, 2], **options).adjusted_p
        for other in (0, 3)
    )
    np.testing.assert_array_equal(first, second)


def test_shares_that_rise_with_the_directions_are_no_verdict():
    share, rising = np.full(2, 0.33), np.array([0.0, 0.2])
    assert limits(share, share, share, None, np.ones(2, dtype=bool), rising) == ["blended", "unknown"]


@pytest.mark.thorough
def test_half_from_never_is_said_only_where_directions_have_told_all():
    torch.manual_seed(0)
    made = lagreach.forecast(Tagger(), copied(0, 0.3), [1000], [0, 2], loss="cross_entropy", directions=24)
    ample = np.fmax(
        *(curves.planted(np.array([1e12]), made.strength).value[:, 0] for curves in (made.read, made.reach))
    )
    never = np.isinf(made.needed.values)
    assert (ample[never] + made.rising[never] < 0.5).all()
    assert all(
        word != "blended"
        for word, up in zip(made.limits_if_present.values, ample + made.rising, strict=True)
        if up >= 0.5
    )


@pytest.mark.parametrize("tokens", [3, 6, TOKENS])
def test_tokens_that_follow_from_each_other_are_forecast(tokens):
    """Of six, codes have fewer directions than the test looks along."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(tokens, (200, 16), generator=generator)
    for step in range(1, 16):
        x[:, step] = torch.where(torch.rand(200, generator=generator) < 0.5, x[:, step - 1], x[:, step])
    made = lagreach.forecast(Tagger(), (x[:, :-1], x[:, 1:]), [200], range(4), loss="cross_entropy", weights="readout")
    assert list(made.found) == [True, False, False, False]
