"""How far back does a two-layer GRU forecaster learn from one long series? Windows of a seasonal series."""

import torch
from torch import nn

import lagreach


class Forecaster(nn.Module):
    """Two GRU layers and a linear readout at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 16, num_layers=2, batch_first=True)
        self.read = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Next value at every step."""
        return self.read(self.gru(x)[0])


def main(steps: int = 6000) -> "lagreach.diagnosis.result.Diagnosis":
    """A noisy series in which each value resembles the one twelve steps before."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    series = torch.randn(steps + 1, generator=generator)
    for t in range(12, steps + 1):
        series[t] += 0.7 * series[t - 12]
    data = lagreach.cut_series(series[:-1, None], series[1:, None], length=48)
    diagnosis = lagreach.diagnose(Forecaster(), data, lags=[0, 1, 5, 11, 12, 23])
    print(diagnosis)
    return diagnosis


if __name__ == "__main__":
    main()
