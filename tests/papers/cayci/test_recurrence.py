"""The network itself: reference values, Proposition 1 three ways, Hessians, streaming twins, and a start at zero."""

import numpy as np
import pytest
import torch

from lagreach.cells.activations import Activation, get_activation
from lagreach.errors import InputError, UnsupportedError
from lagreach.papers.cayci import DiagonalNetwork, Weights, fused, scaled_tanh, streaming, symmetric_init
from lagreach.papers.cayci.derivatives import curvature, with_slope
from lagreach.papers.cayci.lags import lag_parts
from lagreach.papers.cayci.linear import linearised
from lagreach.papers.cayci.recurrence import forward, hessian_steps, output, sensitivities
from tests.papers.cayci.cases import (
    ACTIVATIONS,
    REFERENCE,
    START,
    X,
    Y,
    assert_near,
    name_of,
    some_weights,
    unit_inputs,
)


@pytest.mark.parametrize("name", REFERENCE["network"])
def test_reference_values(name):
    wanted = REFERENCE["network"][name]
    H, slopes = forward(START, X, name)
    assert_near(H, wanted["H"])
    assert_near(slopes, wanted["I"])
    assert_near(sensitivities(START, X, name)[:, -1], wanted["g_T"])
    assert_near(list(hessian_steps(START, X, name))[-1][1], wanted["hess_T"])
    risk, dW, dU = streaming.risk_and_gradient(START, X, Y, name)
    assert risk == pytest.approx(wanted["R0"], rel=1e-14)
    assert_near(dW, wanted["dW"])
    assert_near(dU, wanted["dU"])


@pytest.mark.parametrize("name", REFERENCE["network"])
def test_reference_values_by_lag(name):
    wanted = REFERENCE["network"][name]
    parts = lag_parts(START, X, Y, name)
    assert_near(parts.gradient_w, wanted["lag_dW"])
    assert_near(parts.gradient_w.sum(0), wanted["dW"])
    assert_near(parts.gradient_u.sum(0), wanted["dU"])


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name_of)
def test_derivatives_of_activations(activation, generator):
    sigma = get_activation(activation)
    z = (4 * torch.randn(300, generator=generator, dtype=torch.float64)).requires_grad_()
    value, slope = with_slope(sigma, z)
    first = torch.autograd.grad(value.sum(), z, create_graph=True)[0]
    assert_near(slope, first.detach(), 1e-14)
    assert_near(curvature(sigma, z).detach(), torch.autograd.grad(first.sum(), z)[0], 1e-13)
    assert value.abs().max() <= sigma.sigma_0 * (1 + 1e-15)
    assert slope.abs().max() <= sigma.sigma_1 * (1 + 1e-15)
    assert curvature(sigma, z).abs().max() <= sigma.sigma_2 * (1 + 1e-15)


def test_custom_activations_work_by_autodiff(generator):
    activation = Activation("softsign-like", lambda z: z / torch.sqrt(1 + z * z), 1.0, 1.0, 1.0)
    weights, x = some_weights(5, 2, generator), unit_inputs(3, 4, 2, generator)
    check_against_autograd(weights, x, activation)
    z = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert_near(curvature(activation, z), -3 * z / (1 + z * z) ** 2.5, 1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name_of)
def test_proposition_1_is_the_literal_sum_and_autograd(activation, generator):
    weights, x = some_weights(5, 3, generator), unit_inputs(4, 6, 3, generator)
    check_against_autograd(weights, x, activation)
    H, slopes = forward(weights, x, activation)
    derivatives = sensitivities(weights, x, activation)
    for t in range(1, x.shape[1] + 1):
        dW, dU = 0.0, 0.0
        for k in range(t):
            product = weights.W**k * slopes[:, t - k - 1 : t].prod(1)
            dW = dW + product * H[:, t - k - 1]
            dU = dU + product[..., None] * x[:, t - k - 1, None, :]
        assert_near(derivatives[:, t - 1, :, 0], dW)
        assert_near(derivatives[:, t - 1, :, 1:], dU)


