"""Readable and reachable shares of models that have no recurrence to carry back."""

import numpy as np
import pytest
import torch

import lagreach
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, hugging_face, made

LAG, TIME = 2, 10


def words(count=128):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, TOKENS, (count, TIME), generator=generator)
    return x, x.roll(LAG, 1)


def numbers(count=128):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, TIME, cases.INPUT, generator=generator)
    return x, x.roll(LAG, 1)[..., :1] + torch.randn(count, TIME, 1, generator=generator) / 4


KINDS = {
    "GPT-2": (lambda: hugging_face("GPT2LMHeadModel").float(), words, "cross_entropy"),
    "Mamba": (lambda: hugging_face("MambaForCausalLM").float(), words, "cross_entropy"),
    "temporal convolution": (lambda: made(cases.PaddedConvolutions), numbers, "mse"),
    "Transformer": (lambda: made(cases.CausalTransformer), numbers, "mse"),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_whole_models(kind):
    if kind in ("GPT-2", "Mamba"):
        pytest.importorskip("transformers")
    build, draw, loss = KINDS[kind]
    told = lagreach.forecast(build(), draw(), 1000, [0, LAG, 7], loss=loss, strength=0.5, directions=32)
    readable, reachable = (share.sel(sequences=1000).values for share in (told.readable, told.reachable))
    for share in (readable, reachable):
        assert np.isfinite(share).all()
        assert (share <= 1).all()
    if kind != "temporal convolution":
        assert readable[0] == readable.max()  # what was just read is in every state
    assert (reachable >= readable - 0.05).all()  # all weights do what the readout alone does
    if kind == "temporal convolution":  # two layers of two and three taps look four steps back
        assert reachable[2] < 0.02


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_labels_of_language_models_are_shifted_in_a_forecast_too():
    pytest.importorskip("transformers")
    model, (x, _) = hugging_face("GPT2LMHeadModel").float(), words()
    options = {"lags": [0, LAG], "strength": 0.5, "weights": "readout"}
    by_name = lagreach.forecast(model, {"input_ids": x, "labels": x}, 1000, **options)
    assert by_name.settings["loss"] == "cross_entropy"
    assert any("labels equal the inputs" in note for note in by_name.warnings)
    later = torch.cat((x[:, 1:], torch.full((len(x), 1), -100)), 1)
    by_hand = lagreach.forecast(model, (x, later), 1000, loss="cross_entropy", **options)
    np.testing.assert_allclose(by_name.readable.values, by_hand.readable.values, rtol=1e-6)


@pytest.mark.thorough
def test_a_model_that_keeps_a_state_is_forecast_without_one():
    class Keeps(cases.Recurrent):
        state = None

        def forward(self, x):
            hidden, self.state = self.layer(x, self.state)
            self.state = tuple(part.detach() for part in self.state)
            return self.readout(hidden)

    data, options = numbers(64), {"lags": [0, LAG], "weights": "readout"}
    kept, plain = (lagreach.forecast(made(cls), data, 1000, **options) for cls in (Keeps, cases.Recurrent))
    assert any("keeps a state between calls" in note for note in kept.warnings)
    np.testing.assert_allclose(kept.readable.values, plain.readable.values, rtol=1e-9)
