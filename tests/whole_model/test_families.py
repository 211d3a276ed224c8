"""Families of models as their users have them, from data to the printed answer: each works, or is refused in one sentence."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, hugging_face, made
from tests.whole_model.test_lag_gradients import EXPERTS, FAMILIES

LAG = 2


def text(count=64, time=12):
    """The next token repeats the one three places before, most of the time: for a model that predicts it, lag 2."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, TOKENS, (count, time), generator=generator)
    repeat = torch.rand(count, time, generator=generator) < 0.9
    for step in range(LAG + 1, time):
        words[:, step] = torch.where(repeat[:, step], words[:, step - LAG - 1], words[:, step])
    return words


def numbers(count=64, time=10, inputs=cases.INPUT):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, time, inputs, generator=generator)
    y = 0.3 * torch.randn(count, time, 1, generator=generator)
    y[:, LAG:] += x[:, :-LAG, :1]
    return x, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_language_models_find_the_planted_lag(name):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, name):
        pytest.skip(f"this version of transformers has no {name}")
    model, words = hugging_face(name), text(160)
    model = model.float() if name in EXPERTS else model
    diagnosis = lagreach.diagnose(model, {"input_ids": words, "labels": words}, lags=[0, 1, LAG, 5])
    assert diagnosis.settings["lags_of"] == "model"
    window = diagnosis.layers[0].window
    assert LAG in window.marginal_dependences
    assert np.isfinite(window.probe.sequences).any()
    assert "labels equal the inputs" in str(diagnosis)


OF_NUMBERS = {
    "temporal convolution": lambda: made(cases.PaddedConvolutions),
    "Transformer": lambda: made(cases.CausalTransformer),
    "compiled Transformer": lambda: torch.compile(made(cases.CausalTransformer)),
    "DataParallel": lambda: nn.DataParallel(made(cases.CausalTransformer)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", OF_NUMBERS)
def test_models_of_numbers_find_the_planted_lag(kind):
    torch.manual_seed(0)
    diagnosis = lagreach.diagnose(OF_NUMBERS[kind]().float(), numbers(), lags=[0, 1, LAG, 5])
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.layers[0].window.dependences == (LAG,)


def test_moving_pictures():
    """A ConvLSTM in small: pictures in, pictures out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 6, 2, 4, 4, generator=generator)
    y = 0.3 * torch.randn(48, 6, 1, 4, 4, generator=generator)
    y[:, LAG:] += x[:, :-LAG, :1]
    diagnosis = lagreach.diagnose(made(cases.MovingPicture).float(), (x, y), lags=[0, 1, LAG])
    assert diagnosis.settings["lags_of"] == "model"
    assert LAG in diagnosis.layers[0].window.dependences


def test_an_encoder_and_a_decoder_with_attention():
    generator = torch.Generator().manual_seed(0)
    source, past = torch.randn(64, 8, cases.INPUT, generator=generator), torch.randn(64, 8, 1, generator=generator)
    y = source[:, [4], :1].expand(-1, 8, -1) + 0.3 * torch.randn(64, 8, 1, generator=generator)
    diagnosis = lagreach.diagnose(
        made(cases.EncoderDecoder).float(), ((source, past), y), lags=[0, 3, 5], outputs="at the end"
    )
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.settings["input_module"] == "source"
    assert diagnosis.layers[0].window.dependences == (3,)  # four steps into eight, counted back from the last
