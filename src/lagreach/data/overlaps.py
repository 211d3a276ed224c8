"""Windows of a series that were changed after they were cut: jittered, scaled, or set against a value of their own.

Nothing in them repeats exactly, but where two windows overlap they go up and down together. In their order each window goes
with the next one at a shift, and not at the same shift the other way round; otherwise short pieces are compared with the
beginnings of others. Inputs and targets must both overlap: where one of them is new in every sequence, sequences are.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from lagreach.data.alike import MOST_STEPS, SHORTEST, Shifts, at_same_step, read_steps
from lagreach.data.pieces import pieces_come_again
from lagreach.data.sequences import Sequences
from lagreach.data.sketch import READ, by_step
from lagreach.data.windows import Windows, windows_of_changes

PAIRS = 64  # of neighbours that are looked at
NUMBERS = 2**17  # that are read for that at most, but for a few pairs
ALIKE, ALIKE_ALONE = 0.2, 0.85  # correlation of inputs times that of targets; of inputs where targets have no steps
SURE = 7.0  # standard errors
FEWEST = 12  # pairs


def find_altered_windows(sequences: Sequences, kept: np.ndarray) -> Windows | None:
    """See whether sequences (those numbered `kept`) overlap though no step repeats exactly; None if they do not."""
    first = sequences.read([0])
    time = first.x.shape[1] if first.x.ndim > 1 else 0
    if time <= SHORTEST or first.lengths is not None or by_step(first.x, time) is None or len(kept) <= FEWEST:
        return None
    shift = _shift_of_neighbours(sequences, kept)
    if shift:
        return _in_order(sequences, kept, shift)
    if not pieces_come_again(sequences, kept):
        return None
    for side in ("x", "y"):
        if (windows := windows_of_changes(sequences, kept, side)) is not None:
            return windows
    nowhere = np.zeros(len(kept), dtype=int)
    return Windows(kept, nowhere, np.arange(len(kept)), nowhere, placed=False)


def _shift_of_neighbours(sequences: Sequences, kept: np.ndarray) -> int:
    """Steps by which every sequence starts after the one before; negative if it is the other way round, 0 if neither."""
    numbers = sequences.read([0]).x[:, :MOST_STEPS].numel()
    count = int(np.clip(NUMBERS // max(numbers, 1), FEWEST, PAIRS))
    chosen = np.unique(np.arange(count) * (len(kept) - 1) // count)
    both = read_steps(sequences, kept[np.concatenate((chosen, chosen + 1))])
    onward, back, apart = [], [], []
    for side in both:
        one, other = Shifts(side[: len(chosen)]), Shifts(side[len(chosen) :])
        onward.append(one.with_others(other)[:, 1:])
        back.append(other.with_others(one)[:, 1:])
        apart.append(one.with_others(other, np.roll(np.arange(len(chosen)), len(chosen) // 2))[:, 1:].mean(0))
    likely = [_likely(there, away, apart) for there, away in ((onward, back), (back, onward))]
    sign, place = np.unravel_index(np.argmax(likely), np.shape(likely))
    return int((place + 1) * (1 - 2 * sign)) if likely[sign][place] > 1 else 0


def _likely(there: list[np.ndarray], away: list[np.ndarray], by_chance: list[np.ndarray]) -> np.ndarray:
    """By shift, how far neighbours go together beyond what is asked for; zero where it may be chance.

    What neighbours have in common in whatever order is the same at both shifts, `there` and `away`.
    """
    sure = np.logical_and.reduce([_standing_out(one - other) for one, other in zip(there, away, strict=True)])
    alike = [np.maximum(one.mean(0) - chance, 0.0) for one, chance in zip(there, by_chance, strict=True)]
    return np.where(sure, np.prod(alike, axis=0), 0.0) / (ALIKE if len(alike) > 1 else ALIKE_ALONE)


def _standing_out(values: Float[np.ndarray, "pair shift"]) -> np.ndarray:
    """Shifts where the mean over pairs is above zero for sure."""
    mean, error = values.mean(0), values.std(0) / np.sqrt(max(len(values) - 1, 1))
    return (mean > SURE * error) & (mean > 0)


def _in_order(sequences: Sequences, kept: np.ndarray, shift: int) -> Windows:
    """Windows one after the other; a new series begins where one does not go with the one before."""
    numbers, stride = (kept if shift > 0 else kept[::-1]), abs(shift)
    together = []
    for start in range(0, len(numbers) - 1, READ):
        both = read_steps(sequences, numbers[start : start + READ + 1])
        sides = [at_same_step(side[:-1, stride:], side[1:, :-stride]) for side in both]
        together.append(np.max(sides, axis=0))
    goes_on = np.concatenate(together)
    series = np.concatenate(([0], np.cumsum(goes_on < 0.5 * np.median(goes_on))))
    return Windows(numbers, series, stride * np.arange(len(numbers)), np.zeros(len(numbers)))


def said_of(windows: Windows) -> str:
    """What a diagnosis says of them."""
    if not windows.placed:
        return (
            "the sequences overlap: pieces of some come again in others at other steps, a little changed; pass the whole series "
            "as lagreach.cut_series(x, y, length), or every sequence once if some are shifted versions of others"
        )
    return (
        "the sequences overlap: each goes up and down with another, a little changed, that starts about "
        f"{windows.stride} steps earlier; they are treated as windows of a series, as from lagreach.cut_series"
    )
