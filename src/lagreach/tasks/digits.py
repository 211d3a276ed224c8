"""Handwritten digits, read pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.tasks._real import SPLITS, load_module
from lagreach.tasks._task import Task, check_choice, check_range, last_step

SIDE, CLASSES, BRIGHTEST = 8, 10, 16.0


@dataclass(frozen=True, kw_only=True)
class Digits(Task):
    """Real pictures: scikit-learn's 1797 digits of 8 x 8 pixels, classified at the last step.

    One pixel a step (64 steps), or one row (8 steps) if `rows`; brightness from 0 to 1. Samples are drawn from the chosen
    part *with replacement*, so a thousand sequences hold fewer than a thousand pictures. Lags are not planted here: the
    one that is named leads to the middle of the picture, and its score is the accuracy above chance, wherever in the
    picture the network found it.

    Parameters
    ----------
    split
        "train" or "test": parts without a picture in common.
    split_seed, test_share
        How pictures are dealt to the parts.
    """

    name: ClassVar[str] = "digits"
    loss: ClassVar[str] = "cross_entropy"

    rows: bool = False
    split: str = "train"
    split_seed: int = 0
    test_share: float = 0.25
    output_size: ClassVar[int] = CLASSES

    def __post_init__(self) -> None:
        check_choice("split", self.split, SPLITS)
        check_range("test_share", self.test_share, 0.0, 1.0)
        if not 0.0 < self.test_share < 1.0:
            raise InputError(
                "both parts need pictures", got=f"test_share={self.test_share}", expected="between 0 and 1"
            )

    @property
    def length(self) -> int:
        return SIDE if self.rows else SIDE * SIDE

    @property
    def input_size(self) -> int:
        return SIDE * SIDE // self.length

    @property
    def lags(self) -> tuple[int, ...]:
        middle = SIDE // 2 - 1  # row, and column
        return (self.length - 1 - (middle if self.rows else middle * SIDE + middle),)

    def mask(self) -> Float[Tensor, "time"]:
        return last_step(self.length)

    def members(self) -> Int[Tensor, "picture"]:
        """Numbers of the pictures in this part."""
        order = torch.randperm(len(_pictures()[1]), generator=torch.Generator().manual_seed(self.split_seed))
        tests = round(self.test_share * len(order))
        return order[:tests] if self.split == "test" else order[tests:]

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures, labels = _pictures()
        members = self.members()
        chosen = members[torch.randint(len(members), (sequences,), generator=generator, device=generator.device).cpu()]
        y = torch.zeros(sequences, self.length, dtype=torch.int64)
        y[:, -1] = labels[chosen]
        x = pictures[chosen].view(sequences, self.length, self.input_size)
        return x.to(generator.device), y.to(generator.device)

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        accuracy = (output[:, -1].argmax(-1) == y[:, -1]).double().mean().cpu()
        return ((accuracy - 1 / CLASSES) / (1 - 1 / CLASSES))[None]


@lru_cache(maxsize=1)
def _pictures() -> tuple[Float[Tensor, "picture pixel"], Int[Tensor, "picture"]]:
    data = load_module("sklearn.datasets", "scikit-learn").load_digits()
    return torch.from_numpy(data.data).float() / BRIGHTEST, torch.from_numpy(data.target).long()
