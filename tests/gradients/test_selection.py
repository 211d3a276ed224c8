"""Which weights are looked at, by the names of groups of them."""

import pytest
import torch
from torch import nn

from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.gradients.selection import select_params
from lagreach.models.gated_rnn import GatedRNN


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.readout = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0])


def recurrence(model):
    return find_views(model, Batch(torch.randn(2, 5, 2), torch.randn(2, 5, 1)))[0].template


def test_gates_that_have_weights_of_their_own():
    names = select_params(recurrence(GatedRNN("gru", 2, 4, 1)), "gates")
    assert names
    assert all(name.rpartition("_")[2] in {"z", "r"} for name in names)


def test_gates_that_share_a_tensor_with_the_rest_cannot_be_chosen():
    with pytest.raises(InputError, match="gates of this layer have no weights of their own") as caught:
        select_params(recurrence(Reads()), "gates")
    assert 'params="all"' in str(caught.value)


@pytest.mark.parametrize("cell", ["const_gate", "elman"])
def test_a_cell_without_weights_of_gates_says_so(cell):
    with pytest.raises(InputError, match="no gates with weights"):
        select_params(recurrence(GatedRNN(cell, 2, 4, 1)), "gates")
