"""GLA, HGRN and HGRN2, by stand-ins with the weights of flash-linear-attention, whose own kernels need a GPU."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, logsigmoid, silu
from torch.testing import assert_close

import lagreach
from lagreach.errors import UnsupportedError
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import SEQ, TIME, Wrapped, lag_totals, mse, numbers, own_gradients, randomise, scan_view

WIDTH, HEADS, KEY, VALUE = 8, 2, 3, 4


class Norm(nn.Module):
    """A root mean square norm with the attributes of the fused one."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-5

    def forward(self, x, gate=None):
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight
        return x if gate is None else x * silu(gate)


def delivered(log_decay, key, value, query, starts=()):
    """``S' = diag(a) S + k v^T``, ``o = q S``, step by step."""
    state, out = key.new_zeros(*key[:, 0].shape, value.shape[-1]), []
    for t in range(key.shape[1]):
        state = torch.zeros_like(state) if t in starts else torch.exp(log_decay[:, t])[..., None] * state
        state = state + key[:, t, ..., None] * value[:, t, ..., None, :]
        out.append((query[:, t, ..., None] * state).sum(-2))
    return torch.stack(out, 1)


class GLA(nn.Module):
    """`fla.layers.GatedLinearAttention`."""

    def __init__(self, fused=True, clamp_min=None):
        super().__init__()
        self.num_heads, self.num_kv_groups, self.use_short_conv, self.feature_map_fn = HEADS, 1, False, None
        self.clamp_min, self.gate_logit_normalizer, self.use_output_gate, self.fuse_norm_and_gate = (
            clamp_min,
            4,
            True,
            fused,
        )
        wide, deep = HEADS * VALUE, HEADS * KEY
        self.q_proj, self.k_proj = nn.Linear(WIDTH, deep, bias=False), nn.Linear(WIDTH, deep, bias=False)
        self.v_proj, self.g_proj = nn.Linear(WIDTH, wide, bias=False), nn.Linear(WIDTH, wide, bias=False)
        self.gk_proj = nn.Sequential(nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, deep))
        self.o_proj = nn.Linear(wide, WIDTH, bias=False)
        setattr(self, "g_norm_swish_gate" if fused else "g_norm", Norm(VALUE))
        self.gate_fn = torch.sigmoid

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, cu_seqlens=None):
        q, k, v = (p(hidden_states).unflatten(-1, (HEADS, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        gate = (logsigmoid(self.gk_proj(hidden_states)) / self.gate_logit_normalizer).unflatten(-1, (HEADS, -1))
        if self.clamp_min is not None:
            gate = gate.clamp(min=self.clamp_min)
        if attention_mask is not None:  # padded steps are taken out: nothing happens there
            used = attention_mask[..., None, None] != 0
            gate, k = torch.where(used, gate, 0.0), torch.where(used, k, 0.0)
        o = delivered(gate, k, v, q * KEY**-0.5, () if cu_seqlens is None else cu_seqlens.tolist())
        g = self.g_proj(hidden_states)
        if self.fuse_norm_and_gate:
            o = self.g_norm_swish_gate(o, g.unflatten(-1, (HEADS, -1))).flatten(-2)
        else:
            o = self.g_norm(o).flatten(-2) * self.gate_fn(g)
        return self.o_proj(o), None, past_key_values


class HGRN(nn.Module):
    """`fla.layers.HGRNAttention`."""

    def __init__(self, layer_idx=0):
        super().__init__()
        self.use_short_conv, self.layer_idx = False, layer_idx
        self.i_proj, self.f_proj, self.g_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.g_norm, self.o_proj = Norm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, lower_bound=None):
        f = torch.sigmoid(self.f_proj(hidden_states))
        if lower_bound is not None and self.layer_idx > 0:
            f = lower_bound + (1 - lower_bound) * f
        i = silu(self.i_proj(hidden_states)) * (1 - f)
        o = delivered(f.log()[..., None], torch.ones_like(f)[..., None], i[..., None], torch.ones_like(f)[..., None])[
            ..., 0
        ]
        return self.o_proj(self.g_norm(o, self.g_proj(hidden_states))), None, past_key_values


class HGRN2(HGRN):
    """`fla.layers.HGRN2Attention`."""

    def __init__(self, layer_idx=0):
        super().__init__(layer_idx)
        self.num_heads = HEADS
        self.q_proj, self.f_proj = (nn.Linear(WIDTH, HEADS * KEY, bias=False) for _ in range(2))
        del self.g_proj

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, lower_bound=None):
        f = torch.sigmoid(self.f_proj(hidden_states))
        if lower_bound is not None and self.layer_idx > 0:
            f = lower_bound + (1 - lower_bound) * f
        q, f, i = (
            u.unflatten(-1, (HEADS, -1)) for u in (silu(self.q_proj(hidden_states)), f, self.i_proj(hidden_states))
        )
        o = delivered(f.log(), 1 - f, i, q * KEY**-0.5).flatten(-2)
        return self.o_proj(self.g_norm(o)), None, past_key_values


BOUND = torch.linspace(0.2, 0.8, WIDTH, dtype=torch.float64)
MODELS = {
    "GLA": lambda: Wrapped(GLA(), WIDTH),
    "GLA, norm apart": lambda: Wrapped(GLA(fused=False), WIDTH),
    "GLA, clamped": lambda: Wrapped(GLA(clamp_min=-0.15), WIDTH),
    "HGRN": lambda: Wrapped(HGRN(), WIDTH),
    "HGRN, first layer": lambda: Wrapped(HGRN(), WIDTH, lower_bound=BOUND),
    "HGRN, bounded": lambda: Wrapped(HGRN(layer_idx=1), WIDTH, lower_bound=BOUND),
    "HGRN2": lambda: Wrapped(HGRN2(), WIDTH),
    "HGRN2, bounded": lambda: Wrapped(HGRN2(layer_idx=1), WIDTH, lower_bound=BOUND[: HEADS * KEY]),
}
X, Y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)


