"""Copy memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from lagreach.errors import InputError
from lagreach.tasks._task import Task, check_count


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """Some symbols at the start are to be repeated, in order, at the end (Hochreiter and Schmidhuber 1997).

    Inputs are one-hot: a symbol at each of the first `items` steps, then blanks, with a cue one step before recall begins.
    Only the last `items` steps count, and each symbol is wanted `length - items` steps after it was shown: the only lag.
    Its score is the accuracy above chance, ``(accuracy - 1/symbols) / (1 - 1/symbols)``.

    Examples
    --------
    >>> Copy(length=50, items=5).lags
    (45,)
    """

    name: ClassVar[str] = "copy"
    loss: ClassVar[str] = "cross_entropy"

    length: int = 100
    items: int = 10
    symbols: int = 8
    noise_floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_count("items", self.items)
        check_count("symbols", self.symbols, 2)
        check_count("length", self.length)
        if self.length <= 2 * self.items:
            raise InputError(
                "the symbols do not fit twice into the sequence, with room for a cue",
                got=f"{self.items} items in {self.length} steps",
                expected=f"length of at least {2 * self.items + 1}",
            )

    @property
    def input_size(self) -> int:
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        return self.symbols

    @property
    def lags(self) -> tuple[int, ...]:
        return (self.length - self.items,)

    @property
    def chance(self) -> float:
        """Loss of guessing: log of the number of symbols."""
        return math.log(self.symbols)

    def mask(self) -> Float[Tensor, "time"]:
        return (torch.arange(self.length) >= self.length - self.items).float()

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = generator.device
        shown = torch.randint(self.symbols, (sequences, self.items), generator=generator, device=device)
        seen: Int[Tensor, "seq time"] = torch.full((sequences, self.length), self.symbols, device=device)
        seen[:, : self.items] = shown
        seen[:, self.length - self.items - 1] = self.symbols + 1
        y = torch.zeros(sequences, self.length, dtype=torch.int64, device=device)
        y[:, self.length - self.items :] = shown
        return one_hot(seen, self.input_size).float(), y

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        recall = slice(self.length - self.items, None)
        accuracy = (output[:, recall].argmax(-1) == y[:, recall]).double().mean().cpu()
        return ((accuracy - 1 / self.symbols) / (1 - 1 / self.symbols))[None]
