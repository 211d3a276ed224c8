"""Lags of the whole model against autograd: their sum, and each of them against copies of the weights for every step."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import lagreach
from lagreach.errors import InputError, UnsupportedError
from lagreach.whole_model.lag_gradients import model_lag_gradients
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, TIME, hugging_face, made, numbers, tokens

EXACT = {"rtol": 0, "atol": 1e-10}
OF_NUMBERS = [
    cases.CausalTransformer,
    cases.BidirectionalTransformer,
    cases.PaddedConvolutions,
    cases.LeftPaddedConvolution,
    cases.SameConvolution,
    cases.ProjectedTimeFirst,
    cases.Flat,
    cases.StepByStep,
    cases.TwoReaders,
]


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("cls", OF_NUMBERS)
def test_over_all_outputs_the_lags_add_up_to_the_gradient_of_the_input_weights(cls):
    model = made(cls)
    x, y = numbers()
    gradients = model_lag_gradients(model, x, y, outputs="per step")
    (model(x) - y).square().mean().backward()
    assert gradients.source.ports[0].kind in ("linear", "convolution")
    for name, total in gradients.total().items():
        torch.testing.assert_close(total, model.get_parameter(name).grad, **EXACT)
    torch.testing.assert_close(gradients.loss, (model(x) - y).square().mean().detach(), **EXACT)


@pytest.mark.parametrize("cls", [cases.CausalTransformer, cases.BidirectionalTransformer, cases.TwoReaders])
def test_every_lag_is_that_of_copies_of_the_weights_for_each_step(cls):
    """The slow twin: a weight of its own for every step of the input, and one output's loss at a time."""
    model = made(cls)
    x, y = numbers()
    gradients = model_lag_gradients(model, x, y, outputs="per step")
    readers = [name.removesuffix(".weight") for name in gradients.grads]
    copies = {
        path: [model.get_submodule(path).weight.detach().clone().requires_grad_() for _ in range(TIME)]
        for path in readers
    }

    def by_step(path):
        bias = model.get_submodule(path).bias
        return lambda _, args, __: torch.stack(
            [functional.linear(args[0][:, s], copies[path][s], bias) for s in range(TIME)], dim=1
        )

    handles = [model.get_submodule(path).register_forward_hook(by_step(path)) for path in readers]
    losses = (model(x) - y).square().mean((0, 2)) / TIME
    for handle in handles:
        handle.remove()
    expected = {path: torch.zeros_like(gradients.grads[f"{path}.weight"]) for path in readers}
    ahead = {path: torch.zeros_like(gradients.ahead[f"{path}.weight"]) for path in readers}
    for t in range(TIME):
        weights = [weight for path in readers for weight in copies[path]]
        grads = iter(torch.autograd.grad(losses[t], weights, retain_graph=True, materialize_grads=True))
        for path in readers:
            for s in range(TIME):
                place = expected[path][t - s] if s <= t else ahead[path]
                place += next(grads)
    for path in readers:
        torch.testing.assert_close(gradients.grads[f"{path}.weight"], expected[path], **EXACT)
        torch.testing.assert_close(gradients.ahead[f"{path}.weight"], ahead[path], **EXACT)
    looks_ahead = any(value.abs().max() > 0 for value in ahead.values())
    assert looks_ahead == (cls is cases.BidirectionalTransformer)


@pytest.mark.parametrize("cls", [cases.PaddedConvolutions, cases.LeftPaddedConvolution])
def test_lags_of_a_convolution_are_those_of_its_input_tap_by_tap(cls):
    """Beyond what its layers see there is nothing, and each lag is what an input l steps before changes."""
    model = made(cls)
    x, y = numbers()
    gradients = model_lag_gradients(model, x, y)
    weight = gradients.grads["first.weight"]
    reach = 2 + 2 if cls is cases.PaddedConvolutions else TIME - 1
    assert weight[reach + 1 :].abs().sum() == 0
    # an identity layer in front sees the same lags: its gradient is the weights times that of the convolution
    identity = nn.Sequential(nn.Linear(INPUT, INPUT, bias=False).double(), model)
    with torch.no_grad():
        identity[0].weight.copy_(torch.eye(INPUT))
    in_front = model_lag_gradients(identity, x, y, inputs="0")
    folded = torch.einsum("oik,lojk->lij", model.first.weight, weight)
    torch.testing.assert_close(in_front.grads["0.weight"], folded, **EXACT)


