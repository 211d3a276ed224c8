"""One look at the data before anything is measured: which sequences are new, and which depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from lagreach.data.batch import known_lengths
from lagreach.data.chance import Agreeing, Steps
from lagreach.data.copies import distinct, without_near_copies
from lagreach.data.course import Course
from lagreach.data.overlaps import find_altered_windows, said_of
from lagreach.data.sequences import Sequences, as_sequences
from lagreach.data.sketch import Sketch, batches, digest, plain
from lagreach.data.windows import Windows, find_windows

IGNORED = -100  # torch's convention for class targets that do not count
ROUGHLY = 512  # sequences that stand for all, where only the time that they take is asked for
SKETCH = {"x": 64, "y": 8}  # numbers that stand for a sequence when near copies are looked for
# correlation, and standard errors of it, from which sequences may be pieces of one recording
CONTINUED, SURE = 0.3, 5.0
CONTINUE = "each sequence seems to go on where the one before it ended: "
AS_A_SERIES = "they are treated as windows of a series, as from lagreach.cut_series"
NOT_AS_A_SERIES = (
    "if they were cut from one recording, p-values are too small; pass the whole of it as lagreach.cut_series(x, y, length) "
    "instead"
)


@dataclass(frozen=True)
class Survey:
    """What was seen.

    `kept` numbers the sequences that count: one of each that is there more than once, unless by chance. `hashes` holds those of
    each one's input and of all of it, `lengths` their lengths if they differ, `windows` where each lies in its series if they
    are windows of one.
    """

    kept: np.ndarray
    hashes: list[tuple[bytes, bytes]] = field(default_factory=list)
    lengths: np.ndarray | None = None
    masks_differ: bool = False
    windows: Windows | None = None
    notes: tuple[str, ...] = ()
    change: float = 1.0  # see `lagreach.data.course`


def survey(sequences: Sequences) -> Survey:
    """Look at every sequence once; windows that overlap are looked at once more."""
    count = len(sequences)
    if getattr(sequences, "from_one_series", False):
        stride = getattr(sequences, "stride", 0) or sequences.read([0]).x.shape[1]
        return Survey(np.arange(count), windows=Windows.consecutive(count, stride))
    inputs: list[bytes] = []
    contents: list[bytes] = []
    targets: list[bytes] = []
    lengths: list[int] = []
    masks: set[bytes] = set()
    sketches = {name: Sketch(size, seed) for seed, (name, size) in enumerate(SKETCH.items())}
    edges, course, one_number = _Edges(), Course(), True
    for batch in batches(sequences):
        x, y = plain(batch.x), plain(batch.y)
        row_lengths = [x.shape[1] if x.ndim > 1 else 1] * len(x) if batch.lengths is None else batch.lengths.tolist()
        mask, classes = None if batch.mask is None else plain(batch.mask), not batch.y.is_floating_point()
        one_number = one_number and y[0].size == 1 and bool((y == np.round(y)).all())
        for row, length in enumerate(row_lengths):
            target = y[row][:length] if y.ndim > 1 and x.ndim > 1 and y.shape[1] == x.shape[1] else np.asarray(y[row])
            weight = np.ones(0) if mask is None else mask[row][:length]
            inputs.append(digest(x[row][:length] if x.ndim > 1 else x[row]))
            targets.append(digest(target, weight))
            contents.append(digest(np.frombuffer(inputs[-1], np.uint8), target, weight, *_state(batch.state, row)))
            if mask is not None or classes:
                uneven, left_out = (
                    np.flatnonzero(weight != 1),
                    np.flatnonzero(target == IGNORED) if classes else np.ones(0),
                )
                masks.add(digest(uneven, weight[uneven], left_out))
        lengths += row_lengths
        inside = None if batch.lengths is None else np.arange(x.shape[1]) < np.array(row_lengths)[:, None]
        sketches["x"].add(batch.x, inside)
        sketches["y"].add(batch.y, inside)
        edges.add(x, y)
        if batch.x.is_floating_point() and batch.x.ndim > 1:
            told, values = known_lengths(batch), torch.as_tensor(x)
            ends = torch.full((len(x),), x.shape[1]) if told is None else told.cpu()
            course.add(values.flatten(2) if x.ndim > 2 else values[..., None], torch.arange(x.shape[1]) < ends[:, None])
    kept, notes = distinct(contents), []
    steps = cache(partial(Steps, sequences))  # which most data are not asked for
    if len(kept) < count and _alike_by_chance(Agreeing.exactly(inputs, targets, contents), steps):
        kept, contents = np.arange(count), _numbered(contents)
    if len(kept) < count:
        notes.append(
            f"{count - len(kept)} of {count} sequences are copies of others: {len(kept)} differ, and each counts once"
        )
    windows = find_windows(sequences, kept) if len(kept) > 1 else None
    if windows is not None:
        notes.append(
            f"the sequences overlap: each repeats steps of another that starts about {windows.stride} steps earlier; they are "
            "treated as windows of a series, as from lagreach.cut_series"
        )
    elif not edges.continued() and (windows := find_altered_windows(sequences, kept)) is not None:
        notes.append(said_of(windows))
    else:
        order = np.argsort([inputs[number] + contents[number] for number in kept], kind="stable")
        of_kept = [targets[number] for number in kept]
        of_x, of_y = (sketches[name].take()[kept] for name in ("x", "y"))
        new = without_near_copies(of_x, of_y, order, of_kept, classes=one_number, steps=steps)
        if len(new) < len(kept):
            notes.append(
                f"{len(kept) - len(new)} of {len(kept)} sequences are nearly copies of others (inputs and targets much closer to "
                f"each other than to all the rest, as augmentation makes them): {len(new)} are left, and each counts once"
            )
        kept = kept[new]
        if edges.continued():
            whole = len(kept) == count and len(set(lengths)) == 1
            windows = Windows.consecutive(count, lengths[0]) if whole else None
            notes.append(CONTINUE + (AS_A_SERIES if whole else NOT_AS_A_SERIES))
    change = course.change if windows is None else 1.0
    differ = len(set(lengths)) > 1
    return Survey(
        kept,
        [(inputs[number], contents[number]) for number in kept],
        np.array(lengths)[kept] if differ else None,
        len(masks) > 1,
        windows,
        tuple(notes),
        change,
    )


def _alike_by_chance(agreeing: Agreeing, steps: Callable[[], Steps]) -> bool:
    return agreeing.by_chance(agreeing.pairs * steps().exact())


def _numbered(contents: list[bytes]) -> list[bytes]:
    """Hashes that differ where contents are the same, so that these lie anywhere in an order that comes from them."""
    seen: dict[bytes, int] = {}
    numbered = []
    for content in contents:
        seen[content] = before = seen.get(content, -1) + 1
        numbered.append(digest(np.frombuffer(content, np.uint8), np.array([before])) if before else content)
    return numbered


def rough_survey(sequences: Sequences) -> Survey:
    """Look at the first sequences alone, and take the others for sequences of their kind; at all, if these are special."""
    count = len(sequences)
    if count <= ROUGHLY or getattr(sequences, "from_one_series", False):
        return survey(sequences)
    seen = survey(as_sequences(sequences.read(range(ROUGHLY))))
    if len(seen.kept) < ROUGHLY or seen.windows is not None or seen.lengths is not None or seen.masks_differ:
        return survey(sequences)
    return Survey(np.arange(count), [(number.to_bytes(8, "little"),) * 2 for number in range(count)])


def _state(state: Any, row: int) -> list[np.ndarray]:
    """Initial state of a sequence, if there is one."""
    if state is None:
        return []
    if isinstance(state, tuple):
        return [part for one in state for part in _state(one, row)]
    return [plain(state[row])]


class _Edges:
    """First and last steps of sequences, to see whether each goes on where the one before it ended."""

    def __init__(self) -> None:
        self._ends: dict[str, list[np.ndarray]] = {}

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add sequences, in their order."""
        for name, part in (("x", x), ("y", y)):
            if part.ndim < 2 or x.ndim < 2 or part.shape[1] != x.shape[1]:
                continue
            flat = part.reshape(*part.shape[:2], -1)[..., :4]
            self._ends.setdefault(name, []).append(np.stack((flat[:, 0], flat[:, -1]), axis=1))

    def continued(self) -> bool:
        """Whether inputs and targets both do."""
        return len(self._ends) == 2 and all(_goes_on(np.concatenate(ends)) for ends in self._ends.values())


def _goes_on(ends: np.ndarray) -> bool:
    """Whether ends (seq, first or last, dim) are closer to the next beginning than beginnings are to each other."""
    first, last = ends[:, 0] - ends[:, 0].mean(0), ends[:, 1] - ends[:, 1].mean(0)
    size = np.sqrt((first**2).mean() * (last**2).mean())
    if len(ends) < 16 or not size > 0:
        return False
    onward = (last[:-1] * first[1:]).mean() / size
    across = (first[:-1] * first[1:]).mean() / (first**2).mean()
    return bool(onward > max(CONTINUED, SURE / np.sqrt(len(ends))) and 1 - onward < 0.5 * (1 - across))
