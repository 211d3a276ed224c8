"""What a look at a few sequences tells before anything is measured: sentences for the result, or a refusal."""

from __future__ import annotations

from lagreach.data.batch import Batch
from lagreach.gradients.identity import identity_notes
from lagreach.gradients.subject import Subject
from lagreach.transport.objective import IGNORE_INDEX


def notes_on(subjects: list[Subject], sample: Batch) -> tuple[str, ...]:
    """Check that lag gradients add up to those of training; say what a reader should know of weights, padding and targets."""
    notes = [note for one in subjects for note in identity_notes(one.view, sample, one.loss, one.steps)]
    if _repeats_inputs(sample):
        notes.append(
            "targets are the inputs of the same step: labels that a model shifts inside (labels=input_ids of Hugging Face) "
            "must be given shifted, y[:, :-1] = x[:, 1:] and y[:, -1] = -100"
        )
    return tuple(dict.fromkeys(notes))


def _repeats_inputs(sample: Batch) -> bool:
    """Whether class targets are the input tokens themselves, but for those that are ignored."""
    x, y = sample.x, sample.y
    if y.shape != x.shape or y.is_floating_point() or x.is_floating_point():
        return False
    counted = y != IGNORE_INDEX
    return bool(counted.any() and (y == x)[counted].all())
