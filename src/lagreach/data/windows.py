"""Windows of a series: where each lies, and how to see that sequences are such windows though nobody said so.

Windows that overlap repeat each other's steps: x[j, s:] is x[i, :-s] for a window i that starts s steps after window j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lagreach.data.batch import Batch
from lagreach.data.sequences import Sequences
from lagreach.data.sketch import batches, by_step, run_codes, step_codes

SAMPLE = 256  # sequences that are searched for the beginnings of others
OFTEN = 0.2  # share of them in which one must be found
FEW = 32  # sequences that tell how large changes are
ROUNDED = 2.0**-12  # of a usual change, within which changes are the same
BEYOND_CHANCE = 10  # bits by which a match must be rarer than all chances there are for one


@dataclass(frozen=True)
class Windows:
    """Numbers of sequences, the series that each was cut from, and the step where it starts there.

    `mark` holds a code of the contents of each; it puts series of the same length into an order of their own. Windows that
    overlap, nobody knows how, are not `placed`: series and start say nothing then.
    """

    number: np.ndarray
    series: np.ndarray
    start: np.ndarray
    mark: np.ndarray
    placed: bool = True

    @classmethod
    def consecutive(cls, count: int, stride: int) -> Windows:
        """Windows of one series, each `stride` steps after the one before."""
        return cls(np.arange(count), np.zeros(count, dtype=int), stride * np.arange(count), np.zeros(count))

    @property
    def stride(self) -> int:
        """Steps from one window of a series to the next, usually; 0 if no series has two."""
        gaps = np.concatenate([np.diff(self.start[chain]) for chain in self.chains()])
        return int(np.median(gaps)) if len(gaps) else 0

    def chains(self) -> list[np.ndarray]:
        """The windows of each series in order, as positions in these arrays; the longest series first."""
        order = np.lexsort((self.start, self.series))
        parts = np.split(order, np.flatnonzero(np.diff(self.series[order])) + 1)
        return sorted(parts, key=lambda part: (-len(part), self.mark[part[0]]))


def find_windows(sequences: Sequences, kept: np.ndarray) -> Windows | None:
    """See whether sequences (those numbered `kept`, no two alike) are windows that overlap; None if they are not.

    Inputs must repeat each other step by step, and so must targets where there is one for every step.
    """
    first = sequences.read([0])
    time = first.x.shape[1] if first.x.ndim > 1 else 0
    if time < 4 or first.lengths is not None or by_step(first.x, time) is None:
        return None
    repeated = _Repeated(sequences, kept, time, _inputs)
    if not repeated.often or not _targets_agree(sequences, *repeated.pairs):
        return None
    return repeated.windows()


def windows_of_changes(sequences: Sequences, kept: np.ndarray, side: str) -> Windows | None:
    """Where windows lie whose changes from step to step (of `side`, x or y) repeat each other; None if they do not."""
    first = sequences.read(kept[:FEW].tolist())
    time = first.x.shape[1]
    values = by_step(getattr(first, side), time)
    if values is None or time < 5 or not (usual := float(np.median(np.abs(np.diff(values, axis=1))))) > 0:
        return None

    def changes(batch: Batch, steps: int) -> Float[np.ndarray, "seq time dim"]:
        values = by_step(getattr(batch, side), time)
        assert values is not None
        return np.round(np.diff(values[:, : steps + 1], axis=1) / (ROUNDED * usual)) + 0.0  # no negative zeros

    repeated = _Repeated(sequences, kept, time - 1, changes)
    return repeated.windows() if repeated.often else None


class _Repeated:
    """Steps of some sequences that begin others: what `read` gives of a batch, step by step."""

    def __init__(
        self, sequences: Sequences, kept: np.ndarray, time: int, read: Callable[[Batch, int], np.ndarray]
    ) -> None:
        self._sequences, self._kept, self._time, self._read = sequences, kept, time, read
        self._chosen = np.arange(min(SAMPLE, len(kept))) * len(kept) // min(SAMPLE, len(kept))
        codes = np.concatenate(list(self._each(kept[self._chosen], time)))
        self._length = _telling_length(codes, len(kept))
        self.often = False
        if self._length >= time:
            return
        self._heads = np.concatenate([run_codes(some, self._length)[:, 0] for some in self._each(kept, self._length)])
        self._following, self._step = _starts_within(codes, self._length, self._heads, self._chosen)
        self.often = bool((self._step > 0).mean() >= OFTEN)

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequences of a sample within which others start, these, and the steps where they do."""
        overlap = self._step > 0
        return self._kept[self._chosen][overlap], self._kept[self._following[overlap]], self._step[overlap]

    def windows(self) -> Windows:
        """Where all of them lie."""
        parts, seen = [], 0
        for some in self._each(self._kept, self._time):
            numbers = np.arange(seen, seen := seen + len(some))
            parts.append((*_starts_within(some, self._length, self._heads, numbers), run_codes(some, self._time)[:, 0]))
        following, step, mark = (np.concatenate(side) for side in zip(*parts, strict=True))
        return Windows(self._kept, *_chained(following, step), mark)

    def _each(self, numbers: np.ndarray, steps: int) -> Iterator[np.ndarray]:
        """Codes of the first steps, some sequences at a time."""
        for batch in batches(self._sequences, numbers.tolist()):
            yield step_codes(self._read(batch, steps))


