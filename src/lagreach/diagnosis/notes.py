"""Sentences for a result: what a look at a few sequences tells before anything is measured, and how it was measured."""

from __future__ import annotations

from torch import nn

from lagreach.adapters import View
from lagreach.adapters.precision import precision_note
from lagreach.data.batch import Batch
from lagreach.gradients.identity import identity_notes
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.saturation import saturation_note
from lagreach.statistics.readable import why_not_readable
from lagreach.transport.rollout import run
from lagreach.transport.target_scale import PAIRS, scale_note

POOLED = (
    "the readout looks at the states of many steps (it pools, or attends): an input also arrives by way of the state of its own "
    "step, at lag 0, so a lag out of reach here does not keep training from using it"
)


def notes_on(plans: list[MeasurementPlan], sample: Batch) -> tuple[str, ...]:
    """Check that lag gradients add up to those of training; say what a reader should know of weights and padding."""
    notes = [note for one in plans for note in identity_notes(one.view, sample, one.loss, one.steps)]
    notes += [note for one in plans if (note := saturation_note(one.view.name, run(one.view.bind(sample)))) is not None]
    notes += [note for one in plans if (note := why_not_readable(one)) is not None]
    first = plans[0]
    part, objective = first.run(first.block_plan.pairs[: min(PAIRS, first.pairs_together)].ravel().tolist())
    if (note := scale_note(objective, objective.at_targets(part.output))) is not None:
        notes.append(note)
    return tuple(dict.fromkeys(notes))


def how_measured(
    model: nn.Module | View,
    subsample: bool,
    partial: bool,
    plans: list[MeasurementPlan],
    missing: list[MeasurementPlan],
) -> tuple[str, ...]:
    """Say in which mode and type the model was, how many sequences took part, what lags and numbers are of, what is `missing`."""
    block_plan = plans[0].block_plan
    notes = list(block_plan.notes)
    if isinstance(model, nn.Module) and any(isinstance(m, nn.Dropout) and m.training for m in model.modules()):
        notes.append("the model was in training mode; it was diagnosed in evaluation mode, without dropout")
    if (note := precision_note(model)) is not None:
        notes.append(note)
    if subsample:
        notes.append(
            f"a subsample of {block_plan.sequences} of {block_plan.available} sequences; intervals are "
            f"{(block_plan.available / block_plan.sequences) ** 0.5:.2f} times as wide"
        )
    if partial:
        notes.append("interrupted: only the blocks that were finished are in this result, which is partial")
    if missing:
        notes.append(f"interrupted: {', '.join(plan.view.name for plan in missing)} not measured")
    if any(plan.scale is not None for plan in plans):
        notes.append("signal and noise are those of the optimiser's steps, not of plain gradients")
    if any(plan.view.local for plan in plans):
        notes.append("lags are steps within each layer: a dependency carried by one layer shows in another at lag 0")
    return tuple(notes)
