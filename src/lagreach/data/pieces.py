"""Pieces of sequences that come again in others, a little changed and at other steps, as in random crops of one series.

The beginnings of some sequences are compared with all pieces of a few others, whatever their offset and scale; then whole
overlaps are. As in `lagreach.data.copies` a gap tells: hardly any are a little less close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lagreach.data.alike import MOST_STEPS, Values, at_same_step, read_steps
from lagreach.data.sequences import Sequences

COMPARED = 2**18  # pieces with beginnings
READ_AT_MOST = 2**21  # numbers, but for a few beginnings
BEGINNINGS = (64, 512)
FEWEST_SEARCHED = 4
HALVES = (4, 16)  # steps of half a piece
NEAR = (0.03, 0.06, 0.12, 0.25, 0.35)  # distances of unit vectors, one after the other
WIDE = 3.0  # times as far there would be far more by chance, in however few directions pieces vary
FARTHEST = 0.8  # of pieces whose overlaps are looked at
MOSTLY, CHANCE = 0.5, 1.0  # of those within WIDE must be NEAR, and about two standard deviations more
FEWEST, MOST = 8, 256  # overlaps that are looked at
OFTEN = 0.3  # of all pairs: too often for windows of a series that holds more than a few of them
SHARP = 0.3  # times as near as a step on: what varies smoothly resembles itself a step on
RARER = 0.1  # times as many there may be by chance, if both halves of a piece are alike by chance
WITH_IT, SURE = 0.4, 4.0  # correlation of the other side there, and its standard errors
ROUNDING = 1e-3  # of distances


@dataclass(frozen=True)
class _Pairs:
    """Sequences (`inside`) that hold the beginnings of others (`begins`) from a step on."""

    inside: Int[np.ndarray, "pair"]
    begins: Int[np.ndarray, "pair"]
    step: Int[np.ndarray, "pair"]

    def rows(self, index: np.ndarray) -> _Pairs:
        return _Pairs(self.inside[index], self.begins[index], self.step[index])

    def others(self) -> _Pairs:
        """Sequences of other pairs at the same steps."""
        return _Pairs(self.inside, np.roll(self.begins, len(self.begins) // 2), self.step)

    def correlation(self, values: Float[np.ndarray, "seq time dim"]) -> Float[np.ndarray, "pair"]:
        """Of the steps in which two sequences overlap."""
        found = np.zeros(len(self.step))
        for step in np.unique(self.step).tolist():
            at = self.step == step
            found[at] = at_same_step(values[self.inside[at], step:], values[self.begins[at], : values.shape[1] - step])
        return found


def pieces_come_again(sequences: Sequences, kept: np.ndarray) -> bool:
    """Whether pieces of sequences (those numbered `kept`) are near beginnings of others, of inputs and targets alike."""
    numbers = sequences.read(kept[:1].tolist()).x[:, :MOST_STEPS].numel()
    count = min(int(np.clip(READ_AT_MOST // max(numbers, 1), *BEGINNINGS)), len(kept))
    some = read_steps(sequences, kept[np.arange(count) * len(kept) // count])
    time = some[0].shape[1]
    half = int(np.clip(time // 4, *HALVES))
    if time < 2 * half + 2:
        return False
    return any(_overlap(some, side, half) for side in range(len(some)))


def _overlap(some: list[Values], side: int, half: int) -> bool:
    """Whether inputs (0) or targets (1) have pieces in common, and the other side has them too."""
    pairs = _Pieces(some[side], half).in_common()
    if pairs is None or len(some) < 2:
        return pairs is not None
    other = some[1 - side]
    gain = pairs.correlation(other) - pairs.others().correlation(other).mean()
    return bool(gain.mean() > max(WITH_IT, SURE * gain.std() / np.sqrt(len(gain) - 1)))


class _Pieces:
    """Distances of beginnings from all pieces of a few sequences."""

    def __init__(self, values: Float[np.ndarray, "seq time dim"], half: int) -> None:
        count, time, _ = values.shape
        self._values, self._offsets = values, time - 2 * half + 1
        searched = int(np.clip(COMPARED // (self._offsets * count), min(FEWEST_SEARCHED, count), count))
        self._chosen = np.arange(searched) * count // searched
        self._halves = [self._compared(begin, half) for begin in (0, half)]
        self._alike = np.minimum(*self._halves)
        self._step = self._alike.argmax(2)
        self._distance = _distance(np.take_along_axis(self._alike, self._step[..., None], 2)[..., 0])

    def _compared(self, begin: int, half: int) -> Float[np.ndarray, "searched seq offset"]:
        """Correlation of half a piece with half a beginning."""
        beginnings = _unit(self._values[:, begin : begin + half].swapaxes(1, 2))
        held = self._values[self._chosen, begin : begin + half + self._offsets - 1]
        pieces = _unit(np.lib.stride_tricks.sliding_window_view(held, half, axis=1))
        alike = beginnings @ pieces.swapaxes(1, 2)
        alike[np.arange(len(self._chosen)), self._chosen] = -1.0
        return alike

    def in_common(self) -> _Pairs | None:
        """Those that come again, if there is a gap behind them; None where it may be chance."""
        for radius in NEAR:
            row, begins = np.nonzero((self._distance <= min(WIDE * radius, FARTHEST)) & (self._step > 0))
            if len(row) < FEWEST:
                continue
            some = np.unique(np.arange(MOST) * len(row) // MOST)
            row, begins = row[some], begins[some]
            pairs = _Pairs(self._chosen[row], begins, self._step[row, begins])
            apart = np.maximum(_distance(pairs.correlation(self._values)), self._distance[row, begins] / 2)
            near, wide = apart <= radius, int((apart <= WIDE * radius).sum())
            if near.sum() >= max(FEWEST, MOSTLY * wide + CHANCE * np.sqrt(wide)):
                within = self._distance <= np.quantile(self._distance[row, begins][near], 0.9)
                told = within.mean() <= OFTEN and self._sharp(row[near], pairs.rows(near), apart[near])
                return pairs.rows(near) if told and not self._by_chance(within) else None
        return None

    def _sharp(self, row: np.ndarray, pairs: _Pairs, apart: np.ndarray) -> bool:
        """Whether pieces a step on are much farther."""
        beside = [
            np.where(
                (pairs.step + by >= 0) & (pairs.step + by < self._offsets),
                _distance(self._alike[row, pairs.begins, np.clip(pairs.step + by, 0, self._offsets - 1)]),
                np.inf,
            )
            for by in (-1, 1)
        ]
        return bool(np.median(apart / np.maximum(np.minimum(*beside), ROUNDING)) <= SHARP)

    def _by_chance(self, within: np.ndarray) -> bool:
        """Whether halves are alike so often that both halves of a piece would be."""
        radius = float(self._distance[within].max())
        shares = [(_distance(half) <= radius).mean() for half in self._halves]
        return bool(np.prod(shares) * self._alike.size > RARER * within.sum())


def _distance(correlation: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(2 - 2 * correlation, 0.0))


def _unit(pieces: Float[np.ndarray, "... dim step"]) -> Float[np.ndarray, "... number"]:
    """Pieces without their means and scales, of each column, as vectors of length one; zero where nothing varies."""
    pieces = pieces - pieces.mean(-1, keepdims=True)
    length = np.sqrt(np.square(pieces).sum(-1, keepdims=True))
    varies = length > 1e-9
    pieces = np.where(varies, pieces / np.where(varies, length, 1.0), 0.0)
    columns = np.sqrt(np.maximum(varies.sum((-2, -1)), 1))
    return (pieces.reshape(*pieces.shape[:-2], -1) / columns[..., None]).astype(np.float32)
