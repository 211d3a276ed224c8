"""The readable share as a statistic of a diagnosis: collected in its first pass, and shown wherever curves are."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.report.recovered import recovered
from lagreach.statistics import readable

LAGS = [0, 1, 3, 6, 9]


def data(sequences=192, time=24, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sequences, time, 2, generator=generator)
    y = 0.3 * torch.randn(sequences, time, 1, generator=generator)
    y[:, 3:, 0] += x[:, :-3, 0]
    return x, y


def network(cell="diag_gate", units=6):
    return lagreach.GatedRNN(cell, 2, units, 1, gate_init=0.2, generator=torch.Generator().manual_seed(0))


def test_it_is_what_a_forecast_reads_from_the_same_states():
    """Other random directions of the input and other blocks, so they agree within their intervals."""
    model = network("lstm")
    diagnosis = lagreach.diagnose(model, data(), lags=LAGS, sequences=1000)
    forecast = lagreach.forecast(model, data(), 1000, lags=LAGS, weights="readout")
    ours, theirs = diagnosis.layers[0].window.curves["readable"], forecast.readable
    apart = np.abs(ours.value - theirs.values[:, 0])
    assert (apart <= (ours.high - ours.low) / 2 + (theirs.high - theirs.low).values[:, 0] / 2 + 0.02).all()
    assert ours.value[0] > 0.3  # and there is something to agree about


def test_it_shows_up_everywhere(tmp_path):
    diagnosis = lagreach.diagnose(network(), data(), lags=LAGS)
    assert "share recovered" in str(diagnosis)
    arrays = diagnosis.to_xarray()
    assert {"readable", "readable_low", "readable_high", "readable_ample", "readable_needed"} <= set(arrays)
    diagnosis.save(tmp_path / "d.nc")
    back = lagreach.load(tmp_path / "d.nc")
    assert str(back) == str(diagnosis)
    np.testing.assert_array_equal(
        back.layers[0].window.curves["readable"].value, diagnosis.layers[0].window.curves["readable"].value
    )
    assert back.about == diagnosis.about


@pytest.mark.thorough
def test_more_planned_sequences_recover_more():
    few, many = (lagreach.diagnose(network(), data(96), lags=LAGS, sequences=n) for n in (20, 20_000))
    assert (few.curve("readable").values < many.curve("readable").values).any()
    assert (few.curve("readable").values <= many.curve("readable").values + 1e-9).all()


def test_nothing_is_recovered_of_what_the_state_does_not_hold():
    x, y = data(256)
    forgetful = lagreach.GatedRNN("diag_gate", 2, 4, 1, gate_init=0.999, generator=torch.Generator().manual_seed(0))
    diagnosis = lagreach.diagnose(forgetful, (x, y), lags=[0, 12, 20], sequences=10_000)
    curve = diagnosis.layers[0].window.curves["readable"]
    assert (curve.value[1:] < 0.02).all()
    assert (curve.low[1:] <= 0).all()
    assert np.isinf(curve.more["needed"][1:]).all()


class Wide(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.layer, self.read = nn.GRU(2, units, batch_first=True), nn.Linear(units, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0])


def test_wide_layers_are_left_out_and_it_is_said(monkeypatch):
    monkeypatch.setattr(readable, "MOST_UNITS", 7)
    torch.manual_seed(0)
    diagnosis = lagreach.diagnose(Wide(8), data(64, 12), lags=[0, 3])
    assert "readable" not in diagnosis.layers[0].window.curves
    assert any("8 units are more than the 7" in note and "lagreach.forecast" in note for note in diagnosis.warnings)
    assert recovered(diagnosis) is None


@pytest.mark.thorough
def test_a_loss_at_the_end_and_classes():
    torch.manual_seed(0)
    x = torch.randn(96, 12, 2)
    classes = (x[:, -2, 0] > 0).long()

    class Last(Wide):
        def forward(self, x):
            return self.read(self.layer(x)[0][:, -1])

    model = Last(6)
    model.read = nn.Linear(6, 2)
    diagnosis = lagreach.diagnose(model, (x, classes), loss="cross_entropy", lags=[0, 1, 5])
    curve = diagnosis.layers[0].window.curves["readable"]
    assert np.isfinite(curve.value).all()
    assert curve.value[0] > curve.value[2]
