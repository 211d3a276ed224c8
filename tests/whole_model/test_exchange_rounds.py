"""However many lags are exchanged, a pair takes part in as many runs at most."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lagreach.data.sequences import as_sequences
from lagreach.whole_model.exchange import measure_exchange
from lagreach.whole_model.exchange_rounds import MORE_RUNS, MORE_UNCONTROLLED, Rounds, runs_of_a_lag
from lagreach.whole_model.factors import block_gram
from lagreach.whole_model.measurement_plan import WholeModelPlan, plan_model_measurement
from lagreach.whole_model.running import at_rest
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, made


def plan_of(anchors: int, count: int = 96, blocks: int = 8) -> WholeModelPlan:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(count, 8, width, generator=generator, dtype=torch.float64) for width in (INPUT, 1))
    data = as_sequences((x, y))
    return plan_model_measurement(
        made(cases.CausalTransformer), data, "mse", range(8), blocks=blocks, probes=1, seed=0, anchors=anchors
    )


@pytest.mark.parametrize("anchors", [1, 4, 8])
@pytest.mark.parametrize("controlled", [True, False])
def test_lags_share_runs_and_every_block_has_every_lag(anchors, controlled):
    plan = plan_of(anchors)
    most, blocks = runs_of_a_lag(plan), plan.block_plan.blocks
    allowed = (MORE_RUNS if controlled else MORE_UNCONTROLLED) * most
    for lags in (1, 2, 3, 5, 7, 16, 17, 30):
        rounds = Rounds.planned(plan, lags, controlled=controlled)
        fewest = np.bincount(blocks).min()
        runs = len(rounds.columns)
        assert runs == max(min(allowed, lags * most), -(-lags // fewest))  # all that are allowed are used
        for block in range(plan.block_plan.count):
            mine = rounds.scale[blocks == block]
            assert (mine > 0).any(0).all()
            np.testing.assert_allclose(mine.sum(0), len(mine))  # those that take part stand for all
        dealt = rounds.anchors
        assert (dealt.sum(1) == runs).all()
        assert dealt.max() - dealt.min() <= 1
        assert ((dealt > 0) == (rounds.scale > 0)).all()
        pair = np.arange(len(blocks))
        for run, columns in enumerate(rounds.columns):  # each of a pair's anchors at a lag has a run
            earlier = (rounds.columns[:run] == columns).sum(0)
            assert (earlier == rounds.number(run)).all()
            assert (rounds.number(run) < dealt[pair, columns]).all()


def test_one_lag_has_all_anchors_of_every_pair():
    rounds = Rounds.planned(plan_of(8), 1)
    assert (rounds.anchors == 4).all()
    assert rounds.part == 1


def test_a_lag_that_shares_runs_is_exchanged_as_it_would_be_alone():
    """The pairs that take part have the gradients, and the rise of the loss, that they have where all take part."""
    plan = plan_of(1)
    lags = [0, 1, 2, 3, 4, 5, 6]
    with at_rest(plan.model.module):
        together, alone = measure_exchange(plan, lags), [measure_exchange(plan, [lag]) for lag in lags]
    scale = Rounds.planned(plan, len(lags)).scale
    assert 0 < (scale > 0).mean() < 1
    for column, one in enumerate(alone):
        chosen = scale[:, column] > 0
        np.testing.assert_allclose(together.rises[:, chosen, column], one.rises[:, chosen, 0], rtol=1e-9)
        assert np.isnan(together.rises[:, ~chosen, column]).all()
        few, every = together.data(column), one.data(0)
        # with one piece and one anchor the rows are all pairs as they are, and behind them all pairs with inputs exchanged
        turn = torch.from_numpy(np.tile(np.repeat(scale[:, column], 2), 2))
        expected = replace(every, arrived=every.arrived * turn[:, None])
        np.testing.assert_allclose(
            block_gram(few, together.size), block_gram(expected, together.size), rtol=1e-9, atol=1e-15
        )
