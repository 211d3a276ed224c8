"""How often a forecast names a lag that the data do not depend on: `python -m tests.null.test_forecasts_under_the_null`.

Prints for every situation how often any wrong lag was named, the upper end of that rate's interval, and how often the true one.
"""

import sys
import warnings
from collections import Counter

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

import lagreach
from lagreach._util.threads import one_thread
from tests.null.false_lags import upper_end

RUNS, ERROR, HIGHEST = 200, 0.05, 0.08
TIME, TRUE = 12, 3


class Reads(nn.Module):
    """A small LSTM, read at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def independent() -> tuple[Tensor, Tensor]:
    return torch.randn(64, TIME, 1), torch.randn(64, TIME, 1)


def one_lag() -> tuple[Tensor, Tensor]:
    x, y = independent()
    y[:, TRUE:] += x[:, :-TRUE]
    return x, y


def copies() -> tuple[Tensor, Tensor]:
    x, y = independent()
    return x[:24].repeat(4, 1, 1), y[:24].repeat(4, 1, 1)


def overlapping() -> tuple[Tensor, Tensor]:
    series = torch.randn(600, 2)
    windows = torch.stack([series[start : start + TIME] for start in range(0, 588, 3)])
    return windows[..., :1], windows[..., 1:]


SITUATIONS = {"independent": independent, "one lag": one_lag, "copies": copies, "overlapping windows": overlapping}


def named(situation: str, seed: int) -> list[int]:
    """Lags that a forecast of a fresh network names."""
    torch.manual_seed(seed)
    data = SITUATIONS[situation]()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = lagreach.forecast(Reads(), data, weights="readout", error=ERROR, seed=seed, progress=False)
    assert [word not in ("none found", "unknown") for word in made.limits.values] == made.found
    return [lag for lag, depends in zip(made.lags, made.found, strict=True) if depends]


def wrong(situation: str, lags: list[int]) -> list[int]:
    return [lag for lag in lags if not (situation == "one lag" and lag == TRUE)]


@pytest.mark.slow
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_wrong_lags_are_named_at_their_nominal_rate(situation):
    results = [named(situation, seed) for seed in range(RUNS)]
    count = sum(bool(wrong(situation, lags)) for lags in results)
    assert count <= binom.isf(1e-3, RUNS, ERROR), f"any of them: {count} of {RUNS}"
    by_lag = Counter(lag for lags in results for lag in wrong(situation, lags))
    assert all(upper_end(count, RUNS) <= HIGHEST for count in by_lag.values()), by_lag
    if situation == "one lag":
        assert all(TRUE in lags for lags in results)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SITUATIONS:
        lags_by_seed = [named(chosen, seed) for seed in range(RUNS)]
        named_wrongly = sum(bool(wrong(chosen, lags)) for lags in lags_by_seed)
        print(
            f"{chosen}: a wrong lag in {named_wrongly} of {RUNS}, upper end {100 * upper_end(named_wrongly, RUNS):.1f} %; "
            f"lag {TRUE} in {sum(TRUE in lags for lags in lags_by_seed)}",
            flush=True,
        )
