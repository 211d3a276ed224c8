"""First-order rates against explicit matrix products and closed forms."""

import math

import pytest
import torch

from lagreach import GatedRNN, effective_rates, fidelity, lag_gradients, rollout
from lagreach.cells import Dual, Factors, make_cell
from lagreach.cells.activations import ACTIVATIONS, Activation
from lagreach.testing.cell_checks import first_order_product
from lagreach.transport.dual import windows
from lagreach.transport.exact import exact_transport
from tests.cases import TOLERANCE, VARIANTS, normal, small_model

EXACT = TOLERANCE[torch.float64]
TIME = 8


def lstm_matrices(cell, x, s, p):
    """T and R of the paper's split of the LSTM Jacobian (11)."""
    J = cell.jacobian(x, s, p)
    H = J.shape[-1] // 2
    T = torch.zeros_like(J)
    T[..., H:] = J[..., H:]
    return T, J - T


@pytest.mark.parametrize("layernorm", [False, True])
def test_lstm_block_against_matrix_products(layernorm, generator):
    cell = make_cell("lstm", layernorm=layernorm or None)
    # a real trajectory: e_{t-1} in the factors belongs to the state before step t
    model = small_model("lstm", generator, layernorm=layernorm)
    part = rollout(model, normal(generator, 2, TIME, 3))
    p = model.stack.layer_params(0, part.recurrence.params)
    T, R = lstm_matrices(cell, part.x, part.previous, p)
    H = model.hidden_size
    for window in windows(cell.factors(part.x, part.previous, p), list(range(1, TIME))):
        block = first_order_product(T, R, window.lag)[..., :H, H:]
        torch.testing.assert_close(window.rate(), block.diagonal(dim1=-2, dim2=-1), **EXACT)
    zeroth = next(iter(windows(cell.factors(part.x, part.previous, p), [1])))
    assert (zeroth.slope == 0).all()


def test_lstm_equation_13_is_another_number(generator):
    """(13) as printed, summed literally, is what form="paper-eq13" gives, and it is not the block."""
    model = small_model("lstm", generator)
    x = normal(generator, 2, TIME, 3)
    part = rollout(model, x)
    p = model.stack.layer_params(0, part.recurrence.params)
    e, f = model.cell.expression(part.x, part.previous, p)
    lag = 5
    literal = torch.zeros(2, TIME - lag, model.hidden_size, dtype=torch.float64)
    for t in range(lag, TIME):
        start = t - lag
        for m in range(start + 1, t + 1):
            literal[:, start] += e[:, m] * f[:, start + 1 : m].prod(dim=1)
    printed = effective_rates(model, x, lags=[lag], form="paper-eq13")
    torch.testing.assert_close(printed.channels["retention"][0], literal.mean((0, 1)), **EXACT)
    from_zero = effective_rates(model, x, lags=[0, 1, lag], form="paper-eq13")
    torch.testing.assert_close(from_zero.rates[0], torch.ones(4).double(), **EXACT)
    torch.testing.assert_close(from_zero.channels["retention"][1], e[:, 1:].abs().mean((0, 1)), **EXACT)
    torch.testing.assert_close(from_zero.rates[2], printed.rates[0], **EXACT)
    right = effective_rates(model, x, lags=[lag])
    assert (printed.channels["retention"] / right.channels["retention"]).min() > 2


