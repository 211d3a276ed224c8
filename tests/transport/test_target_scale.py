"""Targets on another scale than the outputs: dependences are found all the same, and it is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lagreach
from lagreach.transport.objective import Objective
from lagreach.transport.target_scale import scale_note


def data(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The target is the first input three steps before, and noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 16, 2, generator=generator)
    y = nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0)) + 0.3 * torch.randn(128, 16, 1, generator=generator)
    return x, scale * y


@pytest.mark.parametrize("of", ["layers", "model"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_dependence_of_tiny_or_huge_targets_is_found_and_their_scale_said(scale: float, of: str) -> None:
    model = lagreach.GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(0))
    diagnosis = lagreach.diagnose(model, data(scale), lags=[0, 1, 3, 6], lags_of=of)
    assert diagnosis.layers[0].window.dependences == (3,)
    assert any("scale the targets" in warning for warning in diagnosis.warnings)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_a_forecast_says_that_targets_are_on_another_scale(scale: float) -> None:
    model = lagreach.GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(0))
    forecast = lagreach.forecast(model, data(scale), lags=[0, 3], weights="readout")
    assert any("scale the targets" in warning for warning in forecast.warnings)
    assert "explain" not in str(forecast).split("Track record")[0]


def test_only_outputs_that_have_targets_are_looked_at() -> None:
    model = lagreach.GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(0))
    x, y = data(1e8)
    last = (x, y[:, -1])
    diagnosis = lagreach.diagnose(model, last, lags=[0, 3], steps="last")
    forecast = lagreach.forecast(model, last, lags=[0, 3], weights="readout", target_steps="last")
    for warnings in (diagnosis.warnings, forecast.warnings):
        assert any("scale the targets" in warning for warning in warnings)


def test_targets_on_the_scale_of_outputs_and_new_readouts_of_zeros_are_not_spoken_of() -> None:
    y, weights = torch.randn(4, 9, 1, generator=torch.Generator().manual_seed(0)), torch.ones(4, 9)
    for output in (y, 100 * y, torch.zeros_like(y)):
        assert scale_note(Objective("mse", y, weights), output) is None
    assert (
        scale_note(Objective("mse", torch.ones_like(y), weights), y) is None
    )  # of these sequences nothing can be said
    assert scale_note(Objective("mse", 1e-4 * y, weights), y) is not None


def test_what_does_not_count_has_no_scale() -> None:
    y, weights = torch.randn(4, 9, 1, generator=torch.Generator().manual_seed(0)), torch.ones(4, 9)
    spoiled, weights[:, 5:] = y.clone(), 0
    spoiled[:, 5:] = 1e9
    assert scale_note(Objective("mse", spoiled, weights), y) is None


def test_outputs_in_very_different_units_are_told():
    """A squared error, and tests along mixtures of all outputs, see the largest alone."""
    x = torch.randn(64, 12, 2, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = lagreach.GatedRNN("gru", 2, 4, 2)
    for factor, told in ((3.0, False), (30.0, True)):
        y = x.roll(2, 1) * torch.tensor([factor, 1.0])
        made = lagreach.forecast(model, (x, y), lags=[0, 2], weights="readout", progress=False)
        assert any("one output at a time" in note for note in made.warnings) is told
