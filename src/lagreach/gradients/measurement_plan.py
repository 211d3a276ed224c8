"""What is measured, and how it is cut into pieces that fit into memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lagreach._moved import renamed
from lagreach.adapters import View
from lagreach.data.bands import Bands
from lagreach.data.batch import Batch
from lagreach.data.pairs import BlockPlan
from lagreach.data.sequences import Sequences
from lagreach.gradients.contrast import Probe
from lagreach.gradients.lag_sketch import LagSketch, coordinates_of, inside_lags
from lagreach.transport.cotangent import Cotangent
from lagreach.transport.exact import exact_transport
from lagreach.transport.first_order import first_order_transports
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective, make_objective
from lagreach.transport.rollout import Rollout, run

ROOM = 208 * 2**20  # bytes that a piece takes at the peak
GPU_SHARE = 4  # that part of a GPU's memory instead: many small kernels would leave it waiting for the host
# Tensors of each kind that are alive at the peak, at most, as tests/gradients/test_room.py and tests/test_cuda.py measure it.
STATES_ALIVE = {"exact": 52, "first-order": 90}
INPUTS_ALIVE, OUTPUTS_ALIVE, GRADIENTS_ALIVE = 12, 8, 10
GROUP_ROWS = 8192  # steps that are carried back together


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Subject": "MeasurementPlan", "Piece": "PairBatch"})


@dataclass(frozen=True)
class MeasurementPlan:
    """What is measured: a model, sequences with their pairs, a loss, weights and bands of lags."""

    view: View
    sequences: Sequences
    block_plan: BlockPlan
    loss: Loss
    names: list[str]
    bands: Bands
    probe: Probe
    time: int
    outputs: int = 1  # values of the model's output, a sequence
    signal: str = "dependence"
    transport: str = "exact"
    steps: Any = None  # which steps targets belong to, see `make_objective`
    at_end: bool = False  # whether all outputs belong to one anchor, see `output_anchors`
    memory: int | None = None  # bytes to stay within
    seed: int = 0  # of what is drawn on the way: anchors, exchanges
    planned: int | None = None  # sequences that the reader plans for, if not those measured
    scale: np.ndarray | None = None  # (param,): what an optimiser makes of each weight's gradient; one if None

    @property
    def width(self) -> int:
        """Number of selected weights."""
        return sum(self.view.template.params[name].numel() for name in self.names)

    @cached_property
    def sketch(self) -> LagSketch | None:
        """How single lags inside bands are looked at; None where all bands are of one lag, or gradients of first order."""
        lags = inside_lags(self.bands)
        if not lags or self.transport != "exact":
            return None
        size = min(self.width, coordinates_of(self.block_plan.count * self.pairings, len(lags)))
        return LagSketch(lags, size, self.seed)

    def scaled(self, gradients: np.ndarray) -> np.ndarray:
        """Gradients (..., param) as the optimiser takes them."""
        return gradients if self.scale is None else gradients * self.scale

    def run(self, index: list[int]) -> tuple[Rollout, Objective]:
        """Run the model on these sequences; return its states and the objective of its outputs."""
        batch = self.sequences.read(index)
        part = run(self.view.bind(batch))
        return part, self._objective(batch, part)

    def _objective(self, batch: Batch, part: Rollout) -> Objective:
        """Targets and weights of a batch, for as many outputs as a rollout has."""
        seq, positions, out = part.output.shape
        shape, time = (seq, positions, out), part.x.shape[1]
        if self.at_end:
            batch = replace(batch, lengths=None)  # they are those of the inputs, and outputs are no steps
        objective = make_objective(self.loss, batch, part.recurrence, shape, input_time=time, steps=self.steps)
        return replace(objective, at_end=self.at_end)

    @property
    def pairings(self) -> int:
        """Pairings in which the data's signal is measured; the raw gradient knows no partners."""
        return self.block_plan.members - 1 if self.signal == "dependence" else 1

    def exchanged(self, piece: PairBatch) -> tuple[list[Objective], Tensor | None]:
        """The objectives of the partners of a piece's rows in every pairing, and the steps that all of a group share.

        A group that does not fit into memory lies in several pieces; then the partners' targets are read once more.
        """
        members = self.block_plan.members
        if self.pairings == 1:
            return [piece.swapped], None
        if len(piece.number) % members == 0 and piece.pair[0] % (members // 2) == 0:
            row = torch.arange(len(piece.number))
            every = [piece.objective.select(row ^ shift) for shift in range(1, members)]
        else:
            group, place = np.divmod((2 * piece.pair[:, None] + np.arange(2)).ravel(), members)
            numbers = [self.block_plan.groups[group, place ^ shift] for shift in range(1, members)]
            every = [self._objective(self.sequences.read(partners.tolist()), piece.part) for partners in numbers]
        weights = torch.stack([one.weights for one in (piece.objective, *every)]).amin(0)
        return every, weights

    def carry(self, part: Rollout, deltas: Sequence[Tensor], lags: list[int]) -> Iterator[Iterator[Cotangent]]:
        """Carry gradients back to each of the lags, exactly or to first order; at a lag, one after the other."""
        if self.transport == "exact":
            walks = [exact_transport(part, delta, lags) for delta in deltas]
            return ((next(walk)[0] for walk in walks) for _ in lags)
        return first_order_transports(part, deltas, lags)

    @property
    def room(self) -> int:
        """Bytes that a piece may take at the peak."""
        if self.memory is not None:
            return self.memory
        device = self.view.template.device
        return ROOM if device.type != "cuda" else torch.cuda.get_device_properties(device).total_memory // GPU_SHARE

    @property
    def pair_bytes(self) -> int:
        """Bytes that two sequences take at the peak: states, inputs, outputs, and gradients of the weights by sequence."""
        template = self.view.template
        step = STATES_ALIVE[self.transport] * template.stack.state_size + INPUTS_ALIVE * self.probe.mean.shape[-1]
        values = self.time * step + OUTPUTS_ALIVE * self.outputs + GRADIENTS_ALIVE * self.width
        return 2 * values * template.dtype.itemsize

    @property
    def pairs_together(self) -> int:
        """Pairs of sequences that are run together."""
        return max(1, self.room // self.pair_bytes)

    def pieces(self, blocks: Iterable[int]) -> Iterator[PairBatch]:
        """Cut the sequences of some blocks into pieces that fit into memory; pairs stay together, and groups if they can."""
        chunk, group = self.pairs_together, self.block_plan.members // 2
        chunk = chunk // group * group or chunk
        pairs = np.flatnonzero(np.isin(self.block_plan.blocks, list(blocks)))
        for start in range(0, len(pairs), chunk):
            chosen = pairs[start : start + chunk]
            rows = self.block_plan.pairs[chosen].ravel()
            part, objective = self.run(rows.tolist())
            yield PairBatch(rows, np.repeat(self.block_plan.blocks[chosen], 2), chosen, part, objective)

    def feed(
        self,
        accumulators: Sequence[Any],
        blocks: Iterable[int] | None = None,
        tick: Callable[[int], None] | None = None,
    ) -> None:
        """Run the sequences of some blocks (all by default) through the model once, and hand the pieces to accumulators."""
        for piece in self.pieces(range(self.block_plan.count) if blocks is None else blocks):
            for accumulator in accumulators:
                accumulator.add(piece)
            if tick is not None:
                tick(len(piece.number))


@dataclass(frozen=True)
class PairBatch:
    """Some pairs of sequences, run: rows 2i and 2i + 1 are partners."""

    number: np.ndarray  # (row,), number of the sequence
    block: np.ndarray  # (row,), number of its block
    pair: np.ndarray  # (row / 2,), number of the pair
    part: Rollout
    objective: Objective

    @property
    def partner(self) -> Tensor:
        """Row of each row's partner."""
        return torch.arange(len(self.number)) ^ 1

    def bundles(self) -> Iterator[tuple[slice, list[tuple[int, slice]]]]:
        """Rows that are carried back together, and the blocks among them, counted from the first of these rows.

        On a GPU all rows go together. On a processor they are few enough for its cache, all of one block.
        """
        if self.part.x.is_cuda:
            yield slice(0, len(self.block)), list(self.groups(len(self.block)))
            return
        for block, rows in self.groups(max(1, GROUP_ROWS // self.part.x.shape[1])):
            yield rows, [(block, slice(0, rows.stop - rows.start))]

    def groups(self, most: int) -> Iterator[tuple[int, slice]]:
        """Rows of one block at a time, at most so many."""
        changes = np.flatnonzero(np.diff(self.block)) + 1
        for start, stop in zip([0, *changes], [*changes, len(self.block)], strict=True):
            for first in range(int(start), int(stop), most):
                yield int(self.block[start]), slice(first, min(first + most, int(stop)))

    @property
    def swapped(self) -> Objective:
        """The objective with every sequence given its partner's targets."""
        return self.objective.select(self.partner)


def select(part: Rollout, rows: slice) -> Rollout:
    """Some sequences of a rollout; its head still belongs to all of them."""
    lengths = None if part.lengths is None else part.lengths[rows]
    return replace(part, x=part.x[rows], initial=part.initial[rows], states=part.states[rows], lengths=lengths)


def band_cotangents(
    plan: MeasurementPlan,
    part: Rollout,
    signals: Sequence[Tensor],
    planted: Sequence[Tensor] = (),
    *,
    kept: bool = False,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Sum each signal's carried gradients over the lags of a band, by position reached, in float64; see `Cotangent.kept`.

    Beside the sums what is planted, carried to the far edge of the band.
    """
    edges = set(plan.bands.lags)
    totals: list[Tensor] = []
    for lag, arriving in zip(
        plan.bands.examined, plan.carry(part, [*signals, *planted], plan.bands.examined), strict=True
    ):
        values = (cotangent.kept() if kept else cotangent.double() for cotangent in arriving)
        here = itertools.islice(values, len(signals))
        if totals:
            for total, carried in zip(totals, here, strict=True):
                total[:, : carried.shape[1]] += carried
        else:
            totals = [carried.clone() for carried in here]
        at_edge = list(values)  # at every lag, edge or not: exact transport goes on to the next lag when it is read
        if lag in edges:
            yield totals, at_edge
            totals = []
