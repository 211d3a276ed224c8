"""Mamba-2: transformers, and a stand-in with the weights of mamba-ssm that knows documents."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad, silu, softplus
from torch.testing import assert_close

import lagreach
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

HEADS, CHANNELS, STATE, GROUPS = 4, 3, 5, 2
INNER = HEADS * CHANNELS


def hf_mixer(**options):
    modeling = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    sizes = {"num_heads": HEADS, "head_dim": CHANNELS, "state_size": STATE, "n_groups": GROUPS, "chunk_size": 4}
    config = modeling.Mamba2Config(hidden_size=WIDTH, num_hidden_layers=1, vocab_size=11, **sizes, **options)
    return modeling.Mamba2Mixer(config, layer_idx=0)


class Norm(nn.Module):
    """The attributes of the fused norm of mamba-ssm; only its weights are ever read."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(INNER)), 1e-5
        self.norm_before_gate, self.group_size = False, INNER // GROUPS

    def __call__(self, y, gate):
        grouped = (y * silu(gate)).unflatten(-1, (-1, self.group_size))
        return (grouped / (grouped.square().mean(-1, keepdim=True) + self.eps).sqrt()).flatten(-2) * self.weight


class Mamba2(nn.Module):
    """The attributes and the arithmetic of `mamba_ssm.Mamba2`, step by step, with documents numbered by `seq_idx`."""

    def __init__(self, bias=False):
        super().__init__()
        self.ngroups, self.d_state, self.dt_limit = GROUPS, STATE, (0.0, float("inf"))
        mixed = INNER + 2 * GROUPS * STATE
        self.in_proj = nn.Linear(WIDTH, INNER + mixed + HEADS, bias=bias)
        self.conv1d = nn.Conv1d(mixed, mixed, 4, groups=mixed, padding=3)
        self.act = nn.SiLU()
        self.dt_bias = nn.Parameter(torch.zeros(HEADS))
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, HEADS + 1)))
        self.D = nn.Parameter(torch.ones(HEADS))
        self.norm = Norm()
        self.out_proj = nn.Linear(INNER, WIDTH, bias=bias)

    def forward(self, u, seqlen=None, seq_idx=None):
        z, mixed, dt = self.in_proj(u).split([INNER, INNER + 2 * GROUPS * STATE, HEADS], dim=-1)
        number = torch.zeros(u.shape[:2], dtype=torch.long) if seq_idx is None else seq_idx
        convolved = self.conv1d.bias.expand_as(mixed)
        for k in range(4):
            before, owner = pad(mixed, (0, 0, k, 0))[:, : u.shape[1]], pad(number, (k, 0), value=-1)[:, : u.shape[1]]
            convolved = convolved + before * (owner == number)[..., None] * self.conv1d.weight[:, 0, 3 - k]
        x, b, c = silu(convolved).split([INNER, GROUPS * STATE, GROUPS * STATE], dim=-1)
        x = x.unflatten(-1, (HEADS, CHANNELS))
        b, c = (v.unflatten(-1, (GROUPS, STATE)).repeat_interleave(HEADS // GROUPS, dim=2) for v in (b, c))
        dt = softplus(dt + self.dt_bias)
        state, out = u.new_zeros(len(u), HEADS, CHANNELS, STATE), []
        for t in range(u.shape[1]):
            same = torch.ones(len(u), dtype=torch.bool) if t == 0 else number[:, t] == number[:, t - 1]
            decay = torch.exp(-dt[:, t] * torch.exp(self.A_log)) * same[:, None]
            state = decay[..., None, None] * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            out.append((state * c[:, t, :, None]).sum(-1) + self.D[:, None] * x[:, t])
        return self.out_proj(self.norm(torch.stack(out, 1).flatten(2), z))


DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0] * 9, [0, 1, 1, 2, 2, 2, 2, 2, 2]])


BLOCKS = {
    "transformers": hf_mixer,
    "transformers with biases": lambda: hf_mixer(use_bias=True),
    "transformers with a limit": lambda: hf_mixer(time_step_limit=(0.2, 0.6)),
    "mamba-ssm": Mamba2,
    "mamba-ssm with biases": lambda: Mamba2(bias=True),
}


@pytest.fixture(params=BLOCKS, name="model")
def _model(request, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)  # the layers would fall back to single precision
    return randomise(Wrapped(BLOCKS[request.param]()).double())


def test_conformance(model):
    (report,) = check_adapter(model, numbers(SEQ, TIME, 2))
    assert report.cell == "Mamba-2"


