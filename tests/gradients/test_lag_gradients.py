"""lag_gradients: invariances, reductions, limits and error messages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lagreach.gradients.lag_gradients as module
from lagreach import GatedRNN, LagreachError, effective_rates, fidelity, lag_gradients, rollout
from lagreach.errors import InputError, TooLargeError, UnsupportedError
from tests.cases import CELLS, TOLERANCE, autograd_gradient, normal, small_model

EXACT = TOLERANCE[torch.float64]


def assert_same(a, b):
    for name, grad in a.grads.items():
        torch.testing.assert_close(grad, b.grads[name], **EXACT)
    torch.testing.assert_close(a.loss, b.loss, **EXACT)


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["exact", "first-order"])
@pytest.mark.parametrize("cell", CELLS)
def test_chunks_and_order_do_not_matter(cell, transport, generator):
    model = small_model(cell, generator)
    x, y = normal(generator, 7, 9, 3), normal(generator, 7, 9, 2)
    whole = lag_gradients(model, x, y, transport=transport)
    for chunk in (1, 2, 3):
        assert_same(whole, lag_gradients(model, x, y, transport=transport, chunk=chunk))
    order = torch.randperm(7, generator=generator)
    assert_same(whole, lag_gradients(model, x[order], y[order], transport=transport))
    torch.testing.assert_close(
        fidelity(model, x, y, lags=[0, 1, 5]).exact, fidelity(model, x[order], y[order], lags=[0, 1, 5], chunk=2).exact
    )
    torch.testing.assert_close(
        effective_rates(model, x, lags=[1, 5]).rates, effective_rates(model, x[order], lags=[1, 5], chunk=3).rates
    )
    torch.testing.assert_close(rollout(model, x).states, rollout(model, x, chunk=2).states, **EXACT)


@settings(max_examples=20, deadline=None)
@given(
    cell=st.sampled_from(CELLS),
    seq=st.integers(1, 4),
    time=st.integers(1, 12),
    hidden=st.integers(1, 5),
    layers=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_any_shape_any_lags(cell, seq, time, hidden, layers, dtype, data):
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    model = small_model(cell, generator, hidden_size=hidden, num_layers=layers, dtype=dtype)
    x, y = normal(generator, seq, time, 3, dtype=dtype), normal(generator, seq, time, 2, dtype=dtype)
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, time), min_size=seq, max_size=seq)))
    whole = lag_gradients(model, x, y, lengths=lengths)
    weight = (torch.arange(time) < lengths[:, None]).to(dtype)
    loss = (((model(x) - y).square().mean(-1) * weight).sum(1) / weight.sum(1)).mean()
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    for name, grad in autograd_gradient(model, loss).items():
        scale = max(1.0, grad.abs().max().item())
        torch.testing.assert_close(whole.total()[name] / scale, grad / scale, rtol=0, atol=tolerance)
    lags = data.draw(st.lists(st.integers(0, time - 1), min_size=1, unique=True))
    some = lag_gradients(model, x, y, lengths=lengths, lags=lags)
    for name, grad in some.grads.items():
        torch.testing.assert_close(grad, whole.grads[name][sorted(lags)], rtol=tolerance, atol=tolerance)


def test_sparse_lags_are_refused_as_a_total(generator):
    model = small_model("lstm", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    with pytest.raises(InputError, match="lags=range\\(6\\)"):
        lag_gradients(model, x, y, lags=[0, 1, 2, 3, 4]).total()


def test_readout_sits_in_lag_zero(generator):
    model = small_model("gru", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    grads = lag_gradients(model, x, y).grads
    assert (grads["readout.weight"][1:] == 0).all()
    assert grads["readout.weight"][0].abs().max() > 0


def test_reductions(generator, monkeypatch):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 5, 8, 3), normal(generator, 5, 8, 2)
    whole = lag_gradients(model, x, y)
    direction = {"layers.0.W_h": normal(generator, 4, 3)}
    # groups of one lag at a time must give the same as all lags at once
    for group_bytes in (2**28, 1):
        monkeypatch.setattr(module, "GROUP_BYTES", group_bytes)
        norms = lag_gradients(model, x, y, reduce="norm", chunk=2)
        along = lag_gradients(model, x, y, direction=direction)
        for name, grad in whole.grads.items():
            torch.testing.assert_close(norms.grads[name], grad.flatten(1).norm(dim=1), **EXACT)
        expected = (whole.grads["layers.0.W_h"] * direction["layers.0.W_h"]).sum((1, 2))
        torch.testing.assert_close(along.grads["layers.0.W_h"], expected, **EXACT)
        assert (along.grads["layers.0.U_h"] == 0).all()
        torch.testing.assert_close(along.total()["layers.0.W_h"], expected.sum(), **EXACT)
    with pytest.raises(InputError, match="norms of lag gradients do not add"):
        norms.total()


def test_a_result_that_would_not_fit_names_the_way_out(generator, monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 1000)
    model = small_model("lstm", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    with pytest.raises(TooLargeError, match='reduce="norm"'):
        lag_gradients(model, x, y)
    assert lag_gradients(model, x, y, reduce="norm").grads["layers.0.W_g"].shape == (6,)


def test_one_gibibyte_is_the_limit():
    model = GatedRNN("lstm", 64, 512, 8)
    x, y = torch.zeros(1, 300, 64), torch.zeros(1, 300, 8)
    with pytest.raises(TooLargeError, match="1 GiB"):
        lag_gradients(model, x, y)


def test_a_printed_result_is_worth_reading(generator):
    model = small_model("lstm", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    assert "lag gradients (exact)" in str(lag_gradients(model, x, y, lags=[0, 3]))
    assert "log10 f(l)" in str(effective_rates(model, x, lags=[1, 2]))
    assert "log10 exact" in str(fidelity(model, x, y, lags=[1, 2]))


BAD = {
    "width": (lambda x, y: (x[..., :2], y, {}), "\\(seq, time, 3\\)"),
    "two axes": (lambda x, y: (x[0], y.transpose(0, 1), {}), "one series, not sequences"),
    "empty batch": (lambda x, y: (x[:0], y[:0], {}), "nothing to run on"),
    "no steps": (lambda x, y: (x[:, :0], y[:, :0], {}), "nothing to run on"),
    "lag too long": (lambda x, y: (x, y, {"lags": [6]}), "lag 6 for T = 6"),
    "negative lag": (lambda x, y: (x, y, {"lags": [-1]}), "lag -1"),
    "no lags": (lambda x, y: (x, y, {"lags": []}), "no lags"),
    "fractional lag": (lambda x, y: (x, y, {"lags": [1.5]}), "integers"),
    "sequences differ": (lambda x, y: (x, y[:1], {}), "different numbers of sequences"),
    "target width": (lambda x, y: (x, y[..., :1], {}), "do not fit the outputs"),
    "target times": (lambda x, y: (x, y[:, :3], {}), "which steps"),
    "steps": (lambda x, y: (x, y[:, :3], {"steps": [0, 1, 9]}), "one time index per target"),
    "steps last": (lambda x, y: (x, y, {"steps": "last"}), "one target per sequence"),
    "steps word": (lambda x, y: (x, y, {"steps": "first"}), "which steps"),
    "loss": (lambda x, y: (x, y, {"loss": "mae"}), "unknown loss"),
    "float classes": (lambda x, y: (x, y[..., 0], {"loss": "cross_entropy"}), "integer class"),
    "class range": (lambda x, y: (x, torch.full((2, 6), 7), {"loss": "cross_entropy"}), "out of range"),
    "scalar loss": (lambda x, y: (x, y, {"loss": lambda o, y, m: (o - y).square().mean()}), "one value per sequence"),
    "coupled": (
        lambda x, y: (x, y, {"loss": lambda o, y, m: (o - y - o.mean()).square().mean((1, 2))}),
        "depends on the other sequences",
    ),
    "mask": (lambda x, y: (x, y, {"mask": torch.ones(2, 5)}), "mask must weight"),
    "empty mask": (lambda x, y: (x, y, {"mask": torch.zeros(2, 6, dtype=torch.bool)}), "no step that counts"),
    "lengths": (lambda x, y: (x, y, {"lengths": [6, 9]}), "1..6"),
    "transport": (lambda x, y: (x, y, {"transport": "second"}), "unknown transport"),
    "reduce": (lambda x, y: (x, y, {"reduce": "mean"}), "unknown reduction"),
    "direction": (lambda x, y: (x, y, {"direction": {"W": torch.ones(2)}}), "does not fit the weight"),
    "chunk": (lambda x, y: (x, y, {"chunk": 0}), "positive number"),
}


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(case, generator):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    change, complaint = BAD[case]
    x, y, options = change(x, y)
    with pytest.raises(LagreachError, match=complaint):
        lag_gradients(model, x, y, **options)


def test_nan_is_named_with_its_place(generator):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    bad = x.clone()
    bad[1, 4, 2] = float("nan")
    with pytest.raises(InputError, match=r"the input x .*(\n.*)*nan at index \[1, 4, 2\]"):
        lag_gradients(model, bad, y)
    bad = y.clone()
    bad[0, 3, 1] = float("inf")
    with pytest.raises(InputError, match=r"the target y .*(\n.*)*inf at index \[0, 3, 1\]"):
        lag_gradients(model, x, bad)
    with torch.no_grad():
        model.layers[0]["U_s"][2, 1] = float("nan")
    for call in (lambda: lag_gradients(model, x, y), lambda: effective_rates(model, x, lags=[1])):
        with pytest.raises(InputError, match=r"weight layers.0.U_s .*(\n.*)*nan at index \[2, 1\]"):
            call()


def test_other_models_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="Linear"):
        lag_gradients(torch.nn.Linear(3, 2), torch.zeros(1, 2, 3), torch.zeros(1, 2, 2))


def test_unknown_forms(generator):
    model, x = small_model("diag_gate", generator), normal(generator, 1, 5, 3)
    with pytest.raises(InputError, match="unknown form"):
        effective_rates(model, x, lags=[1], form="printed")
    with pytest.raises(UnsupportedError, match="equation \\(13\\)"):
        effective_rates(model, x, lags=[1], form="paper-eq13")


def test_the_model_is_left_as_it_was(generator):
    model = small_model("lstm", generator)
    x, y = normal(generator, 2, 6, 3), normal(generator, 2, 6, 2)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    lag_gradients(model, x, y)
    fidelity(model, x, y, lags=[1])
    for n, p in model.named_parameters():
        assert p.grad is None
        assert p.requires_grad
        assert torch.equal(p, before[n])
    assert not x.requires_grad


class Keeping(torch.nn.Module):
    """A model that starts where the last call ended."""

    def __init__(self):
        super().__init__()
        self.layer, self.read, self.state = torch.nn.GRU(2, 4, batch_first=True), torch.nn.Linear(4, 1), None

    def forward(self, x):
        output, state = self.layer(x, self.state)
        self.state = state.detach()
        return self.read(output)


def test_a_model_that_keeps_its_state_starts_afresh_or_as_told(generator):
    """It was told to pass call=, which these functions did not take."""
    x, y = torch.randn(4, 6, 2, generator=generator), torch.randn(4, 6, 1, generator=generator)
    model = Keeping()
    fresh = lag_gradients(model, x, y)
    assert "the model keeps a state between calls, in model.state" in fresh.warnings[0]
    rates, gains = effective_rates(model, x, [0, 2]), fidelity(model, x, y, [0, 2])
    model(x)  # now it holds a state, and whose it is nobody knows

    def call(model, batch):
        model.state = None
        return model(batch.x)

    with pytest.raises(InputError, match=r"if model\.state is a state left by an earlier call, pass call="):
        lag_gradients(model, x, y)
    assert_same(lag_gradients(model, x, y, call=call), fresh)
    assert torch.equal(effective_rates(model, x, [0, 2], call=call).envelope, rates.envelope)
    assert torch.equal(fidelity(model, x, y, [0, 2], call=call).log10_exact, gains.log10_exact)
