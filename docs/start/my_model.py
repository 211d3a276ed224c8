"""A model and data for the command line: ``python my_model.py`` writes data.npz."""

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """A GRU with a number at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 16, batch_first=True)
        self.read = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number at every step."""
        return self.read(self.gru(x)[0])


def build() -> Net:
    """Make the model that ``--model my_model:build`` names."""
    torch.manual_seed(0)
    return Net()


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 32, 2)).astype(np.float32)
    y = 0.5 * draw.normal(size=(400, 32, 1)).astype(np.float32)
    y[:, 4:] += x[:, :-4, :1]  # the target is the first input of four steps ago
    np.savez("data.npz", x=x, y=y)
