"""Models that compute their activations anew on the way back do so here too, and give the same."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lagreach
from lagreach.adapters.calling import default_call
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.whole_model.find_input import find_input_module
from lagreach.whole_model.input_module import PartnerSteps, read
from lagreach.whole_model.lag_gradients import model_lag_gradients
from lagreach.whole_model.running import WholeModel, at_rest
from tests.whole_model import cases
from tests.whole_model.cases import hugging_face, made, numbers, tokens


class Checkpointed(cases.CausalTransformer):
    reentrant = False

    def forward(self, x):
        hidden = self.read(x) + self.place[: x.shape[1]]
        time = x.shape[1]
        mask = torch.full((time, time), -torch.inf, dtype=self.place.dtype).triu(1)
        for layer in self.layers.layers:
            hidden = checkpoint(layer, hidden, mask, use_reentrant=self.reentrant)
        return self.readout(hidden)


class AllInside(cases.CausalTransformer):
    """What reads the input lies inside a checkpoint, too."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class StepByStep(nn.Module):
    """A linear layer that is called for each step, inside checkpoints."""

    def __init__(self):
        super().__init__()
        self.read, self.back, self.out = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def step(self, x, state):
        return torch.tanh(self.read(x) + self.back(state))

    def forward(self, x):
        state, states = x.new_zeros(len(x), 4), []
        for t in range(x.shape[1]):
            state = checkpoint(self.step, x[:, t], state, use_reentrant=False)
            states.append(state)
        return self.out(torch.stack(states, 1))


def test_a_checkpoint_around_what_reads_the_input():
    """The way back ran it without the leaf, and with inputs that were not exchanged."""
    model, plain = (made(cls, layers=2) for cls in (AllInside, cases.CausalTransformer))
    x, y = numbers()
    again = model_lag_gradients(model, x, y).grads["read.weight"]
    torch.testing.assert_close(again, model_lag_gradients(plain, x, y).grads["read.weight"], rtol=1e-12, atol=1e-14)
    whole, batch = (WholeModel(each, default_call) for each in (model, plain)), Batch(x, y)
    exchange = PartnerSteps(torch.arange(x.shape[1]).expand(len(x), -1))
    pulled = []
    for each in whole:
        with at_rest(each.module):
            reading, output = read(each, find_input_module(each, batch), batch, exchange=exchange)
            pulled.append(reading.pull(output[:, -1], torch.ones_like(output[:, -1])))
    torch.testing.assert_close(*pulled, rtol=1e-12, atol=1e-14)


def test_several_calls_inside_checkpoints_are_the_same_or_refused_in_a_sentence():
    torch.manual_seed(0)
    x = torch.randn(32, 6, 1)
    y = x.roll(2, 1) + torch.randn(32, 6, 1)
    with pytest.raises(UnsupportedError, match=r"several times inside torch.utils.checkpoint"):
        lagreach.diagnose(StepByStep(), (x, y), lags=[0, 2], lags_of="model", inputs="read")


def test_a_forecast_of_a_checkpointed_model_is_that_of_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 9, 3, generator=generator)
    data = x, x.roll(2, 1)[..., :1] + torch.randn(48, 9, 1, generator=generator)
    one, other = (
        lagreach.forecast(made(cls, layers=2).float(), data, lags=[0, 2], directions=8, progress=False)
        for cls in (AllInside, cases.CausalTransformer)
    )
    torch.testing.assert_close(one.if_present.values, other.if_present.values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_ones_own(reentrant):
    model, plain = (made(cls, layers=2) for cls in (Checkpointed, cases.CausalTransformer))
    model.reentrant = reentrant
    x, y = numbers()
    again = model_lag_gradients(model, x, y).grads["read.weight"]
    torch.testing.assert_close(again, model_lag_gradients(plain, x, y).grads["read.weight"], rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "MambaForCausalLM"])
def test_gradient_checkpointing_of_transformers_is_respected(name):
    pytest.importorskip("transformers")
    model = hugging_face(name)
    x, y = tokens()
    plain = model_lag_gradients(model, x, y, "cross_entropy")
    model.gradient_checkpointing_enable()
    layers = [part for part in model.modules() if getattr(part, "gradient_checkpointing", False) is True]
    assert layers
    saved = {"checkpointed": kept_values(model, x)}
    again = model_lag_gradients(model, x, y, "cross_entropy")
    for weight, gradient in plain.grads.items():
        torch.testing.assert_close(again.grads[weight], gradient, rtol=1e-10, atol=1e-13)
    assert all("forward" not in vars(layer) for layer in layers)
    model.gradient_checkpointing_disable()
    saved["plain"] = kept_values(model, x)
    assert saved["checkpointed"] < saved["plain"] / 2
    assert all(getattr(part, "gradient_checkpointing", False) is False for part in model.modules())


def kept_values(model, x):
    """Numbers that autograd keeps for the way back."""
    kept = {}

    def count(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with at_rest(model), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        embedded = model.get_input_embeddings()(x).detach().requires_grad_()
        model(inputs_embeds=embedded, use_cache=False)
    return sum(kept.values())


@pytest.mark.thorough
def test_a_diagnosis_of_a_checkpointed_model_is_that_of_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 9, 3, generator=generator)
    data = x, x.roll(2, 1)[..., :1] + torch.randn(48, 9, 1, generator=generator)
    one, other = (
        lagreach.diagnose(made(cls, layers=2).float(), data, lags=[0, 2]).layers[0].window
        for cls in (Checkpointed, cases.CausalTransformer)
    )
    assert one.adjusted_p.tolist() == other.adjusted_p.tolist()
    torch.testing.assert_close(torch.from_numpy(one.noise), torch.from_numpy(other.noise), rtol=1e-4, atol=1e-8)
