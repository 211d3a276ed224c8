"""Mamba: mambapy, transformers, and a stand-in with the weights of mamba-ssm."""

import importlib
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import silu, softplus
from torch.testing import assert_close

import lagreach
from lagreach.adapters import find_views
from lagreach.adapters.scan_view import many_operations, replay
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import (
    SEQ,
    TIME,
    WIDTH,
    Wrapped,
    lag_totals,
    mse,
    numbers,
    own_gradients,
    randomise,
    scan_view,
    tokens,
)

STATE = 3


def mambapy_block(**options):
    mamba = pytest.importorskip("mambapy.mamba")
    return mamba.MambaBlock(mamba.MambaConfig(d_model=WIDTH, n_layers=1, d_state=STATE, **options))


def hf_mixer(**options):
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = modeling.MambaConfig(
        hidden_size=WIDTH, state_size=STATE, num_hidden_layers=1, vocab_size=11, use_mambapy=True, **options
    )
    return modeling.MambaMixer(config, layer_idx=0)


class Mamba(nn.Module):
    """The attributes and the arithmetic of `mamba_ssm.Mamba`, step by step."""

    def __init__(self, d_model=WIDTH, d_state=STATE, d_conv=4, bias=False):
        super().__init__()
        self.d_inner, self.d_state, self.dt_rank, self.d_conv = 2 * d_model, d_state, 2, d_conv
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.activation, self.act = "silu", nn.SiLU()
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, d_state + 1).repeat(self.d_inner, 1)))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias)

    def forward(self, hidden_states, inference_params=None):
        x, z = self.in_proj(hidden_states).chunk(2, dim=-1)
        x = silu(self.conv1d(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        dt, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = softplus(self.dt_proj(dt))
        state, out = x.new_zeros(len(x), self.d_inner, self.d_state), []
        for t in range(x.shape[1]):
            state = torch.exp(dt[:, t, :, None] * -torch.exp(self.A_log)) * state
            state = state + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1) + self.D * x[:, t])
        return self.out_proj(torch.stack(out, 1) * silu(z))


BLOCKS = {
    "mambapy": mambapy_block,
    "mambapy with biases": lambda: mambapy_block(bias=True),
    "transformers": hf_mixer,
    "transformers with biases": lambda: hf_mixer(use_bias=True),
    "mamba-ssm": Mamba,
    "mamba-ssm with biases": lambda: Mamba(bias=True),
}


@pytest.fixture(params=BLOCKS, name="model")
def _model(request, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)  # the layers would fall back to single precision
    return randomise(Wrapped(BLOCKS[request.param]()).double())


def test_conformance(model):
    (report,) = check_adapter(model, numbers(SEQ, TIME, 2))
    assert report.cell == "Mamba"


def test_decays_are_those_that_a_hook_sees(model):
    x, seen = numbers(SEQ, TIME, 2), []
    handle = model.layer.x_proj.register_forward_hook(lambda module, args, out: seen.append(out))
    model(x)
    handle.remove()
    low = seen[0][..., : model.layer.dt_proj.weight.shape[1]]
    dt = softplus(low @ model.layer.dt_proj.weight.T + model.layer.dt_proj.bias)
    expected = torch.exp(dt[..., None] * -torch.exp(model.layer.A_log))
    (layer,) = lagreach.retention(model, x).layers
    assert (layer.axes, layer.name) == (("channel", "state"), "layer")
    assert_close(layer.log_decay.exp(), expected.detach())
    assert_close(layer.half_lives, -math.log(2) / layer.log_decay.mean((0, 1)))


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    """For what acts through the scan alone: dt, A, and the rows of the projection that make dt and B."""
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    for name in ("dt_proj.weight", "dt_proj.bias", "A_log"):
        assert expected[f"layer.{name}"].abs().max() > 1e-6
        assert_close(totals[f"layer.{name}"], expected[f"layer.{name}"], rtol=1e-9, atol=1e-14)
    rows = model.layer.dt_proj.weight.shape[1] + STATE
    name = "layer.x_proj.weight"
    assert_close(totals[name][:rows], expected[name][:rows], rtol=1e-9, atol=1e-14)
    assert totals[name][rows:].abs().max() == 0  # C reads the states: it is no part of the scan


@pytest.mark.parametrize("kind", ["mambapy", "transformers"])
def test_all_weights_with_the_path_beside_the_scan_taken_off(kind, monkeypatch):
    """Cutting the scan's result off leaves the instantaneous paths; the rest of the gradient went through the scan."""
    mambapy = pytest.importorskip("mambapy.pscan")
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)
    model = randomise(Wrapped(BLOCKS[kind]()).double())
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, whole = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    scan = mambapy.pscan
    for place in ("mambapy.pscan", "mambapy.mamba"):
        monkeypatch.setattr(importlib.import_module(place), "pscan", lambda a, b: scan(a, b).detach())
    beside = own_gradients(model, mse(model, x, y))
    for name, total in totals.items():
        assert total.abs().max() > 1e-6
        assert_close(total, whole[name] - beside[name], rtol=1e-8, atol=1e-14)


