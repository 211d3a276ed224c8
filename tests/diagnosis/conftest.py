"""A small model with dropout and a planted lag, shared by the tests of diagnoses."""

import pytest
import torch
from torch import nn

import lagreach


class Net(nn.Module):
    def __init__(self, width=2, hidden=8):
        super().__init__()
        self.lstm, self.drop, self.read = (
            nn.LSTM(width, hidden, batch_first=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.read(self.drop(self.lstm(x)[0]))


@pytest.fixture(scope="session")
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 20, 2, generator=generator)
    y = 0.3 * torch.randn(96, 20, 1, generator=generator)
    y[:, 3:, 0] += x[:, :-3, 0]
    return x, y


@pytest.fixture(scope="session")
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="session")
def diagnosis(model, data):
    return lagreach.diagnose(model, data, lags=[0, 1, 3, 8], require=[5])
