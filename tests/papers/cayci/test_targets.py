"""Realizable systems: reference values, what odd activations cannot see, projections to a width, estimated norms."""

import math

import numpy as np
import pytest
import torch

from lagreach.errors import InputError
from lagreach.papers.cayci import descend, ntk, random_map, symmetric_init
from lagreach.papers.cayci.linear import linearised
from lagreach.papers.cayci.streaming import risk
from lagreach.papers.cayci.transport_maps import TransportMap, estimate_norms, target, transport
from tests.papers.cayci.cases import REFERENCE, X4, assert_near, unit_inputs


def waves(w, u):
    return torch.sin(u[:, 0]), torch.cos(u)


def turned(w, u):
    return w.sign() * torch.sin(u[:, 0]), w.sign()[:, None] * torch.cos(u)


@pytest.mark.parametrize("case", REFERENCE["target"])
def test_reference_values(case):
    name, alpha = case.split()
    for function, wanted in ((waves, "target"), (turned, "target_turned")):
        realised = target(X4, TransportMap(function, 1.0, 1.0), alpha=float(alpha), activation=name)
        assert_near(realised.value, REFERENCE[wanted][case])
        assert realised.error.max() < 1e-12


def test_odd_activations_see_only_part_of_a_map():
    """For tanh a v_w of w0 alone, or a v_u odd in u0, has no effect at all, whatever its norm."""
    for function in (lambda w, u: (w.sign(), torch.zeros_like(u)), lambda w, u: (0 * w, torch.tanh(u))):
        v = TransportMap(function, 1.0, 1.0)
        assert target(X4, v, alpha=0.5).value.abs().max() < 1e-14
        assert target(X4, v, alpha=0.5, activation="logistic").value.abs().max() > 1e-3


def test_sampling_agrees_with_quadrature(generator):
    x, v = unit_inputs(3, 5, 2, generator), random_map(2, seed=1)
    exact = target(x, v, alpha=0.6, nodes=201)
    for method in ("qmc", "mc"):
        sampled = target(x, v, alpha=0.6, method=method, nodes=1 << 13)
        assert ((sampled.value - exact.value) / sampled.error).abs().max() < 5
        assert sampled.error.max() < 0.02
    assert exact.error.max() < 1e-6


def test_the_default_map_uses_every_lag():
    """An impulse at lag l still shows: nothing cancels for tanh."""
    v = random_map(1, seed=2)
    for lag in range(4):
        x = torch.zeros(1, 4, 1, dtype=torch.float64)
        x[0, 3 - lag] = 1.0
        assert target(x, v, alpha=0.8).value[0, 3].abs() > 1e-3


def test_transport_moves_by_the_map(generator):
    start, v = symmetric_init(40, 3, 0.5, generator), random_map(3, nu=(0.4, 0.9), seed=3)
    moved = transport(start, v)
    v_w, v_u = v(start.W, start.U)
    assert_near(math.sqrt(40) * (moved.W - start.W) * start.c, v_w)
    assert_near(math.sqrt(40) * (moved.U - start.U) * start.c[:, None], v_u)
    assert math.sqrt(40) * (moved.W - start.W).abs().max() <= 0.4 + 1e-14
    assert math.sqrt(40) * (moved.U - start.U).norm(dim=1).max() <= 0.9 + 1e-14


def test_the_projection_to_a_width_approximates_at_the_square_root(generator):
    x, v = unit_inputs(3, 4, 2, generator), random_map(2, seed=4)
    y = target(x, v, alpha=0.5, nodes=201).value
    widths, draws = [2**k for k in (6, 9, 12)], 24
    logs = []
    for m in widths:
        starts = [symmetric_init(m, 2, 0.5, 77 * m + s) for s in range(draws)]
        logs.append([math.log(float((linearised(w, transport(w, v), x) - y).norm())) for w in starts])
    t = np.log(widths) - np.mean(np.log(widths))
    slopes = (t[:, None] * np.array(logs)).sum(0) / (t**2).sum()
    assert abs(slopes.mean() + 0.5) < 3 * slopes.std(ddof=1) / math.sqrt(draws)
    assert slopes.std(ddof=1) / math.sqrt(draws) < 0.05


def test_estimated_norms_explain_the_targets(generator):
    x, v = unit_inputs(6, 4, 2, generator), random_map(2, nu=(0.5, 1.0), seed=5)
    y = target(x, v, alpha=0.5, nodes=201).value
    start = symmetric_init(2000, 2, 0.5, generator)
    whole = risk(torch.zeros_like(y), y)
    loose, tight = (estimate_norms(start, x, y, residual=share * whole) for share in (0.1, 0.01))
    assert tight.residual == pytest.approx(0.01 * whole, rel=1e-6)
    assert loose.nu_rms < tight.nu_rms <= math.hypot(*v.nu)  # never longer than the map that made the targets
    assert 0.3 < tight.nu_u < 2
    assert tight.nu_rms**2 <= tight.nu_w**2 + tight.nu_u**2
    assert tight.sharpness == pytest.approx(ntk.sharpness(start, x), rel=1e-10)
    # the norm is that of the ridge solution: sum a_jt K a_jt
    K = ntk.full(start, x).flatten(0, 1).flatten(1)
    a = torch.linalg.solve(K + tight.ridge * torch.eye(24, dtype=K.dtype), y.flatten())
    assert tight.nu_rms == pytest.approx(math.sqrt(float(a @ K @ a)), rel=1e-7)
    assert float((y.flatten() - K @ a).square().sum()) / 6 == pytest.approx(0.01 * whole, rel=1e-6)


def test_descent_needs_no_more_steps_than_the_measured_norm_says(generator):
    """tau <= 2 nu_rms^2 sharpness / error, the measured counterpart of Theorem 2."""
    x, v = unit_inputs(6, 4, 2, generator), random_map(2, nu=(0.5, 1.0), seed=6)
    y = target(x, v, alpha=0.5, nodes=201).value
    start = symmetric_init(2000, 2, 0.5, generator)
    error = 0.2 * risk(torch.zeros_like(y), y)
    norms = estimate_norms(start, x, y, residual=error / 10)
    most = math.ceil(2 * norms.nu_rms**2 * norms.sharpness / error)
    run = descend(start, x, y, eta=1 / norms.sharpness, steps=most, stop=error)
    assert run.reached is not None


def test_bad_input_is_told(generator):
    start, x = symmetric_init(4, 2, 0.5, generator), unit_inputs(3, 4, 2, generator)
    liar = TransportMap(lambda w, u: (2 * w.sign(), 0 * u), 1.0, 1.0)
    with pytest.raises(InputError, match="farther than it promised"):
        transport(start, liar)
    with pytest.raises(InputError, match="farther than it promised"):
        target(x, liar, alpha=0.5, nodes=11)
    with pytest.raises(InputError, match="nonnegative"):
        random_map(2, nu=(-1.0, 1.0))
    y = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    with pytest.raises(InputError, match="between zero and the risk"):
        estimate_norms(start, x, y, residual=0.0)
    with pytest.raises(InputError, match="between zero and the risk"):
        estimate_norms(start, x, y, residual=1e9)
    narrow = symmetric_init(2, 2, 0.5, generator)  # three numbers for twelve targets
    with pytest.raises(InputError, match="cannot explain"):
        estimate_norms(narrow, x, y, residual=1e-6)
