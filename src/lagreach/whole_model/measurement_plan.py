"""What is measured of a whole model, and how its pairs of sequences are run together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lagreach.adapters.calling import Call, refuse_batch_norm
from lagreach.adapters.view import check_finite
from lagreach.data.bands import FEW, Bands, make_bands
from lagreach.data.batch import Batch
from lagreach.data.pairs import BlockPlan, plan_blocks
from lagreach.data.sequences import Sequences
from lagreach.data.survey import Survey
from lagreach.errors import InputError, TooLargeError, UnsupportedError
from lagreach.gradients.optimiser_geometry import update_scale
from lagreach.gradients.output_anchors import AT_THE_END, PER_STEP
from lagreach.gradients.selection import Selection
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective
from lagreach.whole_model.anchors import Slots, anchors_per_sequence, make_slots
from lagreach.whole_model.coupling import check_loss, check_model
from lagreach.whole_model.find_input import find_input_module
from lagreach.whole_model.input_module import Exchange, InputModule, Reading, read
from lagreach.whole_model.lag_gradients import as_table
from lagreach.whole_model.outputs import (
    cotangents,
    decide_outputs,
    input_steps,
    objective_for,
    output_steps,
    used_outputs,
)
from lagreach.whole_model.running import WholeModel, at_rest, whole_model

# bytes that the sequences run together take on a processor: with more they leave its caches, and take longer
ROOM = 2**26
GPU_SHARE = 0.5  # that part of a GPU's free memory instead
COPIES_OF_ARRIVED = 3  # of what arrives at the lags, at the peak: as it comes, put together, and turned
OUTPUTS_ALIVE = 8  # copies of the outputs at the peak: losses, their gradients, swapped targets
SAMPLE = 3  # sequences that the model is tried on
MEMBERS = 8  # of a group that exchange targets: with one output, one way back serves all of its pairings
MEMBERS_OF_MANY = 4  # with several outputs, where every pairing is a way back of its own
USED_SAMPLE = 16  # sequences that show which outputs a loss function looks at

Result = TypeVar("Result")


@dataclass(frozen=True)
class WholeModelPlan:
    """A model, what reads its input, sequences with their pairs, a loss and bands of lags.

    `output` (group, out) are the directions that a planted dependency moves the outputs along, and `group` says which of
    them each probe belongs to; `used` (position,) says which outputs the loss looks at. `weighting` is what an optimiser makes
    of each weight's gradient, as a table (input or token, output of the input modules). `pair_bytes` are those of two
    sequences on the way there and back, `anchor_bytes` those of what arrives from one output at all lags.
    """

    model: WholeModel
    source: InputModule
    sequences: Sequences
    block_plan: BlockPlan
    loss: Loss
    bands: Bands
    slots: Slots
    anchors: int
    output: Float[Tensor, "group out"]
    group: tuple[int, ...]
    used: Bool[Tensor, "position"]
    time: int
    pair_bytes: int
    anchor_bytes: int = 0
    outputs: str = PER_STEP
    signal: str = "dependence"
    steps: Any = None
    seed: int = 0
    memory: int | None = None
    weighting: Float[Tensor, "row width"] | None = None

    @property
    def pairings(self) -> int:
        """Pairings in which the data's signal is measured; the raw gradient knows no partners."""
        return self.block_plan.members - 1 if self.signal == "dependence" else 1

    def exchanged(self, rows: np.ndarray, piece: PairBatch) -> tuple[list[Objective], Tensor | None]:
        """The losses with the targets of each row's partner in every pairing, and the steps that all of a group share.

        A group that does not fit into memory lies in several pieces; then the partners' targets are read once more.
        """
        if self.pairings == 1:
            return [piece.swapped], None
        place, time = {int(number): row for row, number in enumerate(rows)}, piece.reading.inputs.shape[1]
        every = []
        for partners in self.block_plan.partners(rows).tolist():
            if all(partner in place for partner in partners):
                index = torch.tensor([place[partner] for partner in partners], device=piece.output.device)
                every.append(piece.objective.select(index))
            else:
                every.append(objective_for(self.loss, self.sequences.read(partners), piece.output, time, self.steps))
        return every, torch.stack([one.weights for one in (piece.objective, *every)]).amin(0)

    @property
    def pairs_together(self) -> int:
        """Pairs of sequences that are run together."""
        room = self.memory
        if room is None:
            device = self.model.device
            room = ROOM if device.type != "cuda" else int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
        return max(1, room // self.pair_bytes)

    def run(self, rows: np.ndarray, exchange: Exchange | None = None) -> PairBatch:
        """Run the model on some sequences, rows 2i and 2i + 1 being partners."""
        batch = self.sequences.read(rows.tolist())
        reading, output = read(self.model, self.source, batch, exchange=exchange)
        inside = input_steps(batch, reading)
        if reading.inputs.is_floating_point():  # what lies beyond the ends of sequences may hold anything
            check_finite("the input x", torch.where(inside[..., None], reading.inputs, 0.0), batch.numbers)
        objective = objective_for(self.loss, batch, output, reading.inputs.shape[1], self.steps)
        stand = output_steps(inside, output.shape[1], after=self.outputs == AT_THE_END)
        return PairBatch(batch, reading, output, objective, inside, stand)

    def each(
        self,
        work: Callable[[np.ndarray, np.ndarray], Result],
        progress: Callable[[int], None] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> Iterator[Result]:
        """Run `work(sequences, blocks)` on pairs that fit into memory together; fewer of them where it runs out.

        On all pairs, or on those of some blocks; those of a group stay together if they can.
        """
        wanted = slice(None) if blocks is None else np.isin(self.block_plan.blocks, np.asarray(blocks))
        pairs, homes = self.block_plan.pairs[wanted], self.block_plan.blocks[wanted]
        chunk, start, group = self.pairs_together, 0, self.block_plan.members // 2
        chunk = chunk // group * group or chunk
        while start < len(pairs):
            part = slice(start, start + chunk)
            rows, home = pairs[part].ravel(), np.repeat(homes[part], 2)
            try:
                result = work(rows, home)
            except torch.OutOfMemoryError as error:
                if chunk == 1:
                    raise TooLargeError(
                        "not even one pair of sequences fits into the GPU's memory",
                        got=f"sequences of {self.time} steps",
                        fix="pass shorter sequences, run the model in half precision, or use a larger GPU",
                    ) from error
                torch.cuda.empty_cache()
                chunk //= 2
                continue
            yield result
            start += chunk
            if progress is not None:
                progress(len(rows))


@dataclass(frozen=True)
class PairBatch:
    """Some sequences, run: rows 2i and 2i + 1 are partners."""

    batch: Batch
    reading: Reading
    output: Float[Tensor, "seq position out"]
    objective: Objective
    inside: Bool[Tensor, "seq time"]
    stand: Int[Tensor, "seq position"]

    @property
    def partner(self) -> Tensor:
        """Row of each row's partner."""
        return torch.arange(len(self.batch), device=self.output.device) ^ 1

    @property
    def swapped(self) -> Objective:
        """The loss with every sequence given its partner's targets."""
        return self.objective.select(self.partner)

    def pull(self, position: Tensor, cotangent: Float[Tensor, "seq out"], *, keep: bool = True) -> Tensor:
        """Carry a cotangent of one output of each sequence back to the input: (seq, time, width).

        On the way it has about size one, so that half precision does not lose it.
        """
        power = size_in_powers_of_two(cotangent)
        rows = torch.arange(len(position), device=self.output.device)
        arrived = self.reading.pull(self.output[rows, position], cotangent / power, keep=keep)
        wide = arrived if arrived.dtype == torch.float64 else arrived.float()
        return wide * power[..., None].to(wide)


def size_in_powers_of_two(values: Float[Tensor, "seq out"]) -> Float[Tensor, "seq 1"]:
    """The power of two next below the largest entry of each row; one for rows of zeros. Scaling by it loses nothing."""
    largest = values.abs().amax(1, keepdim=True)
    return torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(torch.where(largest > 0, largest, 1.0)))), 1.0)


