"""Lags that the data do not depend on are not named although the network mixes them with those it depends on."""

import itertools
from collections import Counter

import pytest

from lagreach._util.threads import one_thread
from tests.null.false_lags import CELLS, LAGS, STAGES, TASKS, named, upper_end

RUNS = 200
HIGHEST = 0.08  # that the upper end of a rate's interval may have


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
def test_a_few_networks_of_every_kind():
    """One run of each kind and stage: the swap contrast alone is wrong in most of them, the exchange hardly ever."""
    kinds = list(itertools.product(CELLS, ["half way", "trained"]))
    with one_thread():
        results = [named("delay", cell, stage, seed) for seed, (cell, stage) in enumerate(kinds)]
    assert all(8 in by_exchange for by_exchange, _ in results)
    assert sum(set(by_swap) != {8} for _, by_swap in results) >= 5
    assert sum(set(by_exchange) != {8} for by_exchange, _ in results) <= 2  # of 8, at five in a hundred


@pytest.mark.slow
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cell", CELLS)
def test_rates_of_every_lag(cell, stage, task):
    with one_thread():
        results = [named(task, cell, stage, seed) for seed in range(RUNS)]
    by_exchange, by_swap = (Counter(lag for one in results for lag in one[i]) for i in (0, 1))
    for lag in LAGS:
        if lag in TASKS[task]:
            assert by_exchange[lag] >= by_swap[lag] - 0.02 * RUNS, f"lag {lag} is found less often than before"
        else:
            assert upper_end(by_exchange[lag], RUNS) <= HIGHEST, f"lag {lag} was named {by_exchange[lag]} times"