@pytest.fixture(params=MODELS, name="model")
def _model(request):
    torch.manual_seed(0)
    return randomise(MODELS[request.param]().double())


def test_conformance(model):
    (report,) = check_adapter(model, X)
    assert report.cell in ("GLA", "HGRN, HGRN2")


def test_lag_gradients_add_up_to_the_model_s_own_gradient(model):
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    for name, total in totals.items():
        assert total.abs().max() > 1e-6
        assert_close(total, expected[name], rtol=1e-8, atol=1e-13)


def test_decays_of_gla():
    model = MODELS["GLA"]().double()
    (layer,) = lagreach.retention(model, X).layers
    assert layer.axes == ("head", "key")
    gate = model.layer.gk_proj(model.front(X)).detach()
    assert_close(layer.log_decay.exp(), (torch.sigmoid(gate) ** (1 / 4)).unflatten(-1, (HEADS, KEY)))


def test_the_layers_of_the_package_with_their_reference_operations(monkeypatch):
    """Where flash-linear-attention is installed: its own forward, with plain torch instead of its kernels."""
    layers = pytest.importorskip("fla.layers")
    import fla.layers.gla
    import fla.layers.hgrn
    import fla.layers.hgrn2
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.hgrn.naive import naive_recurrent_hgrn

    def normed(x, weight, eps):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def gla(q, k, v, gk, **_):
        return naive_recurrent_gla(q, k, v, gk)

    monkeypatch.setattr(fla.layers.gla, "fused_recurrent_gla", gla)
    monkeypatch.setattr(fla.layers.hgrn2, "fused_recurrent_gla", gla)
    monkeypatch.setattr(fla.layers.hgrn2, "swish", silu)
    monkeypatch.setattr(fla.layers.hgrn2, "rms_norm_linear", lambda o, w, b, p, c: linear(normed(o, w, 1e-5), p, c))
    for name in ("fused_recurrent_hgrn", "chunk_hgrn"):
        monkeypatch.setattr(fla.layers.hgrn, name, lambda x, g, **_: naive_recurrent_hgrn(x, g))
    monkeypatch.setattr(fla.layers.hgrn, "swiglu", lambda a, b: silu(a) * b)
    fused = fla.layers.hgrn.FusedRMSNormGated
    monkeypatch.setattr(fused, "forward", lambda self, x, g: normed(x, self.weight, self.eps) * silu(g))
    built = [
        (layers.GatedLinearAttention(hidden_size=16, num_heads=2, gate_low_rank_dim=4, clamp_min=-0.03), {}),
        (layers.HGRNAttention(hidden_size=16, layer_idx=1), {"lower_bound": torch.linspace(0.1, 0.9, 16)}),
        (layers.HGRN2Attention(hidden_size=16, num_heads=2, expand_ratio=8), {}),
    ]
    for layer, options in built:
        check_adapter(Wrapped(layer, 16, **options), X.float())


def test_padding_changes_nothing():
    mask = torch.ones(SEQ, TIME, dtype=torch.long)
    mask[1, :3] = 0

    class Masked(Wrapped):
        def forward(self, x):
            return self.read(self.layer(self.front(x), attention_mask=mask[: len(x)])[0])

    model = randomise(Masked(GLA(), WIDTH).double())
    check_adapter(model, X)
    (layer,) = lagreach.retention(model, X).layers
    assert torch.equal(layer.valid, mask == 1)
    assert (layer.log_decay[1, :3] == 0).all()


def test_documents_in_one_sequence():
    model = randomise(Wrapped(GLA(), WIDTH, cu_seqlens=torch.tensor([0, 4, TIME])).double())
    (view_report,) = check_adapter(model, X[:1])
    assert view_report.cell == "GLA"
    (layer,) = lagreach.retention(model, X[:1]).layers
    assert layer.reset.nonzero().tolist() == [[0, 4]]
    assert torch.isneginf(layer.log_decay[0, 4]).all()


def test_short_convolutions_are_refused():
    layer = GLA()
    layer.use_short_conv = True
    with pytest.raises(UnsupportedError, match="use_short_conv"):
        scan_view(Wrapped(layer, WIDTH), X)


def test_biases_for_wanted_half_lives():
    layer, wanted = GLA(), torch.tensor([6.0, 90.0])
    model = Wrapped(layer, WIDTH)
    with torch.no_grad():
        layer.gk_proj[1].bias.copy_(scan_view(model, X.float()).layer.retaining(wanted)["gk_proj.1.bias"])
        layer.gk_proj[1].weight.zero_()
    (layer_retention,) = lagreach.retention(model, X.float()).layers
    assert_close(layer_retention.half_lives, wanted.double()[:, None].expand(-1, KEY), rtol=1e-3, atol=1e-3)