def plan_model_measurement(
    model: nn.Module,
    sequences: Sequences,
    loss: Loss,
    lags: str | Iterable[int],
    *,
    blocks: int,
    probes: int,
    seed: int,
    signal: str = "dependence",
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    call: Call | None = None,
    inputs: str | None = None,
    anchors: int | None = None,
    memory: int | None = None,
    params: Selection = "input",
    optimizer: Any = None,
    seen: Survey | None = None,
) -> WholeModelPlan:
    """Try the model on a few sequences, find what reads its input, pair the sequences, and fix lags and directions.

    `seen` is what `survey` saw in the data, if it has been called already.
    """
    if anchors is not None and anchors < 1:
        raise InputError("anchors counts outputs of a sequence", got=anchors, expected="1 or more")
    whole = whole_model(model, call)
    refuse_batch_norm(whole.module)
    block_plan = plan_blocks(sequences, blocks, seed, members=MEMBERS if signal == "dependence" else 2, seen=seen)
    few = block_plan.pairs.ravel()[:USED_SAMPLE].tolist()
    sample = sequences.read(few[:SAMPLE])
    with at_rest(whole.module):
        check_model(whole, sample)
        source = _selected(find_input_module(whole, sample, inputs), params)
        pair = sequences.read(few[:2])
        pair_bytes, width, time = _pair_bytes(whole, source, pair)
        which = decide_outputs(*read(whole, source, pair), outputs)
        with torch.no_grad():
            output = whole.output(sample)
            check_loss(objective_for(loss, sample, output, time, steps), output)
        positions, out = output.shape[1:]
        used = torch.ones(positions, dtype=torch.bool)
        if callable(loss):
            used = _used(whole, [sequences.read(few[i : i + 2]) for i in range(0, len(few), 2)], loss, time, steps)
    bands = make_bands(lags, time, require, FEW)  # every lag costs a share of a pass here
    generator = torch.Generator().manual_seed(seed)
    groups = 1 if out == 1 else min(2, probes)
    direction = torch.randn(groups, out, generator=generator, dtype=torch.float64)
    if out > 1:
        block_plan = replace(block_plan, members=min(block_plan.members, MEMBERS_OF_MANY))
    of_data = 1 if out == 1 else block_plan.members - 1  # ways back for the data, beside those for what is planted
    slots = make_slots(bands.edges)
    anchors = anchors_per_sequence(time, positions) if anchors is None else min(anchors, positions)
    anchor_bytes = len(slots) * (of_data + groups) * width * torch.float32.itemsize
    return WholeModelPlan(
        model=whole,
        source=source,
        sequences=sequences,
        block_plan=block_plan,
        loss=loss,
        bands=bands,
        slots=slots,
        anchors=anchors,
        output=direction / direction.norm(dim=1, keepdim=True),
        group=tuple(i % groups for i in range(probes)),
        used=used,
        time=time,
        pair_bytes=pair_bytes + 2 * COPIES_OF_ARRIVED * anchors * anchor_bytes,
        anchor_bytes=anchor_bytes,
        outputs=which,
        signal=signal,
        steps=steps,
        seed=seed,
        memory=memory,
        weighting=None if optimizer is None else _weighting(whole, source, optimizer),
    )


