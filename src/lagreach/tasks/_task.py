"""What a task is: seeded data that know the lags they depend on, and a score for each of these lags.

To add a task, write one file with a frozen dataclass that defines `draw`, `score` and the properties; its fields are its
options. `sample`, `batch` and `recovered` check their arguments and come with the base class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.errors import InputError


class Task(ABC):
    """Sequences with targets, drawn at will, and how much of each true lag a model has recovered.

    name : how users ask for it
    loss : "mse" or "cross_entropy", as `lagreach.diagnose` takes it

    `length`, `input_size`, `output_size` and `lags` may be options (fields) or follow from them (properties).
    """

    name: ClassVar[str]
    loss: ClassVar[str] = "mse"

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of time steps."""

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Width of the input."""

    @property
    def output_size(self) -> int:
        """Width of the output; the number of classes if the loss is cross-entropy."""
        return 1

    @property
    @abstractmethod
    def lags(self) -> Sequence[int]:
        """The true lags, a tuple, ascending: how many steps back the inputs lie that a target depends on."""

    @property
    def noise_floor(self) -> float | None:
        """Expected loss of the best possible predictor; None if it has no closed form."""
        return None

    def mask(self) -> Float[Tensor, "time"] | None:
        """Weights 0 or 1 of the steps that count in the loss, the same for all sequences; None if all count."""
        return None

    @abstractmethod
    def draw(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make data for `sample`, on the generator's device."""

    @abstractmethod
    def score(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        """Score an output for `recovered`."""

    @final
    def sample(self, sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw fresh inputs (seq, time, input) and targets, on the generator's device.

        Targets are (seq, time, output), or class numbers (seq, time) if the loss is cross-entropy. What they hold at the
        steps that `mask` leaves out is of no meaning.
        """
        check_count("sequences", sequences)
        return self.draw(sequences, generator)

    @final
    def batch(self, sequences: int, generator: torch.Generator) -> Batch:
        """Draw fresh data with the mask of every sequence, ready for `lagreach.diagnose`."""
        x, y = self.sample(sequences, generator)
        mask = self.mask()
        return Batch(x, y, None if mask is None else mask.to(x.device).expand(sequences, -1))

    @final
    def recovered(self, x: Tensor, y: Tensor, output: Tensor) -> Float[Tensor, "lag"]:
        """Score a model for each true lag: 0 if its output holds nothing of it, 1 if all of it.

        `x` and `y` should be fresh, not the data the model was trained on; `output` is the model's (seq, time, output).
        Scores are estimates from these sequences, so they may fall a little below 0 or above 1. They are float64, on the CPU.
        """
        steps = (len(x), self.length)
        wide = (*steps, self.output_size)
        expected = [(*steps, self.input_size), steps if self.loss == "cross_entropy" else wide, wide]
        got = [tuple(tensor.shape) for tensor in (x, y, output)]
        if got != expected:
            raise InputError(
                f"the {self.name} task cannot score arrays of these shapes",
                got="x {}, y {}, output {}".format(*got),
                expected="x {}, y {}, output {}".format(*expected),
                fix="pass x and y as `sample` gave them, and the model's output at every step",
            )
        return self.score(x.detach().double(), y.detach(), output.detach().double())


# --- scores -----------------------------------------------------------------------------------------------


def slopes(features: Float[Tensor, "*rows feature"], output: Float[Tensor, "*rows"]) -> Float[Tensor, "feature"]:
    """Coefficients of the features in a least-squares fit of the output, with an intercept.

    >>> x = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> slopes(x, 3 * x[:, 0] - x[:, 1] + 5).round(decimals=6)
    tensor([ 3., -1.], dtype=torch.float64)
    """
    rows, target = features.flatten(0, -2), output.flatten()
    rows = rows - rows.mean(0)
    gram = (rows.T @ rows).cpu()
    scale = gram.diagonal().sqrt()
    correlation = gram / scale / scale[:, None]
    if not bool((scale > 0).all()) or int(torch.linalg.matrix_rank(correlation, hermitian=True)) < len(gram):
        raise InputError(
            "these data cannot tell the lags apart",
            got=f"{len(rows)} steps for {len(gram)} lags",
            fix="score the model on more sequences",
        )
    return torch.linalg.solve(correlation, (rows.T @ (target - target.mean())).cpu() / scale) / scale


def delayed(signal: Float[Tensor, "seq time"], lags: Sequence[int]) -> Float[Tensor, "seq time lag"]:
    """The signal as it was each of these lags ago; zero before the start.

    >>> delayed(torch.tensor([[1.0, 2.0, 3.0]]), [0, 2])[..., 1]
    tensor([[0., 0., 1.]])
    """
    out = signal.new_zeros(*signal.shape, len(lags))
    for i, lag in enumerate(lags):
        out[:, lag:, i] = signal[:, : signal.shape[1] - lag]
    return out


def last_step(length: int) -> Float[Tensor, "time"]:
    """Mask of a task whose target comes at the last step."""
    mask = torch.zeros(length)
    mask[-1] = 1.0
    return mask


# --- options ----------------------------------------------------------------------------------------------


def set_option(task: Task, name: str, value: Any) -> None:
    """Store an option in its own type, such as a list from a file as a tuple."""
    object.__setattr__(task, name, value)


def check_count(name: str, value: int, least: int = 1) -> None:
    """Refuse a number of things that is not whole or too small."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number", got=repr(value), expected=f"at least {least}")


def check_range(name: str, value: float, low: float, high: float = float("inf"), *, open_low: bool = False) -> None:
    """Refuse a number outside its range (NaN included)."""
    inside = (low < value if open_low else low <= value) and value <= high and value != float("inf")
    if not inside:
        bounds = f"{'more than' if open_low else 'at least'} {low:g}"
        raise InputError(
            f"{name} is out of range",
            got=repr(value),
            expected=bounds + (f", at most {high:g}" if high < 1e300 else ""),
        )


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise InputError(f"unknown {name}", got=repr(value), expected=" or ".join(repr(c) for c in choices))


def check_lags(lags: Sequence[int], length: int, least: int = 0) -> tuple[int, ...]:
    """Return the lags as a tuple, or refuse lags that do not ascend or do not fit into a sequence."""
    out = tuple(lags)
    for lag in out:
        check_count("a lag", lag, least)
    if not out or any(b <= a for a, b in pairwise(out)):
        raise InputError("lags must ascend", got=out, expected="at least one lag, each larger than the one before")
    if out[-1] >= length:
        raise InputError(
            "a lag does not fit into the sequence, so it could not contribute",
            got=f"lag {out[-1]} in {length} steps",
            expected=f"lags below {length}",
            fix=f"use length={2 * out[-1]} or more, or shorter lags",
        )
    return out