def test_lags_of_a_recurrent_layer_are_those_of_exact_transport():
    model = made(cases.Recurrent)
    x, y = numbers()
    gradients = model_lag_gradients(model, x, y)
    exact = lagreach.lag_gradients(model, x, y).grads["layer.weight_ih_l0"]
    assert gradients.source.name == "the model's input"
    in_front = torch.einsum("gi,lgj->lij", model.layer.weight_ih_l0, exact)  # of an identity layer in front
    torch.testing.assert_close(gradients.grads["input"], in_front, **EXACT)


def test_named_input_modules_and_other_lags():
    model = made(cases.Recurrent)
    x, y = numbers()
    named = model_lag_gradients(model, x, y, inputs="layer", lags=[0, 3])
    every = model_lag_gradients(model, x, y)
    torch.testing.assert_close(named.grads["layer.input"], every.grads["input"][[0, 3]], **EXACT)
    with pytest.raises(InputError, match="do not add up"):
        named.total()


@pytest.mark.parametrize("cls", [cases.Skip, cases.ChannelsApart, cases.Pooled, cases.MovingPicture])
def test_where_something_else_reads_the_input_an_identity_layer_stands_in_front(cls):
    model = made(cls, **({} if cls in (cases.ChannelsApart, cases.MovingPicture) else {"inputs": INPUT}))
    x, y = numbers()
    if cls is cases.ChannelsApart:
        y = y.expand(-1, -1, INPUT)
    if cls is cases.Pooled:
        y = y[:, 0].expand(-1, 2)
    if cls is cases.MovingPicture:
        x, _ = numbers((2, 5, 2 * 4 * 3))
        x, y = x.view(2, 5, 2, 4, 3), x.view(2, 5, 2, 4, 3)[:, :, :1]
    gradients = model_lag_gradients(model, x, y)
    flat = x.flatten(2)
    front = torch.eye(flat.shape[2], dtype=torch.float64, requires_grad=True)
    (model((flat @ front.T).view_as(x)) - y).square().mean().backward()
    (total,) = gradients.total().values()
    if cls is cases.Pooled:
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        torch.testing.assert_close(total, model.read.weight.grad, **EXACT)
    else:
        torch.testing.assert_close(total, front.grad, **EXACT)


def test_masks_lengths_and_the_last_step():
    model = made(cases.CausalTransformer)
    x, y = numbers()
    lengths = torch.tensor([9, 4, 7, 2])
    mask = torch.rand(4, TIME, generator=torch.Generator().manual_seed(3)).double()
    for options in ({"lengths": lengths}, {"mask": mask}, {"lengths": lengths, "mask": mask}):
        gradients = model_lag_gradients(model, x, y, **options)
        weights = torch.arange(TIME) < options.get("lengths", torch.full((4,), TIME))[:, None]
        weights = weights * options.get("mask", torch.ones(4, TIME).double())
        model.zero_grad()
        losses = ((model(x) - y).square().mean(-1) * weights).sum(1) / weights.sum(1)
        losses.mean().backward()
        torch.testing.assert_close(gradients.total()["read.weight"], model.read.weight.grad, **EXACT)
    last = model_lag_gradients(model, x, y[:, -1], lengths=lengths)
    model.zero_grad()
    (model(x)[torch.arange(4), lengths - 1] - y[:, -1]).square().mean().backward()
    torch.testing.assert_close(last.total()["read.weight"], model.read.weight.grad, **EXACT)
    assert last.grads["read.weight"][8].abs().sum() > 0  # of the one sequence with nine steps


