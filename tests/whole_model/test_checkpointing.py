"""Models that compute their activations anew on the way back do so here too, and give the same."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lagreach
from lagreach.whole_model.lag_gradients import model_lag_gradients
from lagreach.whole_model.running import at_rest
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
