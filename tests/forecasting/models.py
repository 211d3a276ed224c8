"""Small models of many kinds, and data with a dependency that is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Reservoir(nn.Module):
    """A fixed linear recurrence and a readout that is trained: the linearisation is exact."""

    def __init__(self, size: int = 8, *, frozen: bool = True, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        A = 0.9 * torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
        self.A = nn.Parameter(A, requires_grad=not frozen)
        self.b = nn.Parameter(torch.randn(size, generator=generator), requires_grad=not frozen)
        self.read = nn.Linear(size, 1)
        with torch.no_grad():
            self.read.weight.zero_()
            self.read.bias.zero_()

    def states(self, x: Tensor) -> Tensor:
        s, states = x.new_zeros(len(x), len(self.b)), []
        for x_t in x.unbind(1):
            s = s @ self.A.T + x_t * self.b
            states.append(s)
        return torch.stack(states, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.states(x))


class Delays(nn.Module):
    """Every weight is one lag: a network that is linear in its weights, but none of them is a readout."""

    def __init__(self, lags: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(lags))

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x[..., 0], (len(self.taps) - 1, 0)).unfold(1, len(self.taps), 1)
        return (padded * self.taps.flip(0)).sum(-1, keepdim=True)


class Recurrent(nn.Module):
    """A layer of `torch.nn` with a readout at every step, or at the last one."""

    def __init__(self, kind: str = "GRU", outputs: int = 1, last: bool = False, **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, kind)(2, 8, batch_first=True, **options)
        self.read = nn.Linear(16 if options.get("bidirectional") else 8, outputs)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)[0]
        return self.read(states[:, -1] if self.last else states)


class Packed(Recurrent):
    """Packs its sequences, which have lengths."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.read(states)


class CellLoop(nn.Module):
    """A loop over a cell, with the readout called at every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.read = nn.GRUCell(2, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = x.new_zeros(len(x), 8), []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)
            outputs.append(self.read(h))
        return torch.stack(outputs, dim=1)


class Tokens(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, tokens: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer, self.read = (
            nn.Embedding(tokens, 6),
            nn.GRU(6, 8, batch_first=True),
            nn.Linear(8, tokens),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.layer(self.embed(x))[0])


class Attention(nn.Module):
    """A causal transformer layer: no recurrence at all."""

    def __init__(self, time: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.place = nn.Linear(2, 8), nn.Parameter(0.3 * torch.randn(time, 8))
        self.layer, self.read = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return self.read(self.layer(self.inward(x) + self.place, src_mask=mask, is_causal=True))


class Unfinished(nn.Module):
    """No linear layer at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weight = nn.GRU(2, 8, batch_first=True), nn.Parameter(0.3 * torch.randn(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0] @ self.weight


def lagged(x: Tensor, lag: int) -> Tensor:
    """The first input, so many steps later."""
    return nn.functional.pad(x[..., :1], (0, 0, lag, 0))[:, : x.shape[1]]


def data(sequences: int = 96, time: int = 16, inputs: int = 2, lag: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise in; out comes the first input some steps later, with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sequences, time, inputs, generator=generator)
    return x, 0.8 * lagged(x, lag) + 0.4 * torch.randn(sequences, time, 1, generator=generator)
