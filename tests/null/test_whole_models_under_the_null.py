"""Whole models: planted lags are found, and lags that are not there are named no more often than the error allows.

Fresh models see targets that depend on nothing, or on one lag. Trained ones see targets that depend on the one lag they
were trained on: swapping targets alone then names its neighbours as well, exchanging single inputs does not.
"""

import functools

import pytest
import torch
from scipy.stats import binom

from lagreach._util.threads import one_thread
from lagreach.data.sequences import as_sequences
from lagreach.whole_model.measure import measure_model
from lagreach.whole_model.subject import make_model_subject
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, hugging_face, made

TIME, LAG, ERROR = 10, 3, 0.05
LAGS = range(6)


def numbers(count, planted, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, TIME, 2, generator=generator)
    y = torch.randn(count, TIME, 1, generator=generator)
    y[:, LAG:] += planted * x[:, :-LAG, :1]
    return x, y


def tokens(count, planted, seed):
    """The next token repeats the one four places before, or does not."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, TOKENS, (count, TIME + 1), generator=generator)
    repeat = torch.rand(count, TIME + 1, generator=generator) < planted
    for step in range(LAG + 1, TIME + 1):
        text[:, step] = torch.where(repeat[:, step], text[:, step - LAG - 1], text[:, step])
    return text[:, :-1], text[:, 1:]


def transformer(seed):
    return made(cases.CausalTransformer, seed, inputs=2).float()


def language_transformer(seed):
    return made(cases.CausalTransformer, seed, tokens=TOKENS, outputs=TOKENS).float()


def mamba(seed):
    pytest.importorskip("transformers")
    return hugging_face("MambaForCausalLM", seed, num_hidden_layers=2).float()


KINDS = {
    "Transformer": (transformer, numbers, "mse", 1.0),
    "language Transformer": (language_transformer, tokens, "cross_entropy", 0.8),
    "Mamba": (mamba, tokens, "cross_entropy", 0.8),
}


def named(model, data, loss, seed):
    """Lags that the data are said to depend on."""
    subject = make_model_subject(model, as_sequences(data), loss, LAGS, blocks=16, probes=1, seed=seed)
    found = measure_model(subject, flips=399, error=ERROR)
    return {lag for lag, p in zip(subject.bands.lags, found.test.adjusted, strict=True) if p <= ERROR}


@one_thread()
def rates(kind, seeds, count):
    """Runs that name a lag without any, and runs that name the planted one."""
    build, draw, loss, strength = KINDS[kind]
    false = sum(bool(named(build(seed), draw(count, 0.0, seed), loss, seed)) for seed in seeds)
    right = sum(LAG in named(build(seed), draw(2 * count, strength, seed), loss, seed) for seed in seeds)
    return false, right


@functools.cache
def trained(seed):
    model = made(cases.CausalTransformer, seed, inputs=2, width=16).float()
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(120):
        x, y = numbers(64, 1.0, 10**6 + 1000 * seed + step)
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def most_by_chance(runs):
    """Rate that the error exceeds once in a thousand."""
    return binom.isf(1e-3, runs, ERROR)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Transformer", "language Transformer"])
def test_planted_lags_are_found_and_others_are_not(kind):
    false, right = rates(kind, range(6), 48)
    assert false <= most_by_chance(6)
    assert right >= 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_rates_over_many_seeds(kind):
    false, right = rates(kind, range(200), 64)
    assert false <= most_by_chance(200)
    assert right >= 190


@one_thread()
def neighbours_named(seeds):
    return [named(trained(seed % 8), numbers(192, 1.0, seed), "mse", seed) for seed in seeds]


@pytest.mark.slow
def test_trained_models_do_not_name_the_neighbours_of_a_lag():
    found = neighbours_named(range(100))
    assert sum(LAG in lags for lags in found) >= 99
    assert sum(bool(lags - {LAG}) for lags in found) <= most_by_chance(100)
