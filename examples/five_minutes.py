"""The shortest complete use: a model, some sequences, and how far back they can teach it."""

import torch
from torch import nn

import lagreach


class Net(nn.Module):
    """Any model with a recurrent layer inside; here an LSTM with a number at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 16, batch_first=True)
        self.read = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number at every step."""
        return self.read(self.lstm(x)[0])


def main() -> "lagreach.diagnosis.result.Diagnosis":
    """The target is the first input of five steps ago, in noise."""
    torch.manual_seed(0)
    x = torch.randn(600, 32, 2)
    y = 0.5 * torch.randn(600, 32, 1)
    y[:, 5:] += x[:, :-5, :1]

    d = lagreach.diagnose(Net(), (x, y), lags=[0, 1, 2, 5, 10, 20])
    print(d)
    print(d.window(8000))
    print(f"a dependency at lag 20 would need {float(d.required_if_present.sel(lag=20)):.2g} sequences")
    return d


if __name__ == "__main__":
    main()