def test_gru_paper_form_adds_reset_and_mixed_products(generator):
    model = small_model("gru", generator)
    x = normal(generator, 2, TIME, 3)
    part = rollout(model, x)
    gates = model.cell.gates(part.x, part.previous, model.stack.layer_params(0, part.recurrence.params))
    lag = 3
    right = effective_rates(model, x, lags=[lag])
    printed = effective_rates(model, x, lags=[lag], form="paper", lr=0.1)
    rows = [slice(t - lag + 1, t + 1) for t in range(lag, TIME)]
    reset = torch.stack([gates["r"][:, rows_t].prod(1) for rows_t in rows], 1)
    mixed = torch.stack([((1 - gates["z"]) * gates["r"])[:, rows_t].prod(1) for rows_t in rows], 1)
    torch.testing.assert_close(printed.channels["reset"][0], 0.1 * reset.mean((0, 1)), **EXACT)
    torch.testing.assert_close(printed.channels["mixed"][0], 0.1 * mixed.mean((0, 1)), **EXACT)
    from_zero = effective_rates(model, x, lags=[0, 1, lag], form="paper")
    torch.testing.assert_close(from_zero.channels["reset"][0], torch.ones(4).double(), **EXACT)
    torch.testing.assert_close(from_zero.channels["reset"][1], gates["r"][:, 1:].mean((0, 1)), **EXACT)
    torch.testing.assert_close(from_zero.channels["mixed"][2], mixed.mean((0, 1)), **EXACT)
    assert set(right.channels) == {"retention", "correction"}
    retained = torch.stack([(1 - gates["z"])[:, rows_t].prod(1) for rows_t in rows], 1)
    torch.testing.assert_close(right.channels["retention"][0], retained.mean((0, 1)), **EXACT)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_diag_elman_transport_is_the_product_of_its_slopes(name, generator):
    model = GatedRNN("diag_elman", 3, 4, 1, activation=name, generator=generator, dtype=torch.float64)
    x, y = normal(generator, 2, TIME, 3), normal(generator, 2, TIME, 1)
    part = rollout(model, x)
    p = model.stack.layer_params(0, part.recurrence.params)
    a = part.x @ p["W_h"].T + p["u_h"] * part.previous + p["b_h"]
    slopes = torch.func.vmap(torch.func.grad(ACTIVATIONS[name].function))(a.flatten()).view_as(a)
    delta = normal(generator, 2, TIME, 4)
    for cotangent, _ in exact_transport(part, delta, range(TIME)):
        lag = cotangent.lag
        products = torch.stack([(p["u_h"] * slopes)[:, t - lag + 1 : t + 1].prod(1) for t in range(lag, TIME)], 1)
        torch.testing.assert_close(cotangent.value(), products * delta[:, lag:], **EXACT)
    first = lag_gradients(model, x, y, transport="first-order")
    exact = lag_gradients(model, x, y)
    for n, g in exact.grads.items():
        torch.testing.assert_close(first.grads[n], g, **EXACT)
    torch.testing.assert_close(fidelity(model, x, y, lags=range(TIME)).ratio, torch.ones(TIME).double(), **EXACT)


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activation_bounds_are_tight(name):
    act: Activation = ACTIVATIONS[name]
    z = torch.linspace(-20, 20, 400_001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(act(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    for bound, values in ((act.sigma_0, act(z)), (act.sigma_1, first), (act.sigma_2, second)):
        peak = values.abs().max().item()
        assert peak <= bound * (1 + 1e-9)
        assert peak >= bound * (1 - 1e-6)


def test_const_gate_without_recurrence_is_closed_form(generator):
    s, H = 0.07, 5
    model = GatedRNN("const_gate", 3, H, 1, gate_init=s, generator=generator, dtype=torch.float64)
    torch.nn.init.zeros_(model.layers[0]["U_h"])
    x, y = normal(generator, 2, 200, 3), normal(generator, 2, 200, 1)
    lags = [0, 1, 2, 3, 17, 64, 150, 199]
    rates = effective_rates(model, x, lags=lags)
    expected = torch.tensor([H * (1 - s) ** lag for lag in lags], dtype=torch.float64)
    torch.testing.assert_close(rates.envelope, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(rates.channels["retention"].sum(1), expected, rtol=1e-10, atol=0)
    assert (rates.channels["correction"] == 0).all()
    # a mean over anchors, however many there are; beyond the longest sequence there are none
    short = effective_rates(model, x, lags=lags, lengths=[100, 18], lr=0.1)
    torch.testing.assert_close(short.envelope[:6], 0.1 * expected[:6], rtol=1e-10, atol=0)
    assert short.envelope[6:].isnan().all()
    gains = fidelity(model, x, y, lags=lags)
    torch.testing.assert_close(gains.exact, expected / H, rtol=1e-10, atol=0)
    torch.testing.assert_close(gains.first_order, expected / H, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lags_to_ten_thousand_neither_under_nor_overflow(dtype, generator):
    time, H, s = 10_001, 3, 0.5
    model = GatedRNN("const_gate", 2, H, 1, gate_init=s, generator=generator, dtype=dtype)
    torch.nn.init.zeros_(model.layers[0]["U_h"])
    x = torch.zeros(1, time, 2, dtype=dtype)
    lags = [1, 100, 999, 1000, 1001, 5000, 9999, 10_000]
    rates = effective_rates(model, x, lags=lags)
    expected = torch.tensor([math.log10(H) + lag * math.log10(1 - s) for lag in lags], dtype=torch.float64)
    torch.testing.assert_close(rates.log10_envelope, expected, rtol=1e-12, atol=1e-9)
    assert rates.envelope[-1] == 0  # outside the range of float64, which is why the logarithm is kept


def test_exact_gain_keeps_its_exponent_in_float32(generator):
    """Beyond lag 125 a gain of 2^-lag is outside float32; the carried exponent keeps it."""
    time, s = 400, 0.5
    model = GatedRNN("const_gate", 2, 3, 1, gate_init=s, generator=generator)
    torch.nn.init.zeros_(model.layers[0]["U_h"])
    x, y = torch.randn(2, time, 2, generator=generator), torch.randn(2, time, 1, generator=generator)
    lags = [1, 120, 130, 260, 399]
    gains = fidelity(model, x, y, lags=lags)
    expected = torch.tensor([lag * math.log10(1 - s) for lag in lags], dtype=torch.float64)
    torch.testing.assert_close(gains.log10_exact, expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(gains.log10_first_order, expected, rtol=1e-6, atol=1e-5)


def test_growing_products_do_not_overflow(generator):
    factor = torch.full((1, 3001, 1), 3.0)
    window = next(windows(Factors.uniform(Dual(factor, factor)), [3000]))
    log10_rate = torch.log10(window.rate()) + math.log10(2) * window.exponent.double()
    # (3 + 3E)^3000 = 3^3000 (1 + 3000 E)
    torch.testing.assert_close(log10_rate.item(), 3000 * math.log10(3) + math.log10(3001), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("lags", [[1, 2, 3, 4, 5, 6, 7], [7], [2, 7], [1, 6]])
@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_any_set_of_lags_gives_the_same_rates(name, layernorm, lags, generator):
    model = small_model(name, generator, layernorm=layernorm)
    x = normal(generator, 2, TIME, 3)
    everything = effective_rates(model, x, lags=range(TIME))
    some = effective_rates(model, x, lags=lags)
    torch.testing.assert_close(some.rates, everything.rates[lags], **EXACT)


@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_saturated_constant_gate(gate, generator):
    from lagreach.cells.const_gate import ConstGate

    model = GatedRNN(ConstGate(gate=gate), 3, 4, 1, generator=generator, dtype=torch.float64)
    x, y = normal(generator, 2, TIME, 3), normal(generator, 2, TIME, 1)
    rates = effective_rates(model, x, lags=[1, 2, 5])
    if gate == 0.0:  # nothing is ever written: transport is the identity
        torch.testing.assert_close(rates.envelope, torch.full((3,), 4.0, dtype=torch.float64), **EXACT)
        torch.testing.assert_close(fidelity(model, x, y, lags=[1, 5]).exact, torch.ones(2).double(), **EXACT)
    else:  # nothing is kept: an Elman network, whose first order ends at lag 1
        elman = GatedRNN("elman", 3, 4, 1, dtype=torch.float64)
        elman.load_state_dict(model.state_dict())
        torch.testing.assert_close(rates.rates, effective_rates(elman, x, lags=[1, 2, 5]).rates, **EXACT)
        assert (rates.rates[1:] == 0).all()
        torch.testing.assert_close(
            fidelity(model, x, y, lags=[1, 5]).exact, fidelity(elman, x, y, lags=[1, 5]).exact, **EXACT
        )


@pytest.mark.parametrize("cell", ["diag_gate", "gru", "lstm", "torch_gru", "shared_gate"])
def test_gates_saturated_at_exactly_zero_and_one(cell, generator):
    """Gates at exactly 0 or 1 at some steps: finite rates, equal to explicit products (no log of zero)."""
    model = small_model(cell, generator)
    name, _ = model.cell.retention_bias
    with torch.no_grad():
        gate_input = f"W_{name[-1]}"
        model.layers[0][gate_input].zero_()
        model.layers[0][gate_input][..., 0] = 1e4  # the first input drives the gate to exactly 0 or 1
    x = normal(generator, 2, TIME, 3)
    x[:, ::3, 0] = 0.0  # and leaves it alone at every third step
    part = rollout(model, x)
    p = model.stack.layer_params(0, part.recurrence.params)
    gates = model.cell.gates(part.x, part.previous, p)[name[-1]]
    assert (gates == 0).any()
    assert (gates == 1).any()
    rates = effective_rates(model, x, lags=range(1, TIME))
    assert torch.isfinite(rates.rates).all()
    if cell == "lstm":
        T, R = lstm_matrices(model.cell, part.x, part.previous, p)
    else:
        T = torch.diag_embed(model.cell.retention(part.x, part.previous, p))
        R = model.cell.jacobian(part.x, part.previous, p) - T
    for row, lag in zip(rates.rates, range(1, TIME), strict=True):
        product = first_order_product(T, R, lag)
        block = product[..., :4, 4:] if cell == "lstm" else product
        torch.testing.assert_close(row, block.diagonal(dim1=-2, dim2=-1).abs().mean((0, 1)), **EXACT)


def test_stacked_units_are_listed_layer_by_layer(generator):
    model = small_model("diag_gate", generator, num_layers=2)
    x = normal(generator, 2, TIME, 3)
    rates = effective_rates(model, x, lags=[1, 3])
    assert rates.layer.tolist() == [0] * 4 + [1] * 4
    bottom = GatedRNN("diag_gate", 3, 4, 2, dtype=torch.float64)
    bottom.load_state_dict({k: v for k, v in model.state_dict().items() if "layers.1" not in k})
    torch.testing.assert_close(rates.rates[:, :4], effective_rates(bottom, x, lags=[1, 3]).rates, **EXACT)
    torch.testing.assert_close(rates.envelope, rates.rates.sum(1), **EXACT)