def check_against_autograd(weights, x, activation):
    W, U = weights.W.clone().requires_grad_(), weights.U.clone().requires_grad_()

    def states(W, U):
        return forward(Weights(W, U, weights.c), x, activation).H[:, 1:]

    to_w, to_u = torch.autograd.functional.jacobian(states, (W, U))
    unit = torch.arange(len(W))
    derivatives = sensitivities(weights, x, activation)
    assert_near(derivatives[..., 0], to_w[:, :, unit, unit])
    assert_near(derivatives[..., 1:], to_u[:, :, unit, unit])
    apart = ~torch.eye(len(W), dtype=torch.bool)
    assert (to_w[:, :, apart] == 0).all()
    assert (to_u[:, :, apart] == 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name_of)
def test_hessian_is_that_of_autograd(activation, generator):
    weights, x = some_weights(3, 2, generator), unit_inputs(2, 5, 2, generator)
    for step, S in hessian_steps(weights, x, activation):
        assert_near(step.g, sensitivities(weights, x, activation)[:, step.t - 1])
        for j in range(2):
            for i in range(3):

                def state(theta, j=j, i=i, t=step.t):
                    one = Weights(theta[:1], theta[None, 1:], weights.c[:1])
                    return forward(one, x[j : j + 1], activation).H[0, t, 0]

                theta = torch.cat((weights.W[i : i + 1], weights.U[i]))
                assert_near(S[j, i], torch.autograd.functional.hessian(state, theta), 2e-13)


@pytest.mark.parametrize("m", [6, 7, 70])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name_of)
def test_streaming_is_the_plain_network_and_autograd(activation, m, generator, monkeypatch):
    monkeypatch.setattr(streaming, "_STEP_ELEMENTS", 40)  # several blocks, the last one smaller
    weights, x = some_weights(m, 3, generator), unit_inputs(5, 7, 3, generator)
    y = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    W, U = weights.W.clone().requires_grad_(), weights.U.clone().requires_grad_()
    plain = output(weights.c, forward(Weights(W, U, weights.c), x, activation).H)
    assert_near(streaming.outputs(weights, x, activation), plain.detach())
    loss = (plain - y).square().sum() / 5
    wanted = torch.autograd.grad(loss / 2, (W, U))
    risk, *gradients = streaming.risk_and_gradient(weights, x, y, activation)
    assert risk == pytest.approx(loss.item(), rel=1e-13)
    for mine, autograd in zip(gradients, wanted, strict=True):
        assert_near(mine, autograd, 1e-13)
    network = DiagonalNetwork(weights, activation)
    ((network(x) - y).square().sum() / 10).backward()
    assert_near(network.W.grad, wanted[0], 1e-13)
    assert_near(network.U.grad, wanted[1], 1e-13)


@pytest.mark.parametrize("activation", ["tanh", "logistic", scaled_tanh(3.0, 0.5)], ids=name_of)
@pytest.mark.parametrize(("m", "d"), [(2, 1), (33, 3), (64, 4), (130, 6)])
def test_the_compiled_kernel_is_its_torch_twin(activation, m, d, generator):
    weights, x = some_weights(m, d, generator), unit_inputs(5, 9, d, generator)
    cotangent = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    compiled, twin = (streaming.outputs(weights, x, activation, engine=engine) for engine in ("numba", "torch"))
    assert_near(compiled, twin, 2e-14)
    compiled, twin = (
        streaming.pullback(weights, x, cotangent, activation, engine=engine) for engine in ("numba", "torch")
    )
    assert_near(compiled[0], twin[0], 2e-13)
    assert_near(compiled[1], twin[1], 2e-13)


def test_the_compiled_tanh_is_exact_to_rounding():
    z = np.concatenate([np.linspace(-60, 60, 4001), np.geomspace(1e-300, 1.0, 500), [0.0, 710.0, 1e300, np.inf]])
    z = np.concatenate([z, -z])
    computed = np.array([fused.tanh(value) for value in z])
    np.testing.assert_allclose(computed, np.tanh(z), rtol=5e-16, atol=0)
    assert np.isnan(fused.tanh(np.nan))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name_of)
