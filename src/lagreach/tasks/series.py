"""A real series: electricity demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.tasks._real import SPLITS, load_module
from lagreach.tasks._task import Task, check_choice, check_count, check_lags, check_range, delayed, set_option, slopes


@dataclass(frozen=True, kw_only=True)
class Series(Task):
    """Real data: half-hourly electricity demand in England and Wales, predicted half a day ahead (Taylor 2003).

    4032 values, twelve weeks of summer 2000, from the package pmdarima; demand repeats itself after a day (48 steps) and,
    better, after a week (336). The first part of the series is for training, the rest for testing; both are scaled by the
    mean and deviation of the training part. Sequences are windows at random places, so *they overlap*: a hundred of them
    are far fewer than a hundred independent ones, and estimates of uncertainty that take them for independent are too
    confident. Steps that have not seen all lags do not count.

    The lags are ``period - horizon``. The score of a lag is its coefficient in a regression of the output on the present
    value and all lags up to this one, over the same coefficient of the target: what the network has of the dependence at
    this lag, beyond that at nearer ones.

    Examples
    --------
    >>> Series(horizon=24, periods=(48, 336)).lags
    (24, 312)
    """

    name: ClassVar[str] = "series"

    horizon: int = 24
    periods: Sequence[int] = (48, 336)
    length: int = 384
    split: str = "train"
    test_share: float = 0.25
    input_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("horizon", self.horizon)
        check_choice("split", self.split, SPLITS)
        check_range("test_share", self.test_share, 0.0, 0.9, open_low=True)
        set_option(self, "periods", tuple(self.periods))
        if any(period <= self.horizon for period in self.periods):
            raise InputError(
                "the horizon must be shorter than every period, or the value a period ago is not known yet",
                got=f"horizon {self.horizon}, periods {self.periods}",
            )
        check_lags(self.lags, self.length)

    @property
    def lags(self) -> tuple[int, ...]:
        return tuple(period - self.horizon for period in self.periods)

    def mask(self) -> Float[Tensor, "time"]:
        return (torch.arange(self.length) >= self.lags[-1]).float()

    def values(self) -> Float[Tensor, "step"]:
        """Return this part of the series, scaled."""
        demand = _demand()
        trained = len(demand) - round(self.test_share * len(demand))
        train = demand[:trained]
        scaled = (demand - train.mean()) / train.std()
        return scaled[:trained] if self.split == "train" else scaled[trained:]

    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        values = self.values()
        places = len(values) - self.length - self.horizon + 1
        if places < 1:
            raise InputError(
                "this part of the series is shorter than one sequence",
                got=f"{len(values)} values for {self.length} steps and a horizon of {self.horizon}",
                fix="use a shorter length, or another test_share",
            )
        start = torch.randint(places, (sequences, 1), generator=generator, device=generator.device).cpu()
        x = values[start + torch.arange(self.length)]
        y = values[start + torch.arange(self.length) + self.horizon]
        return x.float()[..., None].to(generator.device), y.float()[..., None].to(generator.device)

    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        seen = slice(self.lags[-1], None)
        past = delayed(x[..., 0], (0, *self.lags))[:, seen]
        target, answer = y[:, seen, 0].double(), output[:, seen, 0]
        known = [past[..., : i + 2] for i in range(len(self.lags))]
        return torch.stack([slopes(k, answer)[-1] / slopes(k, target)[-1] for k in known])


@lru_cache(maxsize=1)
def _demand() -> Float[Tensor, "step"]:
    return torch.from_numpy(load_module("pmdarima.datasets", "pmdarima").load_taylor()).double()