def _selected(source: InputModule, params: Selection) -> InputModule:
    """The modules whose weights are selected by name; all of them unless a function chooses."""
    if not callable(params):
        return source
    names = [f"{port.path}.weight" for port in source.ports]
    ports = tuple(port for port, name in zip(source.ports, names, strict=True) if port.path and params(name))
    if not ports:
        raise InputError(
            "the selection holds no weights that read the input",
            got=f"params chooses none of {', '.join(names)}",
            fix='leave params out, or choose one of these; inputs="path.to.module" names another module',
        )
    return replace(source, ports=ports)


def _weighting(model: WholeModel, source: InputModule, optimizer: Any) -> Tensor | None:
    """What an optimiser makes of the gradient of every weight that reads the input; None where it is all the same."""
    if any(port.path is None or port.kind == "input" for port in source.ports):
        raise UnsupportedError(
            "an optimiser moves weights, and the input is read by none of its own",
            got=f"input read by {source.name}: {source.why}",
            fix='leave optimizer out, or name the module whose weights read the input: inputs="path.to.module"',
        )
    names = [f"{port.path}.weight" for port in source.ports]
    weights = dict(model.module.named_parameters(remove_duplicate=False))
    scale = update_scale(optimizer, model.module, names)
    if scale is None:
        return None
    parts = torch.from_numpy(scale).split([weights[name].numel() for name in names])
    return as_table(model, source, {n: part.view(weights[n].shape) for n, part in zip(names, parts, strict=True)})


def subsample(plan: WholeModelPlan, sequences: int) -> WholeModelPlan:
    """The same with about as many sequences, fairly chosen."""
    return replace(plan, block_plan=plan.block_plan.subsample(sequences))


def _used(model: WholeModel, batches: list[Batch], loss: Loss, time: int, steps: Any) -> Bool[Tensor, "position"]:
    """Outputs that a loss function looks at, in any of some sequences."""
    used = []
    for batch in batches:
        with torch.no_grad():
            output = model.output(batch)
        field, _ = cotangents(objective_for(loss, batch, output, time, steps), output)
        used.append(used_outputs(field).any(0).cpu())
    return torch.stack(used).any(0)


def _pair_bytes(model: WholeModel, source: InputModule, pair: Batch) -> tuple[int, int, int]:
    """Bytes that two sequences take on the way there and back, what autograd keeps above all; what is read, and their steps."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.module.parameters()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        reading, output = read(model, source, pair)
    outputs = OUTPUTS_ALIVE * output.numel() * output.element_size()
    # the way back takes as much again; a processor's allocator keeps more
    times = 2 if model.device.type == "cuda" else 3
    return max(1, times * sum(kept.values()) + outputs), reading.width, reading.inputs.shape[1]