@pytest.mark.parametrize("m", [2, 34, 1000])
def test_the_output_at_the_symmetric_start_is_zero_to_the_bit(activation, m, generator):
    weights, x = symmetric_init(m, 3, 0.8, generator), unit_inputs(6, 11, 3, generator)
    H = forward(weights, x, activation).H
    assert torch.equal(H[..., : m // 2], H[..., m // 2 :])
    assert (output(weights.c, H) == 0).all()
    assert (streaming.outputs(weights, x, activation, engine="torch") == 0).all()
    if activation in ("tanh", "logistic"):
        assert (streaming.outputs(weights, x, activation, engine="numba") == 0).all()


def test_linearised_is_the_directional_derivative(generator):
    weights, x = some_weights(40, 3, generator), unit_inputs(4, 6, 3, generator)
    moved = some_weights(40, 3, generator)
    g = sensitivities(weights, x)
    step = torch.cat(((moved.W - weights.W)[:, None], moved.U - weights.U), dim=1)
    wanted = torch.einsum("ntmp,mp,m->nt", g, step, weights.c) / 40**0.5
    assert_near(linearised(weights, moved, x), wanted, 1e-13)


def test_lag_parts_of_transport_and_energy(generator):
    weights, x = some_weights(6, 2, generator), unit_inputs(3, 5, 2, generator)
    y = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    parts = lag_parts(weights, x, y)
    H, slopes = forward(weights, x)
    for lag in parts.lags:
        terms, paths = [], []
        for t in range(lag + 1, 6):
            path = weights.W**lag * slopes[:, t - lag : t].prod(1)
            e = torch.cat((H[:, t - lag - 1, :, None], x[:, t - lag - 1, None].expand(-1, 6, -1)), dim=-1)
            terms.append(((path * slopes[:, t - lag - 1])[..., None] * e).square().sum(-1))
            paths.append(path.abs())
        assert parts.energy[lag] == pytest.approx(float(torch.stack(terms).mean()), rel=1e-13)
        assert parts.transport[lag] == pytest.approx(float(torch.stack(paths).mean()), rel=1e-13)
    with pytest.raises(InputError, match="shorter than the sequences"):
        lag_parts(weights, x, y, longest=5)


def test_bad_input_is_told(generator):
    with pytest.raises(InputError, match="width must be even"):
        symmetric_init(5, 2, 0.5)
    with pytest.raises(InputError, match="cannot be negative"):
        symmetric_init(4, 2, -0.5)
    with pytest.raises(InputError, match="at least one coordinate"):
        symmetric_init(4, 0, 0.5)
    network = DiagonalNetwork.start(4, 2, 0.5)
    with pytest.raises(InputError, match=r"(?s)bounded length.*divide the inputs by"):
        network(2 * unit_inputs(2, 3, 2, generator))
    with pytest.raises(InputError, match="bounded length"):
        network(torch.full((1, 2, 2), torch.nan, dtype=torch.float64))
    longer = DiagonalNetwork.start(4, 2, 0.5, x_bound=2.0)
    assert (longer(2 * unit_inputs(2, 3, 2, generator)) == 0).all()
    with pytest.raises(InputError, match="unknown engine"):
        streaming.outputs(network.weights, X.expand(-1, -1, 2) / 2, engine="fortran")
    with pytest.raises(UnsupportedError, match="tanh kind"):
        streaming.outputs(network.weights, X.expand(-1, -1, 2) / 2, "sine", engine="numba")
    with pytest.raises(InputError, match="must be positive"):
        scaled_tanh(-1.0)


def test_seeds_and_generators_draw_the_same():
    one, other = symmetric_init(8, 2, 0.5, 3), symmetric_init(8, 2, 0.5, torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one.U, symmetric_init(8, 2, 0.5, 4).U)


def test_the_start_has_the_distribution_of_definition_1():
    W, U, c = symmetric_init(40_000, 2, 0.7, 0)
    half = 20_000
    assert torch.equal(W.abs(), torch.full_like(W, 0.7))
    assert torch.equal(c[:half], -c[half:])
    assert torch.equal(U[:half], U[half:])
    assert torch.equal(W[:half], W[half:])
    bound = 5 / half**0.5
    assert abs(W[:half].mean() / 0.7) < bound
    assert abs(c[:half].mean()) < bound
    assert U[:half].mean(0).abs().max() < bound
    assert ((U[:half].T @ U[:half]) / half - torch.eye(2)).abs().max() < 2 * bound
    assert abs((W[:half] * c[:half]).mean() / 0.7) < bound
