"""Optimisers: reference steps, projection, averages, and the loop that records them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lagreach.errors import InputError
from lagreach.papers.cayci import DiagonalNetwork, GradientDescent, ProjectedGradientDescent, descend, symmetric_init
from lagreach.papers.cayci.descent import project
from lagreach.papers.cayci.linear import linearised
from lagreach.papers.cayci.streaming import outputs, risk
from tests.papers.cayci.cases import REFERENCE, START, X, Y, assert_near, some_weights, unit_inputs

ROUNDING = 1 + 1e-14


@pytest.mark.parametrize("name", REFERENCE["network"])
def test_reference_steps(name):
    wanted = REFERENCE["network"][name]
    run = descend(START, X, Y, name, eta=1.0, steps=1)
    assert run.final_risk == pytest.approx(wanted["R1"], rel=1e-14)
    assert_near(outputs(run.weights, X, name), wanted["F1"])
    assert_near(linearised(START, run.weights, X, name), wanted["Flin1"])
    run = descend(START, X, Y, name, eta=1.0, steps=1, rho=(0.05, 0.1))
    assert_near(run.weights.W, wanted["Wp"])
    assert_near(run.weights.U, wanted["Up"])


@pytest.mark.parametrize("rho", [None, (0.05, 0.1)])
def test_the_loop_and_the_optimisers_are_the_same_descent(rho, generator):
    start, x = symmetric_init(10, 2, 0.6, generator), unit_inputs(4, 5, 2, generator)
    y = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    run = descend(start, x, y, eta=0.3, steps=12, rho=rho)
    network = DiagonalNetwork(start)
    optimiser = (
        GradientDescent(network.parameters(), lr=0.3)
        if rho is None
        else ProjectedGradientDescent(network.radii(rho), lr=0.3)
    )
    iterates, risks = [], []

    def closure():
        optimiser.zero_grad()
        loss = (network(x) - y).square().sum() / 4
        (loss / 2).backward()
        return loss

    for _ in range(12):
        iterates.append(network.W.detach().clone())
        risks.append(optimiser.step(closure).item())
    assert_near(network.W.detach(), run.weights.W)
    assert_near(network.U.detach(), run.weights.U)
    assert_near(optimiser.averaged(network.W), torch.stack(iterates).mean(0))
    assert_near(run.average.W, torch.stack(iterates).mean(0))
    np.testing.assert_allclose(run.risks, risks, rtol=1e-13)
    assert run.final_risk == pytest.approx(risk(network(x).detach(), y), rel=1e-13)
    assert run.steps == 12
    assert run.best_risk == run.risks.min()


@pytest.mark.parametrize("seed", range(8))
def test_every_unit_stays_within_its_radius(seed):
    generator = torch.Generator().manual_seed(seed)
    start, x = symmetric_init(24, 3, 0.9, generator), unit_inputs(5, 6, 3, generator)
    y = 3 * torch.randn(5, 6, generator=generator, dtype=torch.float64)
    run = descend(start, x, y, eta=4.0, steps=25, rho=(0.2, 0.3))
    assert run.moved_w.max() == pytest.approx(0.2)  # the projection was at work
    assert run.moved_u.max() == pytest.approx(0.3)
    assert run.moved_w.max() <= 0.2 * ROUNDING
    assert run.moved_u.max() <= 0.3 * ROUNDING
    free = descend(start, x, y, eta=4.0, steps=25)
    assert free.moved_u.max() > 1.0


@given(seed=st.integers(0, 10_000), radius=st.floats(0.0, 3.0), rows=st.booleans())
@settings(max_examples=80, deadline=None)
def test_projection(seed, radius, rows):
    generator = torch.Generator().manual_seed(seed)
    shape = (12, 3) if rows else (12,)
    p, centre = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    projected = project(p, centre, radius)
    length = (projected - centre).norm(dim=1) if rows else (projected - centre).abs()
    assert length.max() <= radius * ROUNDING + 1e-15
    assert_near(project(projected, centre, radius), projected, 1e-15)
    before = (p - centre).norm(dim=1) if rows else (p - centre).abs()
    inside = before <= radius
    assert torch.equal(projected[inside], p[inside])
    # the nearest point of the ball: another point of it is no nearer
    share = torch.rand(12, generator=generator, dtype=torch.float64)
    away = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    away = nn.functional.normalize(away, dim=1) * share[:, None] if rows else 2 * share - 1
    other = centre + radius * away
    apart = (p - projected).norm(dim=1) if rows else (p - projected).abs()
    rival = (p - other).norm(dim=1) if rows else (p - other).abs()
    assert (apart <= rival + 1e-14).all()


def test_stopping_and_progress(generator):
    start, x = symmetric_init(64, 2, 0.4, generator), unit_inputs(3, 4, 2, generator)
    y = outputs(some_weights(64, 2, generator)._replace(c=start.c), x)
    seen = []
    whole = descend(start, x, y, eta=0.2, steps=60, on_step=lambda s, r: seen.append((s, r)))
    assert [s for s, _ in seen] == list(range(60))
    assert [r for _, r in seen] == whole.risks.tolist()
    wanted = float(whole.risks[20])
    run = descend(start, x, y, eta=0.2, steps=60, stop=wanted)
    assert run.reached == 20
    assert run.steps == 20
    assert len(run.risks) == 21
    assert run.final_risk == pytest.approx(wanted)
    assert descend(start, x, y, eta=0.2, steps=5, stop=0.0).reached is None
    at_once = descend(start, x, y, eta=0.2, steps=5, stop=1e9)
    assert at_once.reached == 0
    assert torch.equal(at_once.average.W, start.W)
    assert "0 steps" in str(at_once)
    assert "projected" in str(descend(start, x, y, eta=0.2, steps=2, rho=(1.0, 1.0)))


def test_what_descent_leaves_alone(generator):
    start, x = symmetric_init(8, 2, 0.5, generator), unit_inputs(3, 4, 2, generator)
    kept = [part.clone() for part in start]
    descend(start, x, x[..., 0], eta=0.5, steps=3, rho=(1.0, 1.0))
    assert all(torch.equal(a, b) for a, b in zip(start, kept, strict=True))
    assert start.W.grad is None


def test_bad_input_is_told(generator):
    start, x = symmetric_init(8, 2, 0.5, generator), unit_inputs(3, 4, 2, generator)
    y = x[..., 0]
    with pytest.raises(InputError, match="eta must be positive"):
        descend(start, x, y, eta=0.0, steps=3)
    with pytest.raises(InputError, match="at least one step"):
        descend(start, x, y, eta=0.1, steps=0)
    with pytest.raises(InputError, match="nonnegative"):
        descend(start, x, y, eta=0.1, steps=3, rho=(-0.1, 1.0))
    with pytest.raises(InputError, match="bounded length"):
        descend(start, 3 * x, y, eta=0.1, steps=3)
    with pytest.raises(InputError, match="must be finite"):
        descend(start, x, y * torch.nan, eta=0.1, steps=3)
    with pytest.raises(InputError, match="not negative"):
        ProjectedGradientDescent([{"params": [nn.Parameter(x)], "radius": -1.0}], lr=0.1)
    with pytest.raises(InputError, match="not negative"):
        ProjectedGradientDescent([{"params": [nn.Parameter(x)]}], lr=0.1)
    with pytest.raises(InputError, match="cannot be negative"):
        project(y, y, -1.0)
    parameter = nn.Parameter(y)
    with pytest.raises(InputError, match="before the first step"):
        GradientDescent([parameter], lr=0.1).averaged(parameter)
    with pytest.raises(InputError, match="lr must be positive"):
        GradientDescent([parameter], lr=-0.1)


@pytest.mark.usefixtures("_as_users_run_it")
def test_shapes_are_told(generator):
    start, x = symmetric_init(8, 2, 0.5, generator), unit_inputs(3, 4, 2, generator)
    with pytest.raises(InputError, match="one number per step"):
        descend(start, x, x[:, :2, 0], eta=0.1, steps=3)
    with pytest.raises(InputError, match="axes"):
        descend(start, x[0], x[0, :, 0], eta=0.1, steps=3)
