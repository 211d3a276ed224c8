"""What the inputs are like: how they vary, which random directions of them a probe plants, and whether they repeat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.gradients.contrast import make_probe

WIDE = 2048  # inputs beyond which they are no longer whitened
LOOK_BACK = 4  # steps over which inputs are compared with themselves
RELATED = 0.05  # autocorrelation from which inputs count as correlated in time
CHANCE = 1e-3  # of saying so of inputs that are not

Plant = Callable[[Tensor], Float[Tensor, "probe row"]]


class InputMoments:
    """Sums over the valid steps of all sequences: counts of tokens, or first and second moments of numbers."""

    def __init__(self, tokens: bool) -> None:
        self.tokens = tokens
        self.steps = 0
        self._counts = np.zeros(0, dtype=np.int64)
        self._total: Tensor | None = None
        self._squares: Tensor | None = None
        self._again = torch.zeros(LOOK_BACK + 1, dtype=torch.float64)[:, None]  # (back, input) products with old inputs
        self._again_steps = torch.zeros(LOOK_BACK + 1, dtype=torch.float64)

    def add(self, inputs: Tensor, inside: Bool[Tensor, "seq time"]) -> None:
        """Add sequences, (seq, time) tokens or (seq, time, input) numbers."""
        inputs, inside = inputs.cpu(), inside.cpu()
        self.steps += int(inside.sum())
        if self.tokens:
            new = np.bincount(inputs[inside].numpy(), minlength=len(self._counts))
            new[: len(self._counts)] += self._counts
            self._counts = new
        else:
            x = inputs[inside].double()
            squares = x.T @ x if x.shape[1] <= WIDE else x.square().sum(0)
            self._total = x.sum(0) + (0 if self._total is None else self._total)
            self._squares = squares + (0 if self._squares is None else self._squares)
        time = inputs.shape[1]
        for back in range(min(LOOK_BACK + 1, time)):
            now, then = slice(back, time), slice(0, time - back)
            both = inside[:, now] & inside[:, then]
            pair = inputs[:, now][both], inputs[:, then][both]
            products = (pair[0] == pair[1]).sum()[None] if self.tokens else (pair[0].double() * pair[1]).sum(0)
            if products.shape != self._again.shape[1:]:
                self._again = self._again.expand(-1, len(products)).clone()
            self._again[back] += products
            self._again_steps[back] += int(both.sum())

    def merge(self, other: InputMoments) -> None:
        """Take in the sums of other sequences."""
        self.steps += other.steps
        counts = np.zeros(max(len(self._counts), len(other._counts)), dtype=np.int64)
        for part in (self, other):
            counts[: len(part._counts)] += part._counts
        self._counts = counts
        if other._total is not None and other._squares is not None:
            self._total = other._total + (0 if self._total is None else self._total)
            self._squares = other._squares + (0 if self._squares is None else self._squares)
        self._again = self._again + other._again
        self._again_steps = self._again_steps + other._again_steps

    def probe(self, probes: int, seed: int) -> Plant:
        """A function that gives, for inputs (row, ...), as many planted values, each of mean zero and variance one.

        Numbers are whitened, and random directions of them taken; a token has a random value of its own.
        """
        if self.tokens:
            return self._token_probe(probes, seed)
        assert self._total is not None
        assert self._squares is not None
        mean = self._total / self.steps
        generator = torch.Generator().manual_seed(seed)
        if self._squares.ndim == 1:  # too wide to whiten: every input has variance one, and so has a sum, about
            spread = (self._squares / self.steps - mean.square()).clamp(min=0).sqrt()
            scale = torch.where(spread > 0, 1 / torch.where(spread > 0, spread, 1.0), 0.0)
            direction = torch.randn(probes, len(mean), generator=generator, dtype=torch.float64)
            direction = direction / (direction * (scale > 0)).norm(dim=1, keepdim=True) * scale
            return lambda x: direction @ (x.double() - mean).T
        covariance = self._squares / self.steps - torch.outer(mean, mean)
        drawn = make_probe(mean, covariance, 1, probes, generator)
        return lambda x: drawn.planted(x.double()[None])[:, 0]

    def _token_probe(self, probes: int, seed: int) -> Plant:
        share = self._counts / self._counts.sum()
        values = np.random.default_rng(seed).standard_normal((len(share), probes))
        values = values - share @ values
        spread = np.sqrt(share @ np.square(values))
        if (share > 0).sum() < 2:
            raise InputError(
                "the inputs do not vary, so nothing can depend on them",
                got="one single token",
                expected="inputs that differ between sequences or steps",
            )
        table = torch.from_numpy(values / spread)
        return lambda tokens: table[tokens].T

    @property
    def correlated(self) -> bool:
        """Whether inputs resemble those of up to four steps before, more than by chance."""
        from scipy.special import ndtri

        known = self._again_steps > 1
        mean = self._again / torch.where(known, self._again_steps, 1.0)[:, None]
        if self.tokens:
            share = torch.from_numpy(self._counts / self._counts.sum())
            chance = share.square().sum()
            related = (mean - chance) / (1 - chance)
        else:
            assert self._total is not None
            centre = (self._total / self.steps).square()
            variance = mean[0] - centre
            related = torch.where(variance > 0, (mean - centre) / torch.where(variance > 0, variance, 1.0), 0.0)
        related = related[1:][known[1:]]
        if not len(related):
            return False
        least = float(self._again_steps[1:][known[1:]].min())
        by_chance = -ndtri(CHANCE / (2 * related.numel())) / least**0.5
        return bool(related.abs().max() > max(RELATED, by_chance))
