"""Whether sequences that agree do so by chance: where inputs and targets take few values, independent ones repeat.

Copies agree because they are copies, and are to be counted once. To count chance repeats once would change what the data
say: of rare events, the sequences without any would be gone, and what is left would depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lagreach.data.batch import known_lengths
from lagreach.data.sequences import Sequences
from lagreach.data.sketch import by_step, step_codes

LOOKED_AT = 256  # sequences that tell how often steps agree,
MOST_VALUES = 2**22  # with so many numbers at most
COMPARED = 128  # of them, where numbers are compared and not codes
FEW_VALUES = 16  # of a step, up to which it is told how one follows from the one before
MORE = 1.5  # times as many pairs as expected that may agree by chance
SURE = 3.0  # standard errors
COARSE = 0.02  # of the pairs with different inputs have the same target: then the same target says little
NEARLY_ALL = 0.95
HALF = 0.5


@dataclass(frozen=True)
class Agreeing:
    """Pairs of sequences, how many there are, and of how many the inputs, the targets and both agree."""

    pairs: float
    inputs: float
    targets: float
    both: float

    @classmethod
    def exactly(cls, inputs: Sequence[bytes], targets: Sequence[bytes], contents: Sequence[bytes]) -> Agreeing:
        """Count by hashes.

        >>> Agreeing.exactly([b"a", b"a", b"c"], [b"d", b"d", b"d"], [b"e", b"e", b"f"])
        Agreeing(pairs=3.0, inputs=1.0, targets=3.0, both=1.0)
        """
        count = float(len(inputs))
        return cls(count * (count - 1) / 2, *map(_same, (inputs, targets, contents)))

    def by_chance(self, expected: float) -> bool:
        """Whether inputs may agree without being copies, if so many of them are `expected` to.

        Either targets agree no more often where inputs do than elsewhere, or inputs agree as often as expected and targets
        have few values or follow from them.
        """
        elsewhere = (self.targets - self.both) / max(self.pairs - self.inputs, 1.0)
        given = self.both / max(self.inputs, 1.0)
        unrelated = elsewhere > 0 and self.both <= _most(elsewhere * self.inputs)
        coarse = elsewhere >= COARSE
        if self.inputs <= _most(expected) and (coarse or given >= NEARLY_ALL):
            return True
        return unrelated or (coarse and given - elsewhere <= HALF * (1 - elsewhere))


def _most(expected: float) -> float:
    """Pairs that may agree where so many are expected to."""
    return MORE * expected + SURE * math.sqrt(expected) + 2


def _same(hashes: Sequence[bytes]) -> float:
    _, counts = np.unique(np.array(hashes), return_counts=True)
    return float((counts * (counts - 1.0) / 2).sum())


class Steps:
    """Steps of the inputs of some sequences, which tell how often whole ones agree if steps do not know of each other.

    Where a sequence has ended, that is a value as well.
    """

    def __init__(self, sequences: Sequences) -> None:
        count = len(sequences)
        most = min(count, LOOKED_AT, max(2, MOST_VALUES // sequences.read([0]).x.numel()))
        batch = sequences.read(np.unique(np.linspace(0, count - 1, most).astype(int)).tolist())
        time, lengths = batch.x.shape[1] if batch.x.ndim > 1 else 1, known_lengths(batch)
        values = by_step(batch.x if batch.x.ndim > 1 else batch.x[:, None], time)
        assert values is not None
        ends = np.full(len(values), time) if lengths is None else lengths.cpu().numpy()
        inside = (np.arange(time) < ends[:, None])[..., None]
        self.values: Float[np.ndarray, "seq time dim"] = np.concatenate((np.where(inside, values, 0.0), inside), axis=2)

    def exact(self) -> float:
        """Share of the pairs whose inputs are expected to be the same."""
        codes = step_codes(self.values)
        agree = _agree(codes)
        if len(np.unique(codes)) > FEW_VALUES or len(agree) < 2:
            return float(agree.prod())
        both = _agree(codes[:, 1:] * np.uint64(31) + codes[:, :-1])  # steps in a row: few values may last
        return float(agree[0] * np.prod(both / np.maximum(agree[:-1], 1e-300)))

    def near(self, share: float) -> float:
        """Share of the pairs whose inputs are expected to be within a share of the usual distance."""
        values = self.values[:: -(-len(self.values) // COMPARED)]
        pair, time = np.triu_indices(len(values), 1), values.shape[1]
        apart = np.zeros(len(pair[0]))
        for step in range(time):
            apart += _squares(values[:, step], pair)
        usual = float(np.median(apart)) or float(apart.mean())
        within = share**2 * usual / time
        return float(np.prod([(_squares(values[:, step], pair) <= within).mean() for step in range(time)]))


def _agree(codes: np.ndarray) -> np.ndarray:
    """Share of the pairs that agree at each step."""
    count = len(codes)
    each = [np.unique(column, return_counts=True)[1] for column in codes.T]
    return np.array([(n * (n - 1.0)).sum() for n in each]) / max(count * (count - 1), 1)


def _squares(values: np.ndarray, pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.square(values[pair[0]] - values[pair[1]]).sum(1)
