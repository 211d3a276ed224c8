"""It does not learn: too few sequences, too little memory, or nothing there? Events 40 steps apart, 500 sequences."""

import torch

import lagreach


def main() -> None:
    """A power analysis before there is a model, then what binds at each lag for two kinds of gates."""
    plan = lagreach.plan("exponential", tau=8, sigma=2.0, sequences=500)
    print(f"guess: forgetting over 8 steps, noise twice the signal: 500 sequences show lags up to {plan.mean.window}")

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 80, 2, generator=generator)
    y = 0.5 * torch.randn(500, 80, 1, generator=generator)
    y[:, 40:] += 0.7 * x[:, :-40, :1]
    for overwritten in (0.5, 0.05):
        model = lagreach.GatedRNN("diag_gate", 2, 16, 1, gate_init=overwritten, generator=generator)
        diagnosis = lagreach.diagnose(model, (x, y), lags=[0, 4, 10, 20, 40, 60], require=[40])
        window = diagnosis.layers[0].window
        print(f"\n{overwritten:.0%} of the state overwritten at each step:")
        print(f"  lag 40: {window.limit(40)}")
        print(f"  sequences needed for what the data hold: {float(diagnosis.required.sel(lag=40)):.3g}")
        print(f"  if 5 % of the target depended on it: {float(diagnosis.required_if_present.sel(lag=40)):.3g}")
        print(f"  gradient noise: kappa {window.concentration.exponent:.3g} ({window.concentration.status.name})")


if __name__ == "__main__":
    main()
