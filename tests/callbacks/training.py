"""A small training with everything random in it, to be run with and without a watch."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lagreach.diagnosis.measure import MeasureSettings

QUICK = {"lags": [0, 2, 5], "settings": MeasureSettings(blocks=8, probes=1, flips=99), "budget": None}


class Net(nn.Module):
    """Dropout, batch norm and a recurrent layer, with an output at every step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 5, batch_first=True)
        self.norm, self.drop, self.read = nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 1)

    def forward(self, x):
        hidden = self.lstm(x)[0]
        return self.read(self.drop(self.norm(hidden.transpose(1, 2)).transpose(1, 2)))


def sequences(count=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, 2, generator=generator)
    y = torch.zeros(count, 12, 1)
    y[:, 2:] = x[:, :-2, :1]
    return x, y


class Jittered(Dataset):
    """Draws from the global states of torch, numpy and python at every access."""

    def __init__(self, seed=0):
        self.x, self.y = sequences(seed=seed)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        jitter = torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002
        return self.x[i] * (1 + 0.1 * jitter), self.y[i]


def run(make_watch=None, *, steps=6, unit="step"):
    """Train; return the weights, buffers and what every source of randomness gives next."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Net()
    loader = DataLoader(Jittered(), batch_size=8, shuffle=True, generator=generator)
    held_out = DataLoader(Jittered(seed=5), batch_size=8, shuffle=True, generator=generator)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    watched = None if make_watch is None else make_watch(model, held_out, optimiser)
    done = 0
    while done < steps:
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            if done % 2:  # gradients wait for a second batch
                optimiser.step()
                optimiser.zero_grad()
            done += 1
            if watched is not None:
                watched.step()
        if watched is not None:
            watched.epoch()
    if watched is not None:
        watched.close()
    after = {name: value.clone() for name, value in model.state_dict().items()}
    after["drawn"] = torch.cat((torch.rand(3), torch.rand(3, generator=generator)))
    after["others"] = torch.tensor([np.random.rand(), random.random()])  # noqa: NPY002
    return model, after, watched


def assert_same(after, expected):
    assert after.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(after[name], value), name


def plain_loader(seed=5):
    return DataLoader(TensorDataset(*sequences(seed=seed)), batch_size=8)
