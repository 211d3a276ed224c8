"""Which architecture sees, reads and relies on a token six steps back? An LSTM, a Mamba, a gated delta net, a Transformer.

All four have about 7,000 weights and one task: the target at a step is the token six steps before. Before and after a short
training, `diagnose` says how many sequences a gradient needs to stand out at each lag, and how much the model relies on it;
`forecast` what the readout, and what all weights, could recover. Run with ``--figure FILE`` it draws all of that.
"""

import argparse
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import lagreach
from lagreach.report.style import BLUE, FAINT, VERMILION, new_axes

TOKENS, TIME, LAG = 8, 16, 6
LAGS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
SEQUENCES = 256  # that each diagnosis and each forecast looks at


class Recurrent(nn.Module):
    """An LSTM between an embedding and a readout."""

    def __init__(self, width: int = 16, units: int = 32) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(TOKENS, width), nn.LSTM(width, units, batch_first=True)
        self.read = nn.Linear(units, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at every step."""
        return self.read(self.layer(self.embed(tokens))[0])


class DeltaLayer(nn.Module):
    """A gated delta rule: a matrix that forgets, and replaces what it holds at a key (Yang et al. 2024)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.out = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.project, self.gates = nn.Linear(width, 3 * width), nn.Linear(width, 2 * heads)

    def forward(self, x: Tensor) -> Tensor:
        """Add what is read from the memory."""
        hidden = self.norm(x)
        mixed = nn.functional.silu(self.conv(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        query, key, value = self.project(mixed).unflatten(-1, (3, self.heads, -1)).unbind(2)
        query, key = nn.functional.normalize(query, dim=-1), nn.functional.normalize(key, dim=-1)
        keep, write = torch.sigmoid(self.gates(hidden) + 2.0).chunk(2, -1)
        memory, shown = torch.zeros_like(key[:, 0, :, :, None] * value[:, 0, :, None]), []
        for step in range(x.shape[1]):
            memory = keep[:, step, :, None, None] * memory
            held = torch.einsum("nhkv,nhk->nhv", memory, key[:, step])
            new = write[:, step, :, None] * (value[:, step] - held)
            memory = memory + key[:, step, :, :, None] * new[:, :, None]
            shown.append(torch.einsum("nhkv,nhk->nhv", memory, query[:, step]).flatten(1))
        return x + self.out(torch.stack(shown, 1))


class DeltaNet(nn.Module):
    """Layers of the gated delta rule."""

    def __init__(self, width: int = 28, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.layers = nn.Sequential(*(DeltaLayer(width, heads) for _ in range(layers)))
        self.read = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at every step."""
        return self.read(self.layers(self.embed(tokens)))


class Transformer(nn.Module):
    """Causal attention with learned positions."""

    def __init__(self, width: int = 22, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, width), nn.Parameter(torch.randn(TIME, width) / 2)
        layer = nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.read = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at every step."""
        steps = tokens.shape[1]
        mask = torch.full((steps, steps), -torch.inf).triu(1).to(self.place)
        return self.read(self.layers(self.embed(tokens) + self.place[:steps], mask=mask))


def mamba() -> nn.Module:
    """The Mamba of the transformers library, as it is."""
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # of fast kernels that are not there
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)  # torch's own, of itself
    shape = {"hidden_size": 19, "num_hidden_layers": 2, "state_size": 8, "vocab_size": TOKENS}
    return MambaForCausalLM(MambaConfig(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=None))


MODELS = {"LSTM": Recurrent, "Mamba": mamba, "gated delta net": DeltaNet, "Transformer": Transformer}


def sample(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens, and those of six steps before as targets, nine times of ten."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(0, TOKENS, (count, TIME), generator=generator) for _ in range(2))
    copied = torch.rand(count, TIME, generator=generator) < 0.9
    targets[:, LAG:] = torch.where(copied[:, LAG:], tokens[:, :-LAG], targets[:, LAG:])
    return tokens, targets


def train(model: nn.Module, steps: int) -> float:
    """Train with Adam on new sequences at every step; the share of targets that it then gets right."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        tokens, targets = sample(64, 10**6 + step)
        loss = nn.functional.cross_entropy(logits(model, tokens)[:, LAG:].flatten(0, 1), targets[:, LAG:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    tokens, targets = sample(SEQUENCES, 1)
    with torch.no_grad():
        return float((logits(model, tokens).argmax(-1) == targets)[:, LAG:].float().mean())


def logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """What a model says, also where it returns a record."""
    output = model(tokens)
    return output if isinstance(output, Tensor) else output.logits


@dataclass(frozen=True)
class Look:
    """Four numbers by lag: sequences needed to see a dependency, shares that can be recovered, and reliance."""

    seen: np.ndarray
    readable: np.ndarray
    reachable: np.ndarray
    reliance: np.ndarray


def look(model: nn.Module, seed: int) -> Look:
    """Diagnose and forecast, on sequences that were not trained on."""
    data = sample(SEQUENCES, seed)
    window = lagreach.diagnose(model, data, "cross_entropy", LAGS).layers[0].window
    told = lagreach.forecast(model, data, 1000, LAGS, loss="cross_entropy", strength=0.5, directions=64)
    reliance = dict(zip(window.reliance.lags, window.reliance.rise.tolist(), strict=True))
    return Look(
        seen=window.probe.sequences,
        readable=told.readable.sel(sequences=1000).values,
        reachable=told.reachable.sel(sequences=1000).values,
        reliance=np.array([reliance.get(lag, np.nan) for lag in LAGS]),
    )


def draw(looks: dict[str, tuple[Look, Look]], accuracy: dict[str, float], path: Path) -> None:
    """One column for each architecture, one row for each question."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 7.4), dpi=130, layout="constrained")
    rows = (
        ("seen", "sequences until a\ngradient stands out"),
        ("readable", "share the readout\nrecovers"),
        ("reachable", "share all weights\nrecover"),
        ("reliance", "rise of the loss without\nthat token (of the loss)"),
    )
    grid = figure.subplots(len(rows), len(looks), sharex=True, sharey="row", squeeze=False)
    for column, (name, both) in enumerate(looks.items()):
        for row, (quantity, text) in enumerate(rows):
            axes = new_axes(grid[row, column])
            axes.axvline(LAG, color=FAINT, linewidth=0.8, linestyle=":")
            for stage, colour, marker, shown in zip(("before", "after"), (BLUE, VERMILION), "os", both, strict=True):
                values = getattr(shown, quantity)
                line = "" if quantity == "reliance" else "-"  # which is measured at some lags only
                axes.plot(
                    LAGS, values, linestyle=line, color=colour, marker=marker, markersize=3.5, label=f"{stage} training"
                )
            if column == 0:
                axes.set_ylabel(text, fontsize=9)
            if row == 0:
                axes.set_title(f"{name}\n{100 * accuracy[name]:.0f} % right after training", fontsize=10)
        grid[0, column].set_yscale("log")
        grid[0, column].set_xticks(range(0, LAGS[-1] + 1, 2))
        grid[-1, column].set_xlabel("lag (steps back)", fontsize=9)
    grid[1, 0].legend(fontsize=8, frameon=False)
    figure.savefig(path)


def main(steps: int = 250, figure: Path | None = None) -> None:
    """Look at every architecture before and after training, and print what is found at the planted lag."""
    if find_spec("transformers") is None:
        print("skipped: this example needs a Mamba (pip install lagreach[transformers])")
        return
    at, looks, accuracy = LAGS.index(LAG), {}, {}
    print(f"the target is the token {LAG} steps before; at that lag, before -> after {steps} steps of training:")
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = build()
        weights = sum(weight.numel() for weight in model.parameters())
        before = look(model, 2)
        accuracy[name] = train(model, steps)
        looks[name] = before, look(model, 3)
        seen, readable, reachable, reliance = (
            [getattr(part, quantity)[at] for part in looks[name]]
            for quantity in ("seen", "readable", "reachable", "reliance")
        )
        print(
            f"{name:16s} {weights:5d} weights | seen from {seen[0]:.3g} -> {seen[1]:.3g} sequences | readable "
            f"{readable[0]:.2f} -> {readable[1]:.2f} | reachable {reachable[0]:.2f} -> {reachable[1]:.2f} | "
            f"reliance {reliance[0]:.2f} -> {reliance[1]:.2f} | {100 * accuracy[name]:.0f} % right",
            flush=True,
        )
    if figure is not None:
        draw(looks, accuracy, figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--figure", type=Path, default=None)
    asked, _ = parser.parse_known_args()
    main(asked.steps, asked.figure)
