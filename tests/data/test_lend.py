"""Sequences that are lent lie where the user's lie, and nobody writes into them."""

import pytest
import torch

from lagreach import GatedRNN
from lagreach.data.sequences import as_sequences, lend
from lagreach.forecasting.forecast import forecast


@pytest.mark.parametrize("index", [[2, 3, 4], [4, 3], [0, 2]])
def test_they_are_those_that_are_read(index):
    x, y = torch.randn(6, 5, 2), torch.randn(6, 5, 1)
    sequences = as_sequences((x, y))
    lent, read = lend(sequences, index), sequences.read(index)
    for name in ("x", "y", "numbers"):
        torch.testing.assert_close(getattr(lent, name), getattr(read, name))
    in_place = lent.x.data_ptr() == x[index[0]].data_ptr()
    assert in_place == (index == [2, 3, 4])  # others have no place in memory where they follow each other
    assert read.x.data_ptr() != x[index[0]].data_ptr()


@pytest.mark.parametrize("cell", ["diag_gate", "lstm"])
def test_a_forecast_leaves_them_as_they_are(cell):
    x, y = torch.randn(64, 20, 2), torch.randn(64, 20, 1)
    before = x.clone(), y.clone()
    model = GatedRNN(cell, 2, 8, 1, generator=torch.Generator().manual_seed(0))
    forecast(model, (x, y), lags=[0, 1, 4], weights="readout", progress=False)
    for now, then in zip((x, y), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
        assert now._version == 0
