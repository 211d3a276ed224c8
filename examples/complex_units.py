"""S5 and other linear recurrences with complex units: how long they remember, and how fast they turn."""

import math
import warnings
from importlib.util import find_spec

import torch
from torch import nn

import lagreach


class Model(nn.Module):
    """An S5 layer between two linear maps."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # s5 compiles a function in a way torch no longer likes
            from s5 import S5

        self.front, self.s5, self.read = nn.Linear(2, width), S5(width, 8), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A value at every step."""
        return self.read(self.s5(self.front(x)))


def main() -> None:
    """Half-life and period of every unit, then the diagnosis."""
    if find_spec("s5") is None:
        print("skipped: this example runs on sequences with s5-pytorch installed (pip install lagreach[s5])")
        return
    torch.manual_seed(0)
    model, x = Model(), torch.randn(128, 32, 2)
    layer = lagreach.retention(model, x[:4]).layers[0]
    assert layer.phase is not None
    for half_life, phase in zip(layer.half_lives.tolist(), layer.phase[0, 0].tolist(), strict=True):
        print(f"half-life {half_life:7.1f} steps, period {2 * math.pi / abs(phase):8.1f} steps")
    y = torch.nn.functional.pad(x[:, :-6, :1], (0, 0, 6, 0))
    print(lagreach.diagnose(model, (x, y), lags=[0, 2, 6, 12]))


if __name__ == "__main__":
    main()
