"""RG-LRU: the recurrent blocks of RecurrentGemma."""

from functools import cache

import pytest
import torch
from torch.testing import assert_close

import lagreach
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import (
    SEQ,
    TIME,
    Wrapped,
    lag_totals,
    mse,
    numbers,
    own_gradients,
    randomise,
    scan_view,
    tokens,
)

WIDTH = 8
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8, 9, 0, 0]])


@cache
def modeling():
    return pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")


def config(layers=1):
    return modeling().RecurrentGemmaConfig(
        vocab_size=11,
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        lru_width=WIDTH,
        attention_window_size=4,
        pad_token_id=0,
    )


class InDocuments(Wrapped):
    """A block that is told where documents begin."""

    def forward(self, x):
        options = {"position_ids": POSITIONS[: len(x)], "attention_mask": None, "use_cache": False}
        return self.read(self.layer(self.front(x), **options)[0])


@pytest.fixture(name="model")
def _model(monkeypatch):
    monkeypatch.setattr(modeling().RecurrentGemmaRglru._rnn_scan, "__defaults__", (torch.float64,))
    torch.manual_seed(0)
    block = modeling().RecurrentGemmaForCausalLM(config()).model.layers[0].temporal_block
    return randomise(InDocuments(block, WIDTH).double(), 0.5)


def test_conformance(model):
    (report,) = check_adapter(model, numbers(SEQ, TIME, 2))
    assert report.cell == "RG-LRU (RecurrentGemma)"


def test_decays_are_those_given_to_the_scan(model, monkeypatch):
    seen, scan = [], modeling().RecurrentGemmaRglru._rnn_scan

    def recorded(self, **options):
        seen.append(options["recurrent_gate"] * ~options["reset"])
        return scan(self, **options)

    monkeypatch.setattr(modeling().RecurrentGemmaRglru, "_rnn_scan", recorded)
    x = numbers(SEQ, TIME, 2)
    model(x)
    (layer,) = lagreach.retention(model, x).layers
    assert layer.axes == ("channel",)
    assert_close(layer.log_decay.exp(), seen[0].detach())
    assert torch.equal(layer.reset, POSITIONS == 0)
    assert layer.half_lives.min() > 0  # the beginnings of documents do not count


def test_nothing_is_carried_across_documents(model):
    (layer,) = lagreach.retention(model, numbers(SEQ, TIME, 2)).layers
    gains = layer.log10_gain([1, 6, 8])
    assert gains[:2].isfinite().all()
    assert gains[2].isfinite().all()  # the first sequence is one document


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    assert len(totals) == 9
    for name, total in totals.items():
        assert total.abs().max() > 1e-6
        assert_close(total, expected[name], rtol=1e-9, atol=1e-14)


def test_the_bounded_derivative_of_the_root():
    """Next to a decay of one the layer cuts the slope of its square root; so does the replay."""
    from lagreach.adapters.layers.rg_lru import _bounded_root

    ours = torch.tensor([1e-9, 1e-3, 0.5], dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    for values, root in ((ours, _bounded_root(ours)), (theirs, modeling().SqrtBoundDerivative.apply(theirs))):
        root.sum().backward()
        assert_close(root.detach(), values.detach().sqrt())
    assert_close(ours.grad, theirs.grad)


@pytest.mark.thorough
def test_language_model_with_attention_between():
    torch.manual_seed(0)
    model = modeling().RecurrentGemmaForCausalLM(config(layers=3))
    assert len(check_adapter(model, tokens(2, TIME))) == 2  # the third block is attention
    diagnosis = lagreach.diagnose(
        model, (tokens(16, TIME), tokens(16, TIME, seed=1)), "cross_entropy", lags=[0, 1, 4], lags_of="layers"
    )
    assert [layer.name for layer in diagnosis.layers] == [f"model.layers.{k}.temporal_block" for k in range(2)]
    assert all(block.temporal_block.rg_lru.recurrent_states is None for block in model.model.layers[:2])


def test_parameters_for_wanted_half_lives(model):
    layer = scan_view(model, numbers(SEQ, TIME, 2)).layer
    wanted = torch.logspace(0, 2, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for name, value in layer.retaining(wanted).items():
            model.layer.get_parameter(name).copy_(value)
        for weight in (model.layer.linear_x, model.layer.conv_1d):
            weight.bias.zero_()
        model.front.bias.zero_()
    (layer_retention,) = lagreach.retention(model, torch.zeros(1, TIME, 2, dtype=torch.float64)).layers
    assert_close(layer_retention.half_lives, wanted)
