"""Kernels of finite and infinite width against autograd, reference values, each other, and a trained network."""

import math

import numpy as np
import pytest
import torch

from lagreach.errors import InputError, TooLargeError
from lagreach.papers.cayci import Weights, descend, ntk, symmetric_init
from lagreach.papers.cayci.linear import kernel_descent, kernel_regression
from lagreach.papers.cayci.recurrence import forward, output
from lagreach.papers.cayci.streaming import outputs
from lagreach.papers.cayci.transport_maps import random_map, target
from tests.papers.cayci.cases import REFERENCE, START, X4, X, assert_near, some_weights, unit_inputs


@pytest.mark.parametrize("name", REFERENCE["network"])
def test_reference_values(name):
    wanted = REFERENCE["network"][name]
    assert_near(ntk.finite(START, X, name), wanted["ntk"])
    assert_near(ntk.full(START, X, name).flatten(0, 1).flatten(1), wanted["ntk_full"])


@pytest.mark.parametrize("case", REFERENCE["kernel"])
def test_infinite_width_reference_values(case):
    name, alpha = case.split()
    kernel = ntk.infinite(X4, alpha=float(alpha), activation=name)
    assert_near(kernel.value, REFERENCE["kernel"][case])
    assert kernel.error.max() < 1e-13
    assert "trapezoid" in str(kernel)


def test_the_kernel_is_that_of_autograd(generator):
    weights, x = some_weights(6, 2, generator), unit_inputs(4, 5, 2, generator)
    weights = weights._replace(c=weights.c.sign())

    def network(W, U):
        return output(weights.c, forward(Weights(W, U, weights.c), x).H)

    to_w, to_u = torch.autograd.functional.jacobian(network, (weights.W, weights.U))
    J = torch.cat((to_w.flatten(2), to_u.flatten(2)), dim=-1)
    assert_near(ntk.full(weights, x), torch.einsum("ntp,msp->ntms", J, J))
    assert_near(ntk.finite(weights, x), torch.einsum("ntp,mtp->tnm", J, J))


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_chunks_do_not_change_the_kernel(chunk, generator):
    weights, x = symmetric_init(20, 3, 0.6, generator), unit_inputs(5, 6, 3, generator)
    other = unit_inputs(2, 6, 3, generator)
    K = ntk.finite(weights, x, chunk=chunk)
    assert_near(K, ntk.finite(weights, x), 1e-15)
    assert_near(
        ntk.finite(weights, x, x2=other, chunk=chunk), ntk.finite(weights, torch.cat((x, other)))[:, :5, 5:], 1e-15
    )
    full = ntk.full(weights, x, chunk=chunk)
    for t in range(6):
        assert_near(full[:, t, :, t], K[t], 1e-15)


def test_symmetric_and_positive_semidefinite(generator):
    weights, x = symmetric_init(8, 2, 0.9, generator), unit_inputs(6, 5, 2, generator)
    K = ntk.finite(weights, x)
    assert torch.equal(K, K.mT)
    assert torch.linalg.eigvalsh(K).min() > -1e-14
    full = ntk.full(weights, x).flatten(0, 1).flatten(1)
    assert torch.equal(full, full.T)
    values = torch.linalg.eigvalsh(full)
    assert values.min() > -1e-13
    assert ntk.sharpness(weights, x) == pytest.approx(float(values[-1]) / 6, rel=1e-14)


def test_the_first_step_has_a_closed_form():
    """kappa_1 = E[X.X' sigma'(u.X) sigma'(u.X')]: for erf a Gaussian integral with a known value."""
    x = torch.tensor([[[0.6, 0.3]], [[-0.2, 0.9]]], dtype=torch.float64)
    kernel = ntk.infinite(x, alpha=0.7, activation="erf", nodes=401).value[0]
    a, b, ab = (float(v) for v in (x[0] @ x[0].T, x[1] @ x[1].T, x[0] @ x[1].T))
    wanted = ab * 4 / math.pi / math.sqrt((1 + 2 * a) * (1 + 2 * b) - 4 * ab**2)
    assert float(kernel[0, 1]) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("method", ["qmc", "mc"])
@pytest.mark.parametrize("name", ["tanh", "logistic"])
def test_sampling_agrees_with_quadrature_within_its_error(method, name, generator):
    x = unit_inputs(3, 5, 2, generator)
    exact = ntk.infinite(x, alpha=0.7, activation=name, nodes=201)
    sampled = ntk.infinite(x, alpha=0.7, activation=name, method=method, nodes=1 << 13, seed=1)
    z = (sampled.value - exact.value) / sampled.error
    # 30 different numbers, each a t with 15 degrees of freedom, strongly correlated: 4.5 is one in a hundred over all
    assert z.abs().max() < 4.5
    assert z.abs().max() > 0.5
    assert sampled.error.max() < 0.02


def test_quasi_monte_carlo_is_the_better_sample(generator):
    x = unit_inputs(2, 4, 3, generator)
    errors = {kind: ntk.infinite(x, alpha=0.5, method=kind, nodes=1 << 13).error for kind in ("qmc", "mc")}
    assert errors["qmc"].median() < 0.5 * errors["mc"].median()


def test_the_kernel_converges_at_the_square_root_of_the_width(generator):
    x = unit_inputs(4, 6, 2, generator)
    exact = ntk.infinite(x, alpha=0.6, nodes=201).value
    widths, draws = [2**k for k in (6, 8, 10, 12)], 12
    errors = np.array(
        [
            [float((ntk.finite(symmetric_init(m, 2, 0.6, 100 * k + s), x) - exact).norm()) for s in range(draws)]
            for k, m in enumerate(widths)
        ]
    )
    slope, spread = slope_of(widths, np.log(errors))
    assert abs(slope + 0.5) < 3 * spread
    assert spread < 0.05


