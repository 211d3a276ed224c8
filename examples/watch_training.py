"""Does the window open while an LSTM trains, and how far is it worth backpropagating? A watch in a plain loop."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import lagreach


class Tagger(nn.Module):
    """An LSTM with a linear readout at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 12, batch_first=True)
        self.drop, self.read = nn.Dropout(0.1), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number at every step."""
        return self.read(self.drop(self.lstm(x)[0]))


def sample(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets that repeat the first input of six steps ago, with noise."""
    x = torch.randn(count, 32, 2, generator=generator)
    y = 0.5 * torch.randn(count, 32, 1, generator=generator)
    y[:, 6:] += x[:, :-6, :1]
    return x, y


def main(steps: int = 300) -> "lagreach.callbacks.Watch":
    """Train with Adam, look every hundred steps, and ask for a truncation at the end."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    curves: dict[int, float] = {}  # a tracker's stand-in

    def note(metrics: dict[str, float], step: int) -> None:
        curves[step] = metrics["lagreach/n_lag_6"]

    with tempfile.TemporaryDirectory() as folder:
        with lagreach.watch(
            model, sample(256, generator), every=100, lags=range(16), out=folder, logger=note, log_lags=[6]
        ) as watched:
            for _ in range(steps):
                x, y = sample(32, generator)
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
                watched.step()
        print(watched)
        print("files:", ", ".join(sorted(file.name for file in Path(folder).iterdir())))
    print("sequences that lag 6 needs, over training:", {step: round(n) for step, n in curves.items()})
    print(lagreach.suggest(watched.history[-1], lags=[6]))
    return watched


if __name__ == "__main__":
    main()
