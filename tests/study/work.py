"""Pieces of work that tests send to other processes; they must be importable there."""

import os
import signal
from pathlib import Path

import torch

from lagreach.errors import InputError
from lagreach.models.gated_rnn import GatedRNN


def square(n):
    return n * n


def picky(n):
    if n == 3:
        raise InputError("three is refused", got=n)
    if n == 4:
        raise ZeroDivisionError("four")
    return n


def die_once(item):
    """Kill the worker the first time, as the system would when memory runs out."""
    path, n = item
    marker = Path(path) / f"tried-{n}"
    if n == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return n * n


def die_always(_):
    os.kill(os.getpid(), signal.SIGKILL)


def threads(_):
    return torch.get_num_threads()


def model_and_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 24, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    return GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2, generator=generator), (x, y)


class Reader(torch.nn.Module):
    """A small causal model that has no recurrence, and one dropout that must stay off."""

    def __init__(self):
        super().__init__()
        self.read, self.drop, self.show = torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.read(x)
        kept = 0.7 ** torch.arange(x.shape[1])
        weights = torch.stack(
            [torch.nn.functional.pad(kept.flip(0)[-t - 1 :], (0, len(kept) - t - 1)) for t in range(len(kept))]
        )
        return self.show(self.drop((weights.to(hidden) @ hidden).tanh()))


def whole_model_and_data():
    torch.manual_seed(0)
    return Reader(), model_and_data()[1]
