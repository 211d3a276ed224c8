"""Numbers of small diagnoses that moving code must not move: ``python -m tests.diagnosis.golden`` writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagreach import GatedRNN, diagnose
from lagreach.diagnosis.result import Diagnosis

STORED = Path(__file__).with_name("golden.json")
CELLS = ("const_gate", "shared_gate", "diag_gate", "gru", "lstm")
LAGS = (0, 1, 2, 4, 8)


class Reads(nn.Module):
    """A layer of torch with a readout of every step."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.read = layer, nn.Linear(layer.hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Output of every step."""
        return self.read(self.layer(x)[0])


class Causal(nn.Module):
    """One layer of a Transformer, whose lags are those of the whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(2, 8), nn.Linear(8, 1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Output of every step."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.out(self.layer(self.into(x), src_mask=mask, is_causal=True))


def models() -> dict[str, nn.Module]:
    """Networks in double precision, from fixed seeds."""
    generator = torch.Generator().manual_seed(0)
    gated: dict[str, nn.Module] = {
        name: GatedRNN(name, 2, 6, 1, gate_init=0.3, generator=generator, dtype=torch.float64) for name in CELLS
    }
    torch.manual_seed(0)
    of_torch = {
        "nn.LSTM": Reads(nn.LSTM(2, 6, batch_first=True)),
        "nn.GRU, two layers": Reads(nn.GRU(2, 6, 2, batch_first=True)),
        "a Transformer": Causal(),
    }
    return gated | {name: model.double() for name, model in of_torch.items()}


def numbers() -> dict[str, Any]:
    """Every curve of every network's diagnosis, by name; what is not finite as text."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 16, 2, generator=generator, dtype=torch.float64)
    y = 0.5 * torch.randn(96, 16, 1, generator=generator, dtype=torch.float64)
    y[:, 2:] += x[:, :-2, :1]
    return {name: _curves(diagnose(model, (x, y), lags=LAGS, progress=False)) for name, model in models().items()}


def _curves(diagnosis: Diagnosis) -> dict[str, list[list[float | str]]]:
    by_name: dict[str, list[list[float | str]]] = {}
    for layer in diagnosis.layers:
        for curve in layer.window.curves.values():
            for name, values in curve.numbers.items():
                by_name.setdefault(name, []).append([v if math.isfinite(v) else str(v) for v in values.tolist()])
    return by_name


if __name__ == "__main__":
    STORED.write_text(json.dumps(numbers(), indent=1))
