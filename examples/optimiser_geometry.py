"""What does Adam see sooner than plain descent? A quiet input that matters, beside a loud one that hardly does."""

import torch

import lagreach


def main(sequences: int = 512) -> tuple["lagreach.diagnosis.result.Diagnosis", "lagreach.diagnosis.result.Diagnosis"]:
    """The target follows a quiet input and, a little, a loud one; both four steps back."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, 24, 2, generator=generator) * torch.tensor([1.0, 12.0])
    y = torch.randn(sequences, 24, 1, generator=generator)
    y[:, 4:] += x[:, :-4] @ torch.tensor([[0.7], [0.01]])
    model = lagreach.GatedRNN("const_gate", 2, 8, 1, gate_init=0.2, generator=generator)
    with torch.no_grad():
        model.layers[0]["W_h"][:, 1] *= 0.02
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for start in range(0, sequences, 32):
        optimizer.zero_grad()
        (model(x[start : start + 32]) - y[start : start + 32]).square().mean().backward()
        optimizer.step()
    options = {"lags": [0, 2, 4, 8], "strength": 0.2}
    plain = lagreach.diagnose(model, (x, y), **options)
    adam = lagreach.diagnose(model, (x, y), optimizer=optimizer, **options)
    for name, diagnosis in (("plain descent", plain), ("Adam", adam)):
        needed = {int(lag): f"{n:.3g}" for lag, n in diagnosis.required.to_series().items()}
        print(f"sequences needed for what the data hold, {name}: {needed}")
    return plain, adam


if __name__ == "__main__":
    main()