def slope_of(widths, logs):
    """Slope of the mean over draws against log width, with its standard error."""
    t = np.log(widths) - np.mean(np.log(widths))
    per_draw = (t[:, None] * logs).sum(0) / (t**2).sum()
    return per_draw.mean(), per_draw.std(ddof=1) / math.sqrt(per_draw.size)


def test_the_printed_kernel_misses_the_newest_input(generator):
    """Sums from 1 as printed in Proposition 2 are zero at t = 1, and no width ever comes near them."""
    x = unit_inputs(3, 6, 2, generator)
    right, wrong = (ntk.infinite(x, alpha=0.6, nodes=201, form=form).value for form in ("corrected", "printed"))
    assert (wrong[0] == 0).all()
    assert right[0].diagonal().min() > 0.1
    wide = ntk.finite(symmetric_init(1 << 14, 2, 0.6, generator), x)
    assert (wide - right).abs().max() < 0.03
    assert (wide - wrong).abs().max() > 0.3


def test_odd_activations_are_not_universal(generator):
    x = unit_inputs(2, 5, 2, generator)
    K = ntk.infinite(x, torch.cat((x, -x)), alpha=0.6, nodes=101).value
    assert_near(K[:, :, 2:], -K[:, :, :2], 1e-15)


def test_above_the_cut_off_sampling_warns(generator):
    x = unit_inputs(1, 3, 3, generator)
    with pytest.warns(UserWarning, match="rare units carry the kernel"):
        ntk.infinite(x, alpha=1.2, nodes=64)


def test_the_full_infinite_kernel_holds_the_equal_times(generator):
    x = unit_inputs(2, 4, 2, generator)
    full, equal = ntk.infinite_full(x, alpha=0.6, nodes=101), ntk.infinite(x, alpha=0.6, nodes=101)
    for t in range(4):
        assert_near(full.value[:, t, :, t], equal.value[t], 1e-14)
    sampled = ntk.infinite_full(x, alpha=0.6, method="qmc", nodes=1 << 12)
    assert ((sampled.value - full.value) / sampled.error).abs().max() < 6


def test_kernel_descent_is_gradient_descent_on_the_linear_model(generator):
    x, y = unit_inputs(3, 4, 2, generator), torch.randn(3, 4, generator=generator, dtype=torch.float64)
    K = ntk.full(symmetric_init(12, 2, 0.5, generator), x)
    outputs = kernel_descent(K, y, eta=0.2, steps=15)
    F = torch.zeros_like(y)
    for s in range(16):
        assert_near(outputs[s], F, 1e-13)
        F = F - 0.2 / 3 * torch.einsum("ntms,ms->nt", K, F - y)


def test_kernel_regression(generator):
    x, y = unit_inputs(3, 4, 2, generator), torch.randn(3, 4, generator=generator, dtype=torch.float64)
    K = ntk.full(symmetric_init(200, 2, 0.5, generator), x)
    a = kernel_regression(K, y)
    assert_near(torch.einsum("ntms,ms->nt", K, a), y, 1e-9)
    ridged = kernel_regression(K, y, ridge=0.1)
    assert_near(torch.einsum("ntms,ms->nt", K, ridged) + 0.1 * ridged, y, 1e-12)
    blind = torch.zeros_like(K)
    blind[0, 0, 0, 0] = 2.0
    wanted = torch.zeros_like(y)
    wanted[0, 0] = y[0, 0] / 2
    assert_near(kernel_regression(blind, y), wanted)


def test_a_wide_network_trains_like_its_infinite_kernel(generator):
    """rms |F_m - F_infinity| after training falls like the square root of the width."""
    x = unit_inputs(4, 5, 1, generator)
    y = target(x, random_map(1, seed=generator), alpha=0.5).value
    K = ntk.infinite_full(x, alpha=0.5).value
    limit = kernel_descent(K, y, eta=0.5, steps=30)[-1]
    widths, draws, logs = [32, 256, 2048], 6, []
    for m in widths:
        apart = []
        for s in range(draws):
            run = descend(symmetric_init(m, 1, 0.5, 1000 * m + s), x, y, eta=0.5, steps=30, engine="torch")
            apart.append(float((outputs(run.weights, x, engine="torch") - limit).norm()))
        logs.append(np.log(apart))
    slope, spread = slope_of(widths, np.array(logs))
    assert abs(slope + 0.5) < 3 * spread
    assert spread < 0.1


@pytest.mark.usefixtures("_as_users_run_it")
def test_bad_input_is_told(generator):
    x = unit_inputs(2, 3, 3, generator)
    with pytest.raises(InputError, match="width 1 or 2"):
        ntk.infinite(x, alpha=0.5, method="trapezoid")
    with pytest.raises(InputError, match="unknown method"):
        ntk.infinite(x, alpha=0.5, method="guess")
    with pytest.raises(InputError, match="unknown form"):
        ntk.infinite(x, alpha=0.5, form="guess")
    with pytest.raises(InputError, match="too few points"):
        ntk.infinite(x, alpha=0.5, nodes=8)
    with pytest.raises(InputError, match="same length"):
        ntk.infinite(x, x[:, :2], alpha=0.5)
    with pytest.raises(TooLargeError, match="would not fit"):
        ntk.full(symmetric_init(2, 1, 0.5), torch.zeros(2, 20_000, 1, dtype=torch.float64))
    with pytest.raises(InputError, match="ridge"):
        kernel_regression(ntk.full(symmetric_init(2, 3, 0.5), x), x[..., 0], ridge=-1.0)
