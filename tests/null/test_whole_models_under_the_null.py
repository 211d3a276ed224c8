"""Whole models: planted lags are found, and lags that are not there are named no more often than the error allows.

What is measured is in `tests/null/whole_models.py`: targets that depend on nothing, on one lag or on ten.
"""

import pytest
from scipy.stats import binom

from tests.null.whole_models import ERROR, KINDS, PLANTED, STEPS, named, rates

RUNS = 200


def most_by_chance(runs):
    """Rate that the error exceeds once in a thousand."""
    return binom.isf(1e-3, runs, ERROR)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Transformer", "token Transformer"])
def test_planted_lags_are_found_and_others_are_not(kind):
    false, _ = rates((named(kind, "fresh", "nothing", seed) for seed in range(6)), kind, "nothing")
    assert false <= most_by_chance(6)
    false, right = rates((named(kind, "fresh", "lag", seed) for seed in range(6)), kind, "lag")
    assert false <= most_by_chance(6)
    assert right >= 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("stage", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_rates_over_many_seeds(kind, stage, planted):
    if "Mamba" in kind:
        pytest.importorskip("transformers")
    false, right = rates((named(kind, stage, planted, seed) for seed in range(RUNS)), kind, planted)
    assert false <= most_by_chance(RUNS)
    least = 0.95 if len(KINDS[kind].true) == 1 else 0.7  # several lags are weak ones
    assert planted == "nothing" or right >= least * len(KINDS[kind].true) * RUNS
