"""Tokens that follow each other: how likely two of them stand as they do, against what is known of a Markov chain."""

import numpy as np
import pytest
import torch

from lagreach.data.sequences import as_sequences
from lagreach.whole_model.measure import measure_model
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.token_context import TokenContexts, related_distances, token_contexts
from tests.null.whole_models import LAG, TOKENS, _token_transformer, text, tokens

KINDS, TIME = 5, 12


def chain(count, distance, generator):
    """Every token comes from the one some steps before, by a table of chances; also the table."""
    table = generator.dirichlet(np.full(KINDS, 0.4), size=KINDS)
    words = generator.integers(0, KINDS, size=(count, TIME))
    for step in range(distance, TIME):
        draw = generator.random(count)[:, None]
        words[:, step] = (draw > table[words[:, step - distance]].cumsum(1)).sum(1).clip(max=KINDS - 1)
    return words, table


def contexts_of(words, distances):
    half = np.arange(len(words)) // 2 % 2
    inside = np.ones(words.shape, dtype=bool)
    return TokenContexts(words, inside, half, distances, np.arange(words.max() + 1), seed=0)


def known_odds(words, table, distance, step, lag):
    """Logarithm of the odds that the tokens of partners stand as they do at a step, from the table."""
    logs = np.log(table)
    mine, other = words[:, step], words.reshape(-1, 2, TIME)[:, ::-1].reshape(-1, TIME)[:, step]
    gain = np.zeros(len(words))
    if step >= distance:
        gain += logs[words[:, step - distance], mine] - logs[words[:, step - distance], other]
    if distance <= lag:
        gain += logs[mine, words[:, step + distance]] - logs[other, words[:, step + distance]]
    return (gain.reshape(-1, 2).sum(1)).repeat(2)


@pytest.mark.parametrize(("distance", "lag"), [(1, 0), (1, 5), (3, 2), (3, 5)])
def test_chances_are_those_of_the_chain(distance, lag):
    words, table = chain(1200, distance, np.random.default_rng(0))
    context = contexts_of(words, (distance,)).at(lag)
    step = 5
    rows = torch.from_numpy(words)
    half = torch.from_numpy(np.arange(len(words)) // 2 % 2)
    got = context.fairness(rows, torch.ones(words.shape, dtype=torch.bool), torch.full((len(words),), step), half)
    expected = 2 / (1 + np.exp(known_odds(words, table, distance, step, lag)))
    assert np.abs(got.numpy() - expected).mean() < 0.05
    assert np.corrcoef(got.numpy(), expected)[0, 1] > 0.98


def test_a_fair_exchange_has_mean_zero_and_an_unfair_one_has_not():
    """Whatever is computed of a token and its neighbour: here, whether they are the same."""
    differences = {"fair": [], "plain": []}
    for seed in range(20):
        generator = np.random.default_rng(seed)
        words = generator.integers(0, KINDS, size=(128, TIME))
        repeats = generator.random(words.shape) < 0.7
        for step in range(2, TIME):
            words[:, step] = np.where(repeats[:, step], words[:, step - 2], words[:, step])
        context = contexts_of(words, (2,)).at(0)
        half, step = torch.from_numpy(np.arange(len(words)) // 2 % 2), 6
        inside = torch.ones(words.shape, dtype=torch.bool)
        fair = context.fairness(torch.from_numpy(words), inside, torch.full((len(words),), step), half).numpy()
        partner = words.reshape(-1, 2, TIME)[:, ::-1].reshape(-1, TIME)
        change = (words[:, step] == words[:, step - 2]).astype(float) - (partner[:, step] == words[:, step - 2])
        differences["fair"].append((fair * change).mean())
        differences["plain"].append(change.mean())
    z = {name: np.mean(values) / (np.std(values) / len(values) ** 0.5) for name, values in differences.items()}
    assert abs(z["fair"]) < 3 < z["plain"]


def test_distances_are_found_and_independent_tokens_have_none():
    words = text(256, 0.8, seed=0)[0].numpy()
    inside = np.ones(words.shape, dtype=bool)
    assert LAG + 1 in related_distances(words, inside, np.arange(TOKENS))
    distances = [
        related_distances(tokens(64, 0.0, seed)[0].numpy(), np.ones((64, 10), bool), np.arange(TOKENS))
        for seed in range(40)
    ]
    assert sum(map(bool, distances)) <= 3


def test_independent_tokens_are_exchanged_as_before_and_text_is_not():
    model = _token_transformer(0)
    for draw, related in ((tokens, False), (text, True)):
        data = as_sequences(draw(128, 0.8, 0))
        plan = plan_model_measurement(model, data, "cross_entropy", range(6), blocks=16, probes=1, seed=0)
        assert (token_contexts(plan) is not None) == related
        measured = measure_model(plan, flips=399, error=0.05)
        assert LAG in measured.located.named
        assert any("tokens follow each other" in note for note in measured.located.notes) == related
        assert (measured.located.left < 1) == related