@pytest.mark.thorough
def test_language_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=11, hidden_size=8, state_size=4, num_hidden_layers=2)
    model = transformers.MambaForCausalLM(config)
    reports = check_adapter(model, tokens(2, TIME))
    assert len(reports) == 2
    diagnosis = lagreach.diagnose(
        model, (tokens(16, TIME), tokens(16, TIME, seed=1)), "cross_entropy", lags=[0, 1, 4], lags_of="layers"
    )
    assert [layer.name for layer in diagnosis.layers] == ["backbone.layers.0.mixer", "backbone.layers.1.mixer"]
    assert all(layer.local for layer in diagnosis.layers)


def test_layers_that_loop_over_time_are_replayed_beside_the_one_in_question():
    """What the model computes of a layer's states stays, and so does its gradient; the loop itself is known by its graph."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=7, hidden_size=8, num_hidden_layers=3, state_size=3, pad_token_id=None)
    model = transformers.MambaForCausalLM(config)
    words = torch.randint(0, 7, (2, 12))
    batch = Batch(words, words)
    views = find_views(model, batch)
    middle, layers = views[1], [view.layer for view in views]
    replays = []
    for beside in ([], layers):
        middle.replay_beside(beside)
        bound = middle.bind(batch)
        states = torch.zeros(2, 12, middle.template.stack.state_size).requires_grad_()
        output = bound.recurrence.head(states, {})
        replays.append((bound.x, output, torch.autograd.grad(output.square().sum(), states)[0]))
    for plain, replayed in zip(*replays, strict=True):
        assert_close(replayed, plain, rtol=1e-4, atol=1e-5)
    args, kwargs, _ = middle._called(batch)
    assert many_operations(layers[1].module(*args, **kwargs), most=2 * 12)
    assert not many_operations(replay(layers[1], *args, **kwargs), most=10 * 12)


def test_padding_on_the_left_counts_for_nothing():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=11, hidden_size=8, state_size=4, num_hidden_layers=1)
    model = randomise(transformers.MambaForCausalLM(config), 0.1)
    ids, mask = tokens(2, TIME), torch.ones(2, TIME, dtype=torch.long)
    mask[1, :4] = 0

    def call(model, batch):
        return model(batch.x, attention_mask=mask[: len(batch)], use_cache=False).logits

    (padded,) = lagreach.retention(model, ids, call=call).layers
    assert padded.valid.tolist() == (mask == 1).tolist()
    (alone,) = lagreach.retention(model, ids[1:, 4:]).layers
    assert_close(padded.log_decay[1:, 4:], alone.log_decay, rtol=1e-4, atol=1e-5)
    assert_close(padded.half_lives, -math.log(2) / padded.log_decay.double()[padded.valid].mean(0))


def test_padding_on_the_right_by_lengths():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=11, hidden_size=8, state_size=4, num_hidden_layers=1)
    (layer,) = lagreach.retention(
        transformers.MambaForCausalLM(config), tokens(2, TIME), lengths=torch.tensor([9, 4])
    ).layers
    assert layer.valid.sum(1).tolist() == [9, 4]
    assert layer.log10_gain([0, 3, 5]).isfinite().all()


def test_norms_inside_the_mixer_are_refused():
    with pytest.raises(UnsupportedError, match="norms inside"):
        scan_view(Wrapped(mambapy_block(inner_layernorms=True)), numbers(2, TIME, 2, dtype=torch.float32))


def test_another_forward_is_noticed():
    class Doubled(Mamba):
        def forward(self, hidden_states, inference_params=None):
            return 2 * super().forward(hidden_states)

    with pytest.raises(InputError, match="does not compute"):
        scan_view(Wrapped(Doubled()), numbers(2, TIME, 2, dtype=torch.float32))


def test_biases_for_wanted_half_lives():
    block = Mamba()
    nn.init.zeros_(block.conv1d.bias)
    wanted = torch.linspace(2, 90, block.d_inner)
    values = scan_view(Wrapped(block), numbers(2, 4, 2, dtype=torch.float32)).layer.retaining(wanted)
    with torch.no_grad():
        block.dt_proj.bias.copy_(values["dt_proj.bias"])
    (layer,) = lagreach.retention(block, torch.zeros(1, 4, WIDTH)).layers
    assert_close(layer.half_lives.amax(1), wanted.double(), rtol=1e-4, atol=1e-4)
