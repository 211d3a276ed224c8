"""Forget gates, cell states and half-lives of torch layers at every step, at the speed of whole sequences."""

import torch
from torch import nn

import lagreach


class Net(nn.Module):
    """An LSTM above a GRU, as somebody else wrote it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRU(3, 8, batch_first=True), nn.LSTM(8, 6, batch_first=True)
        self.read = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number per sequence."""
        return self.read(self.lstm(self.gru(x)[0])[0][:, -1])


def main() -> None:
    """No change to the model, no loop over cells."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(16, 50, 3)

    retention = lagreach.retention(model, x)
    print(retention)
    layer = retention["lstm"]
    forget = layer.log_decay.exp()  # (sequences, time, unit): the forget gate itself
    print(f"forget gate of lstm: shape {tuple(forget.shape)}, first values {forget[0, :3, 0].tolist()}")
    print(f"what two units keep over 10 steps: {10 ** layer.log10_gain([10])[0, :2]}")

    lstm = nn.LSTM(3, 6, batch_first=True)
    states = lagreach.rollout(lstm, x).states  # (sequences, time, [h; c])
    h, c = states[..., :6], states[..., 6:]
    print(f"cell states of a bare nn.LSTM: {tuple(c.shape)}; h is torch's: {torch.allclose(h, lstm(x)[0], atol=1e-6)}")


if __name__ == "__main__":
    main()
