"""How long should sequences be, and how far should one backpropagate? A suggestion, and chunks held against it."""

import torch

import lagreach


def main() -> None:
    """Targets depend on lag 8; sequences of 64 steps are diagnosed whole, then cut into chunks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 64, 2, generator=generator)
    y = 0.5 * torch.randn(256, 64, 1, generator=generator)
    y[:, 8:] += 0.7 * x[:, :-8, :1]
    model = lagreach.GatedRNN("diag_gate", 2, 16, 1, gate_init=0.15, generator=generator)

    diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 4, 8, 16, 32])
    print(lagreach.suggest(diagnosis))

    print(f"\n{'steps':>6} {'chunks there are':>17} {'chunks that lag 8 needs':>24}")
    for steps in (64, 32, 16, 10):
        chunks = [whole.unfold(1, steps, steps).flatten(0, 1).transpose(1, 2) for whole in (x, y)]
        needed = float(lagreach.diagnose(model, tuple(chunks), lags=[0, 4, 8]).required.sel(lag=8))
        print(f"{steps:>6} {len(chunks[0]):>17} {needed:>24.0f}")


if __name__ == "__main__":
    main()