def _inputs(batch: Batch, steps: int) -> np.ndarray:
    values = by_step(batch.x[:, :steps], steps)
    assert values is not None
    return values


def _targets_agree(sequences: Sequences, one: np.ndarray, other: np.ndarray, step: np.ndarray) -> bool:
    """Whether targets repeat each other as the inputs do, at most steps; without a target for every step nobody can say."""
    same, steps = 0, 0
    pairs = zip(batches(sequences, one.tolist()), batches(sequences, other.tolist()), strict=True)
    at = iter(step.tolist())
    for earlier, later in pairs:
        time = earlier.x.shape[1]
        before, after = by_step(earlier.y, time), by_step(later.y, time)
        if before is None or after is None:
            return True
        for a, b in zip(step_codes(before), step_codes(after), strict=True):
            shift = next(at)
            same += int((a[shift:] == b[: time - shift]).sum())
            steps += time - shift
    return 2 * same > steps


def _telling_length(codes: np.ndarray, count: int) -> int:
    """Steps that must agree before it cannot be chance: many where there are few different ones."""
    _, often = np.unique(codes, return_counts=True)
    total = often.sum()
    same = (often * (often - 1.0)).sum() / (total * (total - 1.0))
    bits = -np.log2(max(same, 1 / (total * (total - 1.0))))
    chances = 2 * np.log2(max(count, 2)) + np.log2(codes.shape[1])
    return int(np.ceil((chances + BEYOND_CHANCE) / max(bits, 1e-6))) if bits > 1e-6 else codes.shape[1]


def _starts_within(
    codes: np.ndarray, length: int, heads: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each of these sequences the other one that starts within it and the step where it does, 0 if none does.

    Sequences that repeat themselves (a rhythm, tokens that come again) start within themselves, and are no windows for that.
    """
    runs = run_codes(codes, length)[:, 1:]
    order = np.argsort(heads, kind="stable")
    place = np.searchsorted(heads[order], runs)
    place = np.minimum(place, len(heads) - 1)
    inside = (heads[order][place] == runs) & (order[place] != numbers[:, None])
    step = np.where(inside.any(1), inside.argmax(1) + 1, 0)
    row = np.arange(len(runs))
    return np.where(step > 0, order[place][row, np.maximum(step - 1, 0)], -1), step


def _chained(following: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put windows that follow each other on one line: the number of the line, and where on it each starts."""
    count = len(following)
    series, start = np.full(count, -1), np.zeros(count, dtype=int)
    led_to = np.zeros(count, dtype=bool)
    led_to[following[step > 0]] = True
    lines = 0
    # from windows that follow no other one; what is then left goes round in circles, which may begin anywhere
    for first in [*np.flatnonzero(~led_to).tolist(), *np.flatnonzero(led_to).tolist()]:
        now, at = first, 0
        if series[first] >= 0:
            continue
        while series[now] < 0:
            series[now], start[now] = lines, at
            if step[now] == 0:
                break
            now, at = int(following[now]), at + int(step[now])
        lines += 1
    return series, start
