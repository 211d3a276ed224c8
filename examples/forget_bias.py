"""Does the forget bias matter, and which slice of torch's biases is it? Half-lives and sequences needed at lag 20."""

import torch
from torch import nn

import lagreach

HIDDEN = 16
FORGET = slice(HIDDEN, 2 * HIDDEN)  # torch orders the gates i, f, g, o


class Net(nn.Module):
    """An LSTM with a number at every step."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, HIDDEN, batch_first=True)
        self.read = nn.Linear(HIDDEN, 1)
        with torch.no_grad():  # torch adds both biases: set one, clear the other
            self.lstm.bias_ih_l0[FORGET] = bias
            self.lstm.bias_hh_l0[FORGET] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number at every step."""
        return self.read(self.lstm(x)[0])


def main() -> None:
    """Four biases, the same data, the same seed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 48, 2, generator=generator)
    y = 0.5 * torch.randn(256, 48, 1, generator=generator)
    y[:, 20:] += 0.7 * x[:, :-20, :1]
    print(f"{'bias':>5} {'half-life':>10} {'sequences for lag 20':>21}   reach of 8,000 sequences")
    for bias in (0.0, 1.0, 2.0, 4.0):
        torch.manual_seed(0)
        model = Net(bias)
        half_life = lagreach.retention(model, x[:32]).layers[0].quantiles()[0]
        diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 2, 5, 10, 20, 40])
        needed, at = float(diagnosis.required_if_present.sel(lag=20)), diagnosis.window(8000)
        print(f"{bias:>5.1f} {half_life:>10.2g} {needed:>21.2g}   lag {at.lag}")


if __name__ == "__main__":
    main()
