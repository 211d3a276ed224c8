"""Is a lag of 16 within reach of an LSTM that predicts one number per sequence? Gate bias makes the difference."""

import torch
from torch import nn

import lagreach


class Regressor(nn.Module):
    """LSTM with a linear readout of its last output."""

    def __init__(self, forget_bias: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 16, batch_first=True)
        self.read = nn.Linear(16, 1)
        with torch.no_grad():
            self.lstm.bias_hh_l0[16:32] = forget_bias  # torch orders the gates i, f, g, o

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number per sequence."""
        return self.read(self.lstm(x)[0][:, -1])


def main(sequences: int = 256) -> "lagreach.diagnosis.compare.Comparison":
    """The target is the input sixteen steps before the end."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, 24, 2, generator=generator)
    y = x[:, -17, :1] + 0.3 * torch.randn(sequences, 1, generator=generator)
    diagnoses = []
    for bias in (0.0, 3.0):
        torch.manual_seed(0)
        diagnoses.append(lagreach.diagnose(Regressor(bias), (x, y), lags=[0, 1, 4, 16]))
    compared = lagreach.compare(diagnoses, ["forget bias 0", "forget bias 3"], sequences=10_000)
    print(compared)
    return compared


if __name__ == "__main__":
    main()
