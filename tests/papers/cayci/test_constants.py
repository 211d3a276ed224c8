"""Certified constants bound what an adversary finds; several printed ones do not, and are shown not to."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lagreach.cells.activations import get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci import bounds, scaled_tanh
from lagreach.papers.cayci.derivatives import curvature, with_slope
from tests.papers.cayci.cases import REFERENCE, name_of

STEEP = scaled_tanh(10.0)
QUANTITIES = ("L", "beta", "Lam", "gam")


@pytest.mark.parametrize(
    "case", REFERENCE["constants"], ids=lambda c: f"{c['activation']}-{c['alpha']}-{c['a']}-{c['T']}"
)
def test_reference_values(case):
    constants = bounds.certified(case["activation"], case["a"], case["T"])
    for name, wanted in case["certified"].items():
        assert getattr(constants, name) == pytest.approx(wanted, rel=1e-13)
    constants = bounds.printed(case["activation"], alpha=case["alpha"], a=case["a"], T=case["T"], d=case["d"])
    for name, wanted in case["printed"].items():
        assert getattr(constants, {"dia": "diamond"}.get(name, name)) == pytest.approx(wanted, rel=1e-13)


def test_the_promised_values():
    constants = bounds.certified("tanh", a=0.5, T=5)
    assert (constants.L, constants.beta, constants.Lam, constants.gam) == pytest.approx(
        (2.69621, 16.7525, 2.16619, 13.0206), rel=1e-5
    )
    constants = bounds.certified("logistic", a=0.5, T=5)
    assert (constants.L, constants.beta, constants.Lam, constants.gam) == pytest.approx(
        (0.40401, 0.48597, 1.15172, 0.94272), abs=5e-6
    )
    constants = bounds.printed("tanh", alpha=0.5, a=0.5, T=5, d=4)
    assert (constants.L, constants.beta, constants.Lam, constants.gam) == pytest.approx(
        (7.5078, 69.985, 8.1373, 60.105), rel=1e-4
    )
    constants = bounds.printed("logistic", alpha=0.5, a=0.5, T=5, d=4)
    assert (constants.L, constants.beta, constants.Lam, constants.gam) == pytest.approx(
        (0.16326, 2.6493, 2.9439, 2.1042), rel=1e-4
    )


def largest(activation, a, T, d, *, starts=256, steps=100, seed=0):
    """The largest values an ascent from many starts finds, over weights with |w| <= a and inputs of length <= 1.

    Gradient and Hessian of one unit are written out again here, one unit and one sequence per start. Every fourth
    start climbs for one of the four quantities.
    """
    sigma, generator = get_activation(activation), torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    angle, u, raw = draw(starts), draw(starts, d), draw(starts, T, d)
    ascent, best = torch.optim.Adam([angle, u, raw], lr=0.1), torch.zeros(4, dtype=torch.float64)
    first = torch.eye(1 + d, dtype=torch.float64)[0]
    for _ in range(steps):
        w = a * torch.sin(angle)
        x = raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True).clamp_min(1.0)
        h, g = torch.zeros_like(w), torch.zeros(starts, 1 + d, dtype=torch.float64)
        S = torch.zeros(starts, 1 + d, 1 + d, dtype=torch.float64)
        for t in range(T):
            z = w * h + (u * x[:, t]).sum(-1)
            value, slope = with_slope(sigma, z)
            q = torch.cat((h[:, None], x[:, t]), dim=1) + w[:, None] * g
            cross = first[:, None] * g[:, None, :] + g[:, :, None] * first
            S = curvature(sigma, z)[:, None, None] * q[:, :, None] * q[:, None, :] + slope[:, None, None] * (
                w[:, None, None] * S + cross
            )
            g, h = slope[:, None] * q, value
        cross = first[:, None] * g[:, None, :] + g[:, :, None] * first
        sizes = torch.stack(
            [
                torch.linalg.vector_norm(g, dim=1),
                torch.linalg.matrix_norm(S),
                torch.linalg.vector_norm(first * h[:, None] + w[:, None] * g, dim=1),
                torch.linalg.matrix_norm(w[:, None, None] * S + cross),
            ]
        )
        best = torch.maximum(best, sizes.detach().amax(1))
        ascent.zero_grad()
        (-sum(sizes[k, k::4].clamp_min(1e-30).log().sum() for k in range(4))).backward()
        ascent.step()
    return dict(zip(QUANTITIES, best.tolist(), strict=True))


SETTINGS = [(0.5, 1, 1), (0.5, 3, 2), (1.2, 4, 1), (0.005, 3, 1)]


@pytest.mark.parametrize("activation", ["tanh", "logistic", "gaussian", STEEP], ids=name_of)
@pytest.mark.parametrize(("a", "T", "d"), SETTINGS)
def test_no_adversary_exceeds_the_certified_constants(activation, a, T, d):
    constants = bounds.certified(activation, a, T)
    for quantity, reached in largest(activation, a, T, d).items():
        assert 0 < reached <= getattr(constants, quantity) * (1 + 1e-12), quantity


@pytest.mark.parametrize("activation", ["tanh", "logistic", "gaussian"])
def test_at_one_step_they_are_reached(activation):
    constants = bounds.certified(activation, 0.5, 1)
    assert largest(activation, 0.5, 1, 1)["L"] == pytest.approx(constants.L, rel=1e-3)
    assert largest(activation, 0.5, 1, 1)["beta"] == pytest.approx(constants.beta, rel=1e-3)


def test_the_printed_lipschitz_constant_fails_for_small_slopes():
    """It bounds the square: too small wherever the constant is below one."""
    assert largest("logistic", 0.5, 1, 1)["L"] == pytest.approx(0.25, rel=1e-3)
    assert pytest.approx(0.125) == bounds.printed("logistic", alpha=0.5, a=0.5, T=1, d=1).L
    assert largest("gaussian", 0.05, 2, 1)["L"] > 1.05 * bounds.printed("gaussian", alpha=0.05, a=0.05, T=2, d=1).L


def test_the_printed_smoothness_constant_fails_for_a_steep_tanh():
    wrong = bounds.printed(STEEP, alpha=0.005, a=0.005, T=3, d=1).beta
    reached = largest(STEEP, 0.005, 3, 1)["beta"]
    assert wrong == pytest.approx(457, rel=0.01)
    assert reached > 3 * wrong
    assert reached <= bounds.certified(STEEP, 0.005, 3).beta


def test_the_printed_smoothness_of_the_product_fails():
    """gamma misses the cross term between W and the state."""
    wrong = bounds.printed("logistic", alpha=0.05, a=0.05, T=2, d=1).gam
    assert largest("logistic", 0.05, 2, 1)["gam"] > 1.5 * wrong


@given(
    a=st.floats(0.0, 2.0),
    T=st.integers(1, 30),
    more=st.floats(0.0, 0.5),
    activation=st.sampled_from(["tanh", "logistic", "gaussian", "erf", "sine"]),
)
@settings(max_examples=60, deadline=None)
def test_certified_constants_grow_with_steps_and_weights(a, T, more, activation):
    now, later, larger = (bounds.certified(activation, *at) for at in ((a, T), (a, T + 1), (a + more, T)))
    for name in (*QUANTITIES, "gw", "gu"):
        assert getattr(now, name) <= getattr(later, name) * (1 + 1e-14)
        assert getattr(now, name) <= getattr(larger, name) * (1 + 1e-14)
    sigma = get_activation(activation)
    gain = a * sigma.sigma_1
    closed = sigma.sigma_1 * np.hypot(sigma.sigma_0 * bounds.mu0(gain, T - 1), bounds.mu0(gain, T))
    assert pytest.approx(closed, rel=1e-12) == now.L


def test_bounded_in_time_exactly_below_the_cut_off():
    below = [bounds.certified("tanh", 0.9, T) for T in (200, 400, 800)]
    assert below[1].beta == pytest.approx(below[2].beta, rel=1e-10)
    at = [bounds.certified("tanh", 1.0, T) for T in (200, 400, 800)]
    assert pytest.approx(2, rel=0.01) == at[2].L / at[1].L  # polynomial: doubles with T
    above = [bounds.certified("tanh", 1.1, T) for T in (200, 400)]
    assert pytest.approx(1.1**200, rel=0.01) == above[1].L / above[0].L
    assert bounds.certified("logistic", 3.9, 10_000).L < 20  # the cut-off is at 1/sigma_1 = 4
    assert "bounded in T" in str(bounds.certified("logistic", 3.9, 100))
    assert "polynomial" in str(bounds.certified("tanh", 1.0, 100))
    assert "exp(T)" in str(bounds.certified("tanh", 1.1, 100))


def test_sums_of_powers():
    assert (bounds.mu0(1.0, 40), bounds.mu1(1.0, 40)) == (40.0, 820.0)
    z = np.linspace(0, 1.5, 7)
    for t in (0, 1, 5):
        np.testing.assert_allclose([bounds.mu0(v, t) for v in z], sum(z**k for k in range(t)) + 0 * z)
        np.testing.assert_allclose([bounds.mu1(v, t) for v in z], sum((k + 1) * z**k for k in range(t)) + 0 * z)


def test_longer_inputs_scale_what_they_touch():
    one, two = bounds.certified("tanh", 0.5, 6), bounds.certified("tanh", 0.5, 6, x_bound=2.0)
    assert two.gu == pytest.approx(2 * one.gu)
    assert two.gw == one.gw


def test_beyond_the_range_of_numbers_is_inf():
    for constants in (bounds.certified("tanh", 1.5, 5000), bounds.printed("tanh", alpha=1.5, a=1.5, T=5000, d=2)):
        assert (constants.L, constants.beta, constants.Lam, constants.gam) == (np.inf,) * 4


def test_bad_input_is_told():
    with pytest.raises(InputError, match="counts the steps"):
        bounds.certified("tanh", 0.5, 0)
    with pytest.raises(InputError, match="cannot be negative"):
        bounds.certified("tanh", -0.5, 3)
    with pytest.raises(InputError, match="unknown activation"):
        bounds.certified("relu", 0.5, 3)
    with pytest.raises(InputError, match="x_bound"):
        bounds.certified("tanh", 0.5, 3, x_bound=0.0)