def test_an_encoder_and_a_decoder():
    model = made(cases.EncoderDecoder)
    x, _ = numbers()
    generator = torch.Generator().manual_seed(1)
    target, y = (torch.randn(4, 6, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    gradients = model_lag_gradients(model, x, y, others=(target,))
    (model(x, target) - y).square().mean().backward()
    assert gradients.source.name == "source"
    torch.testing.assert_close(gradients.total()["source.weight"], model.source.weight.grad, **EXACT)
    assert (
        gradients.grads["source.weight"].abs().sum((1, 2)).min() > 0
    )  # lags count back from the last step of the source
    decoder = model_lag_gradients(model, x, y, others=(target,), inputs="target")
    torch.testing.assert_close(decoder.total()["target.weight"], model.target.weight.grad, **EXACT)


def test_embeddings_tied_weights_and_padding():
    torch.manual_seed(0)
    model = cases.CausalTransformer(tokens=cases.TOKENS, outputs=cases.TOKENS).double().eval()
    model.read = nn.Embedding(cases.TOKENS, 8, padding_idx=2).double()
    x, y = tokens()
    gradients = model_lag_gradients(model, x, y, "cross_entropy")
    functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    assert (x == 2).any()
    torch.testing.assert_close(gradients.total()["read.weight"], model.read.weight.grad, **EXACT)


def test_tokens_without_an_embedding():
    model = made(cases.OneHot)
    x, y = tokens()
    gradients = model_lag_gradients(model, x, y, "cross_entropy")
    functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    assert "no embedding" in gradients.source.why
    torch.testing.assert_close(gradients.total()["read.weight"], model.read.weight.grad, **EXACT)


# Where tolerances are wider, the library computes norms or scans in float32 whatever the weights are.
FAMILIES = {
    "GPT2LMHeadModel": 1e-10,
    "LlamaForCausalLM": 1e-6,
    "MambaForCausalLM": 1e-6,
    "Mamba2ForCausalLM": 1e-6,
    "FalconMambaForCausalLM": 1e-6,
    "RwkvForCausalLM": 1e-6,
    "RecurrentGemmaForCausalLM": 1e-6,
    "xLSTMForCausalLM": 1e-6,
    "BambaForCausalLM": 1e-6,
    "Qwen3NextForCausalLM": 1e-4,
    "JambaForCausalLM": 1e-4,
    "FalconH1ForCausalLM": 1e-6,
    "MiniMaxForCausalLM": 1e-4,
    "Qwen3_5ForCausalLM": 1e-6,
}
EXPERTS = ("Qwen3NextForCausalLM", "JambaForCausalLM", "MiniMaxForCausalLM")  # torch's experts have no double precision


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_language_models_as_users_import_them(name):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, name):
        pytest.skip(f"this version of transformers has no {name}")
    model = hugging_face(name)
    if name in EXPERTS:
        model = model.float()
    x, y = tokens()
    gradients = model_lag_gradients(model, x, y, "cross_entropy")
    embedding = model.get_input_embeddings()
    (path,) = gradients.grads
    table = embedding.weight.detach().clone().requires_grad_()
    # weights may be tied to the readout: autograd's gradient of the input's use of them alone
    handle = embedding.register_forward_hook(lambda module, args, _: functional.embedding(args[0], table))
    functional.cross_entropy(model(x, use_cache=False).logits.flatten(0, 1), y.flatten()).backward()
    handle.remove()
    total = gradients.total()[path]
    size = table.grad.abs().max()
    torch.testing.assert_close(total / size, table.grad / size, rtol=0, atol=FAMILIES[name])
    assert all(value.abs().max() == 0 for value in gradients.ahead.values())


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = made(cases.CausalTransformer).train()
    model.place.requires_grad_(False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    x, y = numbers()
    model_lag_gradients(model, x, y)
    with pytest.raises(InputError, match="which steps"):
        model_lag_gradients(model, x, y[:, :3])
    with pytest.raises(InputError, match="no such module"):
        model_lag_gradients(model, x, y, inputs="reader")
    assert hooks_of(model) == 0
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.place.requires_grad
    assert all(p.requires_grad and p.grad is None for p in model.parameters() if p is not model.place)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrapped_models_give_the_same(wrap):
    model = made(cases.CausalTransformer)
    x, y = numbers()
    plain = model_lag_gradients(model, x, y).grads["read.weight"]
    wrapped = model_lag_gradients(wrap(model), x, y).grads["read.weight"]
    assert torch.equal(plain, wrapped)


def test_a_model_compiled_in_place_runs_as_it_is_written():
    model = made(cases.Flat)
    x, y = numbers()
    plain = model_lag_gradients(model, x, y).grads["read.weight"]
    model.compile()
    assert torch.equal(model_lag_gradients(model, x, y).grads["read.weight"], plain)


class Detached(cases.Flat):
    def forward(self, x):
        with torch.no_grad():
            hidden = self.read(x)
        return self.readout(hidden.detach())


def test_models_that_let_no_gradient_through_are_refused():
    x, y = numbers()
    with pytest.raises(UnsupportedError, match="no gradient gets from the model's output"):
        model_lag_gradients(made(Detached), x, y)
