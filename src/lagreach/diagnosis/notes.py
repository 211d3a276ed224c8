"""What a look at a few sequences tells before anything is measured: sentences for the result, or a refusal."""

from __future__ import annotations

from lagreach.data.batch import Batch
from lagreach.gradients.identity import identity_notes
from lagreach.gradients.subject import Subject


def notes_on(subjects: list[Subject], sample: Batch) -> tuple[str, ...]:
    """Check that lag gradients add up to those of training; say what a reader should know of weights and padding."""
    notes = [note for one in subjects for note in identity_notes(one.view, sample, one.loss, one.steps)]
    return tuple(dict.fromkeys(notes))
