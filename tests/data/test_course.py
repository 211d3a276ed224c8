"""Inputs with a trend of their own, and walks, are noticed: lags of others may be named there."""

import pytest
import torch

import lagreach
from lagreach.data.course import Course
from lagreach.data.sequences import as_sequences
from lagreach.data.survey import survey

SEQUENCES, TIME = 200, 40


def inputs(kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    steps, x = torch.arange(TIME)[:, None], noise(SEQUENCES, TIME, 2)
    if kind == "walk":
        return x.cumsum(1)
    if kind == "trend":
        return x + 4 * (steps / TIME - 0.5) * noise(SEQUENCES, 1, 2)
    if kind == "level":
        return x + 2 * noise(SEQUENCES, 1, 2)
    if kind == "season":
        return 0.5 * x + torch.sin(steps / 4 + 6.283 * torch.rand(SEQUENCES, 1, 2, generator=generator))
    if kind == "loudness":
        return x * noise(SEQUENCES, 1, 1).exp()
    if kind == "autoregression":
        x = noise(SEQUENCES, 4 * TIME, 2)
        for t in range(1, 4 * TIME):
            x[:, t] += 0.95 * x[:, t - 1]
        return x[:, -TIME:]
    return x * (steps + 1)  # independent of each other, louder and louder: nothing is to be taken off


@pytest.mark.parametrize("kind", ["walk", "trend"])
def test_trends_and_walks_are_noticed(kind):
    generator = torch.Generator().manual_seed(1)
    for seed in range(10):
        x = inputs(kind, seed)
        assert survey(as_sequences((x, x[..., :1]))).change > 1.5
        kept = torch.randint(20, TIME, (SEQUENCES,), generator=generator)
        course = Course()
        inside = torch.arange(TIME) < kept[:, None]
        course.add(torch.where(inside[..., None], x, torch.nan), inside)  # beyond its end a sequence may hold anything
        assert course.change > 1.5


@pytest.mark.parametrize("kind", ["level", "season", "loudness", "autoregression", "louder and louder"])
def test_inputs_that_vary_alike_or_are_independent_are_not_spoken_of(kind):
    for seed in range(30):
        course = Course()
        course.add(inputs(kind, seed), torch.ones(SEQUENCES, TIME, dtype=torch.bool))
        assert course.change == 1


def test_what_all_sequences_share_and_few_steps_say_nothing():
    shared = torch.arange(TIME)[:, None] * torch.ones(2)
    course = Course()
    course.add(inputs("level", 0) + 100 * shared, torch.ones(SEQUENCES, TIME, dtype=torch.bool))
    course.add(inputs("walk", 0)[:, :2], torch.ones(SEQUENCES, 2, dtype=torch.bool))
    course.add(inputs("walk", 0)[:1], torch.ones(1, TIME, dtype=torch.bool))
    assert course.change == 1
    assert Course().change == 1


def test_it_is_said_by_forecasts_and_diagnoses():
    x = inputs("walk", 0)[:64]
    model = lagreach.GatedRNN("lstm", 2, 4, 1, generator=torch.Generator().manual_seed(0))
    made = lagreach.forecast(model, (x, x[..., :1]), lags=[0, 1, 3], weights="readout")
    assert any("take trends off" in warning for warning in made.warnings)
    seen = lagreach.diagnose(model, (x, x[..., :1]), lags=[0, 1, 3])
    assert any("take trends off" in warning for warning in seen.layers[0].window.warnings)
    assert "perhaps by way of others" in " ".join(str(seen).split())
