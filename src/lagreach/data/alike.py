"""Inputs and targets step by step, and how much sequences go up and down together where they overlap."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from lagreach.data.sequences import Sequences
from lagreach.data.sketch import batches, by_step

MOST_STEPS = 2**13  # of a sequence that are looked at
MOST_COLUMNS = 4
SHORTEST = 8  # steps that must overlap
TINY = 1e-8  # of the squares of a sequence, which rounding may leave


Values = Float[np.ndarray, "seq time _"]


def read_steps(sequences: Sequences, chosen: np.ndarray) -> list[Values]:
    """Inputs of these sequences, and targets if there is one for every step: columns that differ most between sequences."""
    parts: list[list[Values]] = []
    columns: list[np.ndarray] = []
    for batch in batches(sequences, chosen.tolist()):
        time = batch.x.shape[1]
        sides = [side[:, :MOST_STEPS] for side in (batch.x, batch.y) if side.ndim > 1 and side.shape[1] == time]
        read = [values for side in sides if (values := by_step(side, side.shape[1])) is not None]
        columns = columns or [_most_different(values) for values in read]
        parts.append([values[..., some] for values, some in zip(read, columns, strict=True)])
    return [_centred(np.concatenate(side)) for side in zip(*parts, strict=True)]


def _most_different(values: Values) -> np.ndarray:
    return np.sort(np.argsort(-values.var(0).mean(0), kind="stable")[:MOST_COLUMNS])


def _centred(values: Values) -> Values:
    """Without the mean of each sequence, and of a size whose squares are numbers."""
    largest = np.abs(values).max(initial=0.0)
    values = values / largest if largest > 0 else values
    return values - values.mean(1, keepdims=True)


class Shifts:
    """Sequences that are correlated with others at every shift; of both, offsets and scales do not count."""

    def __init__(self, values: Float[np.ndarray, "seq time dim"]) -> None:
        time = values.shape[1]
        self._size, self._most = 2 ** int(np.ceil(np.log2(2 * time))), time - SHORTEST + 1
        self._steps = (time - np.arange(self._most))[:, None]
        self._spectrum = np.fft.rfft(values, self._size, axis=1)
        sums = [np.cumsum(values**power, axis=1) for power in (1, 2)]
        self._first = [part[:, ::-1][:, : self._most] for part in sums]
        self._last = [part[:, -1:] - np.pad(part, ((0, 0), (1, 0), (0, 0)))[:, : self._most] for part in sums]

    def with_others(self, others: Shifts, rows: np.ndarray | slice = slice(None)) -> Float[np.ndarray, "seq shift"]:
        """Correlation of ``values[shift:]`` with those of `others` (`rows` of them) up to ``-shift``, the mean over columns."""
        products = np.fft.irfft(self._spectrum * np.conj(others._spectrum[rows]), self._size, axis=1)[:, : self._most]
        (sums, squares), (of_others, their_squares) = self._last, [part[rows] for part in others._first]
        spread, their_spread = squares - sums**2 / self._steps, their_squares - of_others**2 / self._steps
        known = (spread > TINY * squares[:, :1]) & (their_spread > TINY * their_squares[:, :1])
        scale = np.sqrt(np.where(known, spread * their_spread, 1.0))
        correlation = np.where(known, (products - sums * of_others / self._steps) / scale, 0.0)
        return correlation.sum(2) / np.maximum(known.sum(2), 1)


def at_same_step(one: Float[np.ndarray, "pair time dim"], other: Float[np.ndarray, "pair time dim"]) -> np.ndarray:
    """Correlation (pair) of sequences as they stand, the mean over columns."""
    one, other = one - one.mean(1, keepdims=True), other - other.mean(1, keepdims=True)
    scale = np.sqrt(np.square(one).sum(1) * np.square(other).sum(1))
    correlation = (one * other).sum(1) / np.where(scale > 0, scale, 1.0)
    return correlation.sum(1) / np.maximum((scale > 0).sum(1), 1)