def test_decays_are_those_that_a_hook_sees(model):
    x, seen = numbers(SEQ, TIME, 2), []
    handle = model.layer.in_proj.register_forward_hook(lambda module, args, out: seen.append(out))
    model(x)
    handle.remove()
    limit = getattr(model.layer, "time_step_limit", (0.0, float("inf")))
    dt = softplus(seen[0][..., -HEADS:] + model.layer.dt_bias).clamp(*limit)
    (layer,) = lagreach.retention(model, x).layers
    assert layer.axes == ("head",)
    assert_close(layer.log_decay, (-torch.exp(model.layer.A_log) * dt).detach())


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    """For what acts through the scan alone: dt, A, and the rows of the projection that make dt and B."""
    x, y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)
    totals, expected = lag_totals(model, x, y), own_gradients(model, mse(model, x, y))
    close = {"rtol": 1e-4, "atol": 1e-7}  # the norm behind the scan computes in single precision
    for name in ("dt_bias", "A_log"):
        assert expected[f"layer.{name}"].abs().max() > 1e-5
        assert_close(totals[f"layer.{name}"], expected[f"layer.{name}"], **close)
    name, reading = "layer.in_proj.weight", slice(2 * INNER, 2 * INNER + GROUPS * STATE)
    assert_close(totals[name][reading], expected[name][reading], **close)
    assert_close(totals[name][-HEADS:], expected[name][-HEADS:], **close)


@pytest.mark.parametrize("bias", [False, True])
def test_documents_in_one_sequence(bias):
    """A layer that is told where documents begin forgets there, and its convolution does not look across."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Mamba2(bias)

        def forward(self, x):
            return self.layer(x, seq_idx=DOCUMENTS[: len(x)])

    model = randomise(Model().double())
    x = numbers(SEQ, TIME, WIDTH)
    check_adapter(model, x)
    (layer,) = lagreach.retention(model, x).layers
    starts = torch.zeros(SEQ, TIME, dtype=torch.bool)
    starts[0, 4] = starts[2, 1] = starts[2, 3] = True
    assert layer.reset.tolist() == starts.tolist()
    assert torch.equal(torch.isneginf(layer.log_decay).all(-1), starts)
    assert layer.half_lives.min() > 0
    (alone,) = lagreach.retention(model.layer, x[:1, 4:]).layers
    assert_close(layer.log_decay[:1, 5:], alone.log_decay[:, 1:])


@pytest.mark.thorough
def test_language_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"num_heads": 4, "head_dim": 4, "state_size": 4, "n_groups": 2, "chunk_size": 4}
    config = transformers.Mamba2Config(vocab_size=11, hidden_size=8, num_hidden_layers=2, **sizes)
    model = transformers.Mamba2ForCausalLM(config)
    assert len(check_adapter(model, tokens(2, TIME))) == 2
    diagnosis = lagreach.diagnose(
        model, (tokens(16, TIME), tokens(16, TIME, seed=1)), "cross_entropy", lags=[0, 1, 4], lags_of="layers"
    )
    assert len(diagnosis.layers) == 2


def test_biases_for_wanted_half_lives():
    block = Mamba2()
    wanted = torch.tensor([2.0, 5.0, 20.0, 80.0])
    values = scan_view(block, numbers(2, 4, WIDTH, dtype=torch.float32)).layer.retaining(wanted)
    with torch.no_grad():
        block.dt_bias.copy_(values["dt_bias"])
    (layer,) = lagreach.retention(block, torch.zeros(1, 4, WIDTH)).layers
    assert_close(layer.half_lives, wanted.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2, "mamba_proj_bias": True},
    ],
)
def test_falcon_h1_with_its_multipliers_and_optional_norm(options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH * 2, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 11, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "mamba_n_heads": HEADS, "mamba_d_head": CHANNELS}
    mamba = {"mamba_d_ssm": INNER, "mamba_d_state": STATE, "mamba_chunk_size": 4, "mamba_n_groups": 1} | options
    multipliers = {"ssm_multipliers": [0.5, 2.0, 0.7, 1.3, 0.9], "ssm_in_multiplier": 0.6, "ssm_out_multiplier": 0.3}
    config = transformers.FalconH1Config(**sizes, **heads, **mamba, **multipliers)
    torch.manual_seed(0)
    model = transformers.FalconH1ForCausalLM(config).eval()
    (report,) = check_adapter(model, tokens(SEQ, TIME))
    assert report.passed[0] == "replay"


def test_a_norm_that_is_not_known_is_refused_by_name():
    model = Wrapped(Mamba2())
    model.layer.norm = nn.LayerNorm(INNER)
    del model.layer.norm.eps
    model.layer.forward = lambda u: u
    with pytest.raises(lagreach.errors.UnsupportedError, match="normalises in a way that lagreach does not know"):
        scan_view(model, numbers(SEQ, TIME, 2, dtype=torch.float32))
