"""Tasks of the second study: what their parts say against what their targets do."""

import pytest
import torch

from lagreach.study.config import read_config
from lagreach.study.data import generator_for
from studies.validation.design import conditions, validation_plan
from studies.validation2 import PROTOCOL
from studies.validation2.run import study
from studies.validation2.tasks import VALUE

CONFIG = study()
PLAN = validation_plan(CONFIG)
PLANS = {plan.name: plan for plan in PLAN.tasks}


@pytest.mark.parametrize("name", PLANS)
def test_targets_have_variance_one_and_the_strength_that_is_said(name):
    task = PLANS[name].build()
    x, y = task.sample(4000, generator_for("variance", name))
    steps = list(task.targets)
    clean = task.clean(x)[:, steps]
    loose = 0.2 if name.startswith("series") else 0.08  # kurtosis 12, and windows that overlap
    assert float(y[:, steps].var()) == pytest.approx(1.0, abs=0.06)
    assert float(clean.var()) == pytest.approx(task.strength, rel=loose)
    assert float(torch.nn.functional.mse_loss(y[:, steps, 0], clean)) == pytest.approx(task.noise_floor, rel=0.06)


@pytest.mark.parametrize("name", PLANS)
def test_parts_are_where_planted_says_and_come_from_their_source(name):
    task = PLANS[name].build()
    x, _ = task.sample(64, generator_for("parts", name))
    planted, generator = task.planted(x), generator_for("change")
    for target in task.targets:
        parts, source = task.part(x, target), task.source(x, target)
        assert torch.equal(task.clean(x)[:, target], task.amplitude * parts.sum(0))
        for k, (lag, (low, high)) in enumerate(zip(task.lags, task.bands, strict=True)):
            assert torch.equal(planted[:, target - lag], parts[k])
            has = source[k] >= 0
            assert bool(((target - source[k][has] >= low) & (target - source[k][has] <= high)).all())
            moved = x.clone()
            moved[has, source[k][has], VALUE] += torch.randn(int(has.sum()), generator=generator)
            changed = (task.clean(moved) - task.clean(x))[:, target] != 0
            assert torch.equal(changed, has)


@pytest.mark.parametrize("name", PLANS)
def test_a_perfect_output_has_share_one(name):
    task = PLANS[name].build()
    x, y = task.sample(512, generator_for("perfect", name))
    torch.testing.assert_close(task.recovered(x, y, task.clean(x)[..., None]), torch.ones(len(task.lags)).double())
    assert float(task.recovered(x, y, torch.zeros_like(y)).abs().max()) == 0


def test_least_squares_need_what_is_said():
    """Ridge on marked values: half of the dependency at the number of sequences that the formula names."""
    task = PLANS["recall_24"].build()
    needed, generator, shares = round(task.least_squares_needed), generator_for("ridge"), []
    for _ in range(40):
        x, y = task.sample(needed, generator)
        values, target = x[..., VALUE].double(), y[:, -1, 0].double()
        penalty = task.regressors * task.noise_floor / task.strength  # what held-out data would choose
        weights = torch.linalg.solve(values.T @ values + penalty * torch.eye(task.length), values.T @ target)
        shares.append(float(weights[task.length - 1 - task.lag]) / task.amplitude)
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.06)


def test_the_design_is_fresh_and_within_the_range():
    first = read_config(PROTOCOL.parents[2] / "validation" / "protocols" / "validation.yaml").at_scale("paper")
    earlier = {(plan.name, str(plan.task)) for plan in validation_plan(first).tasks}
    assert not earlier & {(plan.name, str(plan.task)) for plan in PLAN.tasks}
    names = [condition.name for condition in conditions(PLAN, CONFIG.seed)]
    assert len(set(names)) == 48
    for plan in PLAN.tasks:
        assert 100 <= plan.build().least_squares_needed <= 30_000
        assert sum(name.startswith(f"{plan.name}-") for name in names) == 4
