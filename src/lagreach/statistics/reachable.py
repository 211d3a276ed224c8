"""*Reachable* share: what all weights of the network, linearised at the checkpoint, recover of a lag.

Features are the derivatives of the output along K random directions of the weights (forward mode: all steps at once, one pass a
direction), and beside them the exact features of the readout. Ridge on them is ridge on the weights in a random subspace of K
dimensions: a lower bound on what all weights together can do. How much is missing is estimated by taking half the directions.
Where there are no more weights than directions, the directions are the weights themselves and nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.statistics.linear_share import Observed, OutputSpace, Rows, ShareMoments

Weights = dict[str, Tensor]
Outputs = Callable[[Weights], Tensor]  # weights to outputs (seq, target, out)
CHANGE, CHANGE_SINGLE = 1e-6, 1e-3  # of outputs in a finite difference, relative to their size
FEW = 4
METHODS = ("backward", "forward", "difference")


@dataclass(frozen=True)
class Directions:
    """Directions of the weights, drawn anew whenever they are needed.

    `scale` holds for each weight how far an optimiser moves it for a unit gradient; directions are drawn with its root.
    """

    weights: Mapping[str, Tensor]
    count: int
    seed: int
    scale: Mapping[str, Tensor] | None = None

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.weights.values())

    @property
    def exact(self) -> bool:
        """Whether every weight is a direction of its own."""
        return self.size <= self.count

    def __len__(self) -> int:
        return min(self.count, self.size)

    def chunk(self, start: int, stop: int) -> Weights:
        """Some of the directions, (direction, *weight) for each weight; a direction depends on its number and the seed alone."""
        if self.exact:
            flat = torch.zeros(stop - start, self.size)
            flat[torch.arange(stop - start), torch.arange(start, stop)] = 1.0
        else:
            draws = [torch.randn(self.size, generator=_generator(self.seed, k)) for k in range(start, stop)]
            flat = torch.stack(draws) / len(self) ** 0.5
        parts = flat.split([weight.numel() for weight in self.weights.values()], dim=1)
        by_weight = {}
        for (name, weight), part in zip(self.weights.items(), parts, strict=True):
            drawn = part.view(-1, *weight.shape).to(device=weight.device, dtype=weight.dtype)
            by_weight[name] = drawn if self.scale is None else drawn * self.scale[name].to(drawn).sqrt()
        return by_weight


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + number + 1) % 2**63)


def tangents(
    outputs: Outputs, directions: Directions, together: int, method: str, *, step: float = 0.0, one_by_one: bool = False
) -> Iterator[tuple[int, Float[Tensor, "direction seq target out"]]]:
    """Derivatives of the outputs along the directions, some of them at a time, with the number of the first.

    "forward" is forward-mode differentiation. "difference" runs the network once more for every direction, with its weights
    moved by a distance `step` (see `difference_step`): as fast as running it, and good to six digits in double precision.
    """
    weights = dict(directions.weights)
    before = outputs(weights) if method == "difference" and weights else None
    for start in range(0, len(directions), together):
        chunk = directions.chunk(start, min(start + together, len(directions)))
        each = [{name: part[k] for name, part in chunk.items()} for k in range(len(next(iter(chunk.values()))))]
        if before is not None:
            yield start, torch.stack([_difference(outputs, weights, one, before, step) for one in each])
        elif one_by_one:
            yield start, torch.stack([_forward(outputs, weights, one) for one in each])
        else:
            yield start, torch.func.vmap(lambda one: _forward(outputs, weights, one))(chunk)


def _forward(outputs: Outputs, weights: Weights, direction: Weights) -> Tensor:
    return torch.func.jvp(outputs, (weights,), (direction,))[1]


def _difference(outputs: Outputs, weights: Weights, direction: Weights, before: Tensor, step: float) -> Tensor:
    length = _length(direction)
    if length == 0:
        return torch.zeros_like(before)
    moved = {name: weight + (step / length) * direction[name] for name, weight in weights.items()}
    return (outputs(moved) - before) * (length / step)


def _length(direction: Mapping[str, Tensor]) -> float:
    return float(sum(part.double().square().sum() for part in direction.values())) ** 0.5


def difference_step(outputs: Outputs, directions: Directions) -> float:
    """Distance by which weights are moved, so that outputs change by a part `CHANGE` of their size.

    Less would be lost in rounding, more would not be linear. It follows from a few directions on a small sample, so that
    all batches use the same.
    """
    weights = dict(directions.weights)
    before = outputs(weights)
    size = float(before.double().square().mean()) ** 0.5
    change = CHANGE if before.dtype == torch.float64 else CHANGE_SINGLE
    step = change * max(_length(weights), 1e-3)
    few = directions.chunk(0, min(FEW, len(directions)))
    for _ in range(3):
        moves = [
            _difference(outputs, weights, {name: part[k] for name, part in few.items()}, before, step)
            * (step / max(_length({name: part[k] for name, part in few.items()}), 1e-30))
            for k in range(len(next(iter(few.values()))))
        ]
        moved = float(torch.stack(moves).double().square().mean()) ** 0.5
        if moved == 0 or size == 0:
            break
        step *= min(100.0, max(0.01, change * size / moved))
    return step


def start(
    blocks: int,
    features: int,
    space: OutputSpace,
    lags: Sequence[int],
    device: torch.device | str = "cpu",
    singled: bool = False,
) -> ShareMoments:
    """Sums of a network linearised in its weights."""
    rows, copies = space.basis.shape[1], torch.ones(len(space.group), 1)
    return ShareMoments(blocks, features, rows, lags, space.group, copies, device, singled)


class Sketched(NamedTuple):
    """Derivatives along the directions: at the anchors, and of the loss of each sequence (its negative gradient)."""

    features: Float[Tensor, "seq anchor row direction"]
    gradient: Float[Tensor, "seq direction"]


def sketched(
    observed: Observed,
    output: Float[Tensor, "seq target out"],
    along: Iterator[tuple[int, Float[Tensor, "direction seq target out"]]],
    count: int,
    space: OutputSpace,
) -> Sketched:
    """Pick from derivatives of all outputs (`tangents`) along `count` directions what a linear fit sees."""
    index, _ = observed.anchors
    sequences, rows = len(output), space.basis.shape[1]
    features = output.new_empty(sequences, index.shape[1], rows, count)
    gradient = torch.empty(sequences, count, dtype=torch.float64, device=output.device)
    pull = (observed.residual * observed.shares[..., None]).double()  # (seq, target, row)
    at = index[..., None].expand(-1, -1, rows)
    for start, change in along:
        moved = space.rows(change, output)  # (direction, seq, target, row)
        stop = start + len(moved)
        gradient[:, start:stop] = torch.einsum("kstr,str->sk", moved.double(), pull)
        picked = moved.gather(2, at.expand(len(moved), *at.shape))
        features[..., start:stop] = picked.permute(1, 2, 3, 0)
    return Sketched(features, gradient)


def reachable_rows(
    observed: Observed,
    output: Float[Tensor, "seq target out"],
    along: Iterator[tuple[int, Float[Tensor, "direction seq target out"]]],
    count: int,
    readout: Float[Tensor, "seq target feature"] | None,
    space: OutputSpace,
    lags: Sequence[int],
) -> Rows:
    """Derivatives of all outputs along `count` directions (from `tangents`) as a linear fit sees them; see `sketched_rows`."""
    return sketched_rows(observed, output, sketched(observed, output, along, count, space), readout, space, lags)


def sketched_rows(
    observed: Observed,
    output: Float[Tensor, "seq target out"],
    along: Sketched,
    readout: Float[Tensor, "seq target feature"] | None,
    space: OutputSpace,
    lags: Sequence[int],
) -> Rows:
    """Derivatives along the directions, and features of the readout behind them, as a linear fit sees them.

    Parameters
    ----------
    observed
        With `residual` and `towards` in the coordinates of `space`.
    output
        Output of the model at the targets.
    along
        From `sketched`, or carried back from the anchors.
    readout
        What the readout reads; None where it is not a linear layer at the end.
    """
    features, gradient = along.features, along.gradient[:, None]
    if readout is None:
        return observed.rows(features, gradient, lags)
    index, _ = observed.anchors
    rows = space.basis.shape[1]
    pull = (observed.residual * observed.shares[..., None]).double()
    at = index[..., None].expand(-1, -1, rows)
    mixing = space.rows(
        space.basis.T.to(output)[:, None, None].expand(-1, *output.shape), output
    )  # (copy, seq, target, row)
    beside = torch.einsum("cstr,str,stf->scf", mixing.double(), pull, readout.double()).flatten(1)
    mixed = mixing.gather(2, at.expand(rows, *at.shape)).permute(1, 2, 3, 0)  # (seq, anchor, row, copy)
    read = readout.gather(1, index[..., None].expand(-1, -1, readout.shape[2]))
    exact = (mixed[..., None] * read[:, :, None, None]).flatten(3).to(features)
    return observed.rows(torch.cat((features, exact), dim=3), torch.cat((gradient, beside[:, None]), dim=2), lags)
