"""The gradient's norm looks healthy, so do long lags survive? The same gradient, taken apart by lag."""

import torch
from torch import nn

import lagreach


class Net(nn.Module):
    """A GRU at its default start with a number at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.read = nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number at every step."""
        return self.read(self.gru(x)[0])


def main() -> None:
    """Targets depend on lags 1 and 24; the gradient of the weights shows only the first."""
    torch.manual_seed(0)
    x = torch.randn(512, 64, 2)
    y = 0.3 * torch.randn(512, 64, 1)
    y[:, 1:] += x[:, :-1, :1]
    y[:, 24:] += x[:, :-24, :1]
    model = Net()
    lags = [0, 1, 4, 8, 16, 24, 48]

    (model(x) - y).square().mean().backward()
    print(f"norm of the whole gradient of weight_ih_l0: {model.gru.weight_ih_l0.grad.norm():.3g}")

    parts = lagreach.lag_gradients(model, x, y, lags=lags, reduce="norm")
    name = next(name for name in parts.grads if name.endswith("weight_ih_l0"))
    gain = lagreach.fidelity(model, x, y, lags)
    diagnosis = lagreach.diagnose(model, (x, y), lags=lags)
    print(f"{'lag':>5} {'part of it':>11} {'gain':>9} {'sequences needed':>17}")
    for i, lag in enumerate(lags):
        needed = float(diagnosis.required_if_present.sel(lag=lag))
        print(f"{lag:>5} {parts.grads[name][i]:>11.2e} {gain.exact[i]:>9.1e} {needed:>17.2g}")


if __name__ == "__main__":
    main()
