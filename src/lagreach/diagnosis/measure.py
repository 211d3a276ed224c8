"""Measure the learnability window of a model on data: two passes (`passes.py`), then small statistics (`assemble.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from lagreach._util.interrupts import as_it_stands, despite_interrupt
from lagreach._util.progress import Progress, ticks
from lagreach.adapters import Recurrence, View, as_view
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.folded import by_sequence
from lagreach.adapters.view import check_inputs
from lagreach.data.bands import EVERY, FEW, GROWTH, Bands, make_bands
from lagreach.data.pairs import check_enough, plan_blocks
from lagreach.data.sequences import Sequences, as_sequences, telling_sample
from lagreach.data.survey import Survey
from lagreach.diagnosis.assemble import MeasuredWindow, assemble
from lagreach.diagnosis.locate import INTERRUPTED, LookHere
from lagreach.diagnosis.passes import FirstPass, SecondPass, Statistics, between_passes, first_pass, second_pass
from lagreach.diagnosis.settings import MeasureSettings, check_settings
from lagreach.diagnosis.window import Window
from lagreach.gradients.blocks import LIMIT_BYTES, BlockSums
from lagreach.gradients.contrast import make_probe
from lagreach.gradients.input_spread import InputSpread
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseValues
from lagreach.gradients.output_anchors import AT_THE_END, decide
from lagreach.gradients.selection import Selection, select_params
from lagreach.statistics import all_statistics
from lagreach.transport.losses import Loss, as_loss
from lagreach.transport.rollout import run

READ_SEQUENCES, READ_VALUES = 64, 2**22  # inputs that are read at once, at most
Part = TypeVar("Part")
LITTLE = 50_000  # weights, up to which looking at every lag costs little
# lags below the first number are bands of their own, from there on bands grow by the second; coarser where weights are many
FINENESS = ((EVERY, GROWTH), (FEW, GROWTH), (8, 0.3), (4, 0.6), (2, 1.0), (1, 3.0))
FEWEST_BLOCKS = 16  # of sequences, however many weights there are
GROUP = 8  # blocks that are measured together; an interrupt keeps whole groups


@leaves_as_it_was
@torch.enable_grad()
def measure_window(
    model: nn.Module | Recurrence | View,
    data: Any,
    loss: Loss = "mse",
    lags: str | Iterable[int] = "auto",
    *,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    settings: MeasureSettings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Window:
    """Measure how many sequences each lag needs, on the data and for a planted dependency.

    Parameters
    ----------
    data
        ``(x, y)``, ``(x, y, mask)`` or ``(x, y, mask, lengths)`` tensors, or any iterable of such batches (spooled to a
        temporary file once).
    lags
        "auto": contiguous bands over all lags; or the lags to look at. `require` lags are always the edge of a band.
    params
        Weights whose gradient is looked at: "input" (locates lags), "all", "recurrent", "gates" (of a `GatedRNN`; torch's
        layers keep them in one tensor with the rest), or a function of a name.
    outputs
        "per step" or "at the end"; found from gradients if None.
    progress
        Called with the name of the stage, how many sequences are done, and how many there are.
    """
    settings = settings or MeasureSettings()
    plan = plan_measurement(
        model, data, loss, lags, params=params, require=require, steps=steps, outputs=outputs, settings=settings
    )
    return interruptible_window(plan, settings, progress)[0]


def interruptible_window(
    plan: MeasurementPlan,
    settings: MeasureSettings,
    progress: Progress | None = None,
    statistics: Statistics | None = None,
) -> MeasuredWindow:
    """Measure a window block by block; an interrupt keeps the blocks that are finished.

    An interrupt before eight blocks of the first pass are done goes through; one before eight of the second leaves N unknown.
    """
    chosen = all_statistics() if statistics is None else statistics
    tick = ticks(progress, "directions", plan.block_plan.sequences)
    sums = BlockSums(plan, list(range(plan.block_plan.count)))
    parts, cut_short = _by_groups(plan, lambda blocks: first_pass(plan, chosen, blocks, tick, sums))
    if cut_short:
        plan = replace(plan, block_plan=plan.block_plan.only(range(GROUP * len(parts))))
    first = FirstPass.merge(parts, sums.means(range(plan.block_plan.count)))
    look = LookHere(plan, ticks(progress, "lags", plan.block_plan.sequences))
    put_back = as_it_stands()
    try:
        between = between_passes(plan, first.means, settings, first.inputs, look)
    except KeyboardInterrupt:  # the first pass is done, and says something on its own
        put_back()
        between = between_passes(plan, first.means, settings, first.inputs)
        between, cut_short = replace(between, notes=(INTERRUPTED,)), True
    tick = ticks(progress, "noise", plan.block_plan.sequences)
    try:
        later, cut_later = _by_groups(plan, lambda blocks: second_pass(plan, between, chosen, settings, blocks, tick))
        second = SecondPass.merge(later)
    except KeyboardInterrupt:  # the lags are told, without N
        put_back()
        sizes = plan.block_plan.count, len(plan.probe.group), len(plan.bands)
        second, cut_later = SecondPass(NoiseValues.unmeasured(*sizes)), True
    window, cut_last = despite_interrupt(assemble, plan, first, between, second, settings, chosen)
    cut_short = cut_short or cut_later or cut_last
    return MeasuredWindow(
        window, second.noise.sample, cut_short, first.collected | second.collected, plan.block_plan.sequences
    )


def _by_groups(plan: MeasurementPlan, measure: Callable[[range], Part]) -> tuple[list[Part], bool]:
    """Measure group after group of blocks; say whether an interrupt left some out."""
    parts: list[Part] = []
    put_back = as_it_stands()
    try:
        for start in range(0, plan.block_plan.count, GROUP):
            parts.append(measure(range(start, min(start + GROUP, plan.block_plan.count))))
    except KeyboardInterrupt:
        if not parts:
            raise
        put_back()
        return parts, True
    return parts, False


def plan_measurement(
    model: nn.Module | Recurrence | View,
    data: Any,
    loss: Loss,
    lags: str | Iterable[int],
    *,
    params: Selection = "input",
    require: Sequence[int] = (),
    steps: Any = None,
    outputs: str | None = None,
    settings: MeasureSettings,
    seen: Survey | None = None,
    roughly: bool = False,
) -> MeasurementPlan:
    """Read the data once, group the sequences, and fix bands and probes: all that both passes must share.

    `seen` is what `survey` saw in the data, if it has been called already. For a plan that is only timed, a few sequences
    tell `roughly` how inputs vary.
    """
    check_settings(settings)
    sequences = as_sequences(data)
    check_enough(len(sequences))
    sample = telling_sample(sequences)
    view = by_sequence(model if isinstance(model, View) else as_view(model, sample), sample)
    first = run(view.bind(sequences.read([0])))
    _, positions, out = first.output.shape
    at_end = steps is None and positions > 1 and decide([first], outputs) == AT_THE_END
    names = select_params(view.template, params)
    read = min(READ_SEQUENCES, max(1, READ_VALUES // first.x.numel()))
    spread = _input_spread(view, sequences, read, read if roughly else len(sequences))
    generator = torch.Generator().manual_seed(settings.seed)
    width = sum(view.template.params[name].numel() for name in names)
    fineness = FINENESS if width <= LITTLE else FINENESS[1:]
    bands = _bands([make_bands(lags, spread.time, require, *one) for one in fineness], width, settings)
    settings = replace(settings, probes=_probes(settings, len(bands) * width))
    seen_outputs = out * (positions if at_end else 1)
    probe = make_probe(spread.mean, spread.covariance, seen_outputs, settings.probes, generator)
    blocks = _blocks(settings, len(bands) * width)
    members = _members(replace(settings, blocks=blocks), seen_outputs, len(bands) * width)
    return MeasurementPlan(
        view=view,
        sequences=sequences,
        block_plan=plan_blocks(sequences, blocks, settings.seed, members=members, seen=seen),
        loss=as_loss(loss),
        names=names,
        bands=bands,
        probe=probe,
        time=spread.time,
        outputs=out * (positions if at_end or positions == 1 else spread.time),
        signal=settings.signal,
        transport=settings.transport,
        steps=steps,
        at_end=at_end,
        seed=settings.seed,
    )


def _bands(finer_to_coarser: Sequence[Bands], width: int, settings: MeasureSettings) -> Bands:
    """The finest bands whose block gradients of `width` weights fit, or the coarsest."""
    for bands in finer_to_coarser:
        if FEWEST_BLOCKS * (1 + settings.probes) * len(bands) * width * 8 <= LIMIT_BYTES:
            break
    return bands


def _probes(settings: MeasureSettings, values: int) -> int:
    """Planted dependencies: as many as asked for, but fewer where their gradients of `values` numbers would not fit at all."""
    fits = LIMIT_BYTES // (FEWEST_BLOCKS * values * 8) - 1
    return min(settings.probes, max(fits, 1))


def _blocks(settings: MeasureSettings, values: int) -> int:
    """Blocks of sequences: as many as asked for, but fewer where their gradients of `values` numbers would not fit."""
    fits = LIMIT_BYTES // ((1 + settings.probes) * values * 8)
    return min(settings.blocks, max(fits, FEWEST_BLOCKS))


def _members(settings: MeasureSettings, outputs: int, values: int) -> int:
    """Sequences that exchange targets with each other: as many as cost little.

    Where the loss sees one output, one transport serves all exchanges. Block gradients of `values` numbers must fit.
    """
    wanted = 8 if outputs == 1 and settings.transport == "exact" else 4
    fits = [m for m in (8, 4) if settings.blocks * (m - 1 + settings.probes) * values * 8 <= LIMIT_BYTES]
    return max([m for m in fits if m <= wanted], default=2)


def _input_spread(view: View, sequences: Sequences, read: int, count: int) -> InputSpread:
    """How the recurrent layer's inputs vary over valid steps and between the first sequences."""
    spread, count = InputSpread(), min(count, len(sequences))
    for start in range(0, count, read):
        batch = sequences.read(range(start, min(start + read, count)))
        check_inputs(batch)
        bound = view.bind(batch)
        spread.add(bound.x, bound.lengths)
    return spread
