"""A minGRU of your own forgets within a step or two at its usual start; which gate biases would reach 64 steps?"""

import torch
from torch import nn

import lagreach


class MinGRU(nn.Module):
    """A gate and a candidate, both read from the input alone."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.linear_z, self.linear_h = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """States after each step."""
        z, candidate = torch.sigmoid(self.linear_z(x)), self.linear_h(x)
        state, states = torch.zeros_like(z[:, 0]), []
        for t in range(x.shape[1]):
            state = (1 - z[:, t]) * state + z[:, t] * candidate[:, t]
            states.append(state)
        return torch.stack(states, dim=1)


def main() -> None:
    """What the gates hold before, what is suggested, and what they hold with it."""
    torch.manual_seed(0)
    model = nn.Sequential(MinGRU(3, 16), nn.Linear(16, 1))
    x = torch.randn(32, 96, 3)
    advice = lagreach.advise_gates(model, x, lag=64)
    print(advice)
    advice.apply(model)
    print("with these biases, on the same 32 sequences:")
    print(lagreach.advise_gates(model, x, lag=64))


if __name__ == "__main__":
    main()
