"""How far back does an untrained Mamba learn from sequences? A mambapy block, and a target that is 12 steps old."""

from importlib.util import find_spec

import torch
from torch import nn

import lagreach


class Regressor(nn.Module):
    """One Mamba block between two linear maps."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        from mambapy.mamba import Mamba, MambaConfig

        self.front, self.read = nn.Linear(2, width), nn.Linear(width, 1)
        self.mamba = Mamba(MambaConfig(d_model=width, n_layers=1, d_state=4, dt_min=0.02, dt_max=0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A value at every step."""
        return self.read(self.mamba(self.front(x)))


def main() -> None:
    """Half-lives first, then the whole diagnosis."""
    if find_spec("mambapy") is None:
        print("skipped: this example runs on sequences with mambapy installed (pip install lagreach[mamba])")
        return
    torch.manual_seed(0)
    x = torch.randn(256, 48, 2)
    y = torch.nn.functional.pad(x[:, :-12, :1], (0, 0, 12, 0)) + 0.3 * torch.randn(256, 48, 1)
    model = Regressor()
    print(lagreach.retention(model, x[:16]))
    print(lagreach.diagnose(model, (x, y), lags=[0, 1, 4, 8, 12, 16, 24]))


if __name__ == "__main__":
    main()
