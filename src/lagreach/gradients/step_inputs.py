"""What a step reads: the newest input among the columns that a cell is given, and weights that read a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.transport.rollout import Rollout


@dataclass(frozen=True)
class StepInput:
    """Where an input stands in what the steps are given.

    Most cells see one input a step. Layers with a short convolution give every step its last `taps` inputs side by side,
    oldest first, so that one input stands in several steps.
    """

    taps: int
    inputs: int

    def newest(self, x: Float[Tensor, "*row column"]) -> Float[Tensor, "*row input"]:
        """Return the input of the step itself."""
        return x[..., (self.taps - 1) * self.inputs : self.taps * self.inputs]

    def changed(
        self, windows: Float[Tensor, "step row column"], change: Float[Tensor, "row input"]
    ) -> Float[Tensor, "step row column"]:
        """Windows whose first input is moved by `change`, in every step that sees it."""
        moved = windows.clone()
        for step in range(min(self.taps, len(windows))):
            self_or_older = (self.taps - 1 - step) * self.inputs
            moved[step, :, self_or_older : self_or_older + self.inputs] += change
        return moved


def step_input(part: Rollout) -> StepInput | None:
    """Find the newest input among what the steps of a rollout are given; None if steps share inputs in another way."""
    cell, columns = part.recurrence.stack.cells[0], part.x.shape[-1]
    taps = int(getattr(cell, "taps", 1))
    if taps == 1:
        return StepInput(1, columns)
    inputs = int(getattr(cell, "inputs", columns // taps))
    older, newer = part.x[:, 1:, : (taps - 1) * inputs], part.x[:, :-1, inputs : taps * inputs]
    return StepInput(taps, inputs) if torch.equal(older, newer) else None


@dataclass(frozen=True)
class PartReading:
    """A recurrence whose input weights have as many columns again, of zeros, for a part of the input.

    It computes what it did before. The gradients of the new columns are what the old ones' would be if they had read that
    part instead of the input.
    """

    recurrence: Recurrence
    names: tuple[str, ...]

    def widened(self, part: Rollout, read: Float[Tensor, "seq time input"]) -> Rollout:
        """Return the rollout with this part of its inputs beside them; its states are the same."""
        return replace(part, recurrence=self.recurrence, x=torch.cat((part.x, read.to(part.x)), dim=-1))

    def part_columns(self, flat: Float[Tensor, "*any wide"]) -> Float[Tensor, "*any param"]:
        """Gradients of the new columns, laid out as the weights themselves."""
        return self._half(flat, 1)

    def own_columns(self, flat: Float[Tensor, "*any wide"]) -> Float[Tensor, "*any param"]:
        """Gradients of the weights themselves."""
        return self._half(flat, 0)

    def _half(self, flat: Tensor, half: int) -> Tensor:
        wide = [self.recurrence.params[name] for name in self.names]
        pieces = flat.split([weight.numel() for weight in wide], dim=-1)
        halves = [
            piece.unflatten(-1, (weight.shape[0], 2, -1))[..., half, :].flatten(-2)
            for piece, weight in zip(pieces, wide, strict=True)
        ]
        return torch.cat(halves, dim=-1)


def part_reading(part: Rollout, names: Sequence[str]) -> PartReading | None:
    """Give the named weights columns for a part of the input; None if some of them do not read the input, or not so."""
    recurrence, columns = part.recurrence, part.x.shape[-1]
    reading = {name for k, cell, short, name in recurrence.stack.weights() if k == 0 and cell.role(short) == "input"}
    weights = {name: weight for name, weight in recurrence.params.items() if name in reading}
    if getattr(recurrence.stack.cells[0], "taps", 1) > 1 or not set(names) <= reading:
        return None
    if any(weight.ndim != 2 or weight.shape[1] != columns for weight in weights.values()):
        return None
    wide = {name: torch.cat((weight, torch.zeros_like(weight)), dim=1) for name, weight in weights.items()}
    widened = replace(recurrence, params=recurrence.params | wide, input_size=2 * columns)
    x, before = part.x[:1, :1].flatten(0, 1), part.initial[:1]
    with torch.no_grad():
        try:
            after = widened.stack.step(torch.cat((x, torch.ones_like(x)), dim=-1), before, widened.params)
        except RuntimeError:  # a cell that knows its width by heart
            return None
        same = torch.allclose(after, recurrence.stack.step(x, before, recurrence.params), rtol=1e-4, atol=1e-6)
    return PartReading(widened, tuple(names)) if same else None
