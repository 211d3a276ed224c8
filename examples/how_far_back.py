"""How many steps does this LSTM look back? Which lags the data hold, which ones it could learn, which ones it uses."""

import torch

import lagreach


def series(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets made of the inputs 2 and 9 steps ago; the network is asked about lags up to 30."""
    x = torch.randn(count, 48, 2, generator=generator)
    y = 0.5 * torch.randn(count, 48, 1, generator=generator)
    y[:, 2:] += 0.7 * x[:, :-2, :1]
    y[:, 9:] += 0.7 * x[:, :-9, :1]
    return x, y


def main(steps: int = 300) -> None:
    """Diagnose before and after training, on sequences that were not trained on."""
    generator = torch.Generator().manual_seed(0)
    model = lagreach.GatedRNN("lstm", 2, 16, 1, forget_bias=1.0, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held_out, lags = series(600, generator), [0, 1, 2, 4, 9, 15, 30]
    before = lagreach.diagnose(model, held_out, lags=lags, sequences=5000)
    for _ in range(steps):
        x, y = series(32, generator)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    after = lagreach.diagnose(model, held_out, lags=lags, sequences=5000)

    print("sequences a dependency on each lag needs (those the data hold are marked *), and what binds there")
    print(f"{'lag':>5} {'before':>10} {'after':>10}   after training")
    for lag in lags:
        mark = "*" if lag in after.layers[0].window.dependences else " "
        needed = [float(d.required_if_present.sel(lag=lag)) for d in (before, after)]
        print(f"{lag:>4}{mark} {needed[0]:>10.3g} {needed[1]:>10.3g}   {after.limits[lag].name[6:].lower()}")
    print(lagreach.compare([before, after], ["before", "after"], sequences=5000))


if __name__ == "__main__":
    main()
