"""Mergeable summaries of samples: one pass, any order, any number of shards, the same answer.

`CharacteristicSums` feeds the characteristic-function fit, `QuantileSketch` the quantile fit, and
`SequenceValues` keeps the one number per sequence that bootstrap and block means need. ``add`` changes a summary
in place, ``merge`` returns a new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lagreach.errors import InputError
from lagreach.tails._common import FloatArray, as_samples

GRID = np.arange(1, 11) / 10.0  # of t times scale: where |cf| of a stable law falls from about 0.95 to 1/e
_CHUNK = 65_536


class CharacteristicSums:
    """Sums of cos(t x) and sin(t x) on the fixed grid ``t = GRID / scale``.

    Parameters
    ----------
    scale
        A rough scale of the samples, the same on every shard (half an interquartile range of a first batch will
        do): the grid, and with it the fit, hangs on it.

    Examples
    --------
    >>> left, right, whole = CharacteristicSums(2.0), CharacteristicSums(2.0), CharacteristicSums(2.0)
    >>> left.add([0.5, -1.0]); right.add([4.0]); whole.add([0.5, -1.0, 4.0])
    >>> both = left.merge(right)
    >>> both.n, bool(np.allclose(both.modulus, whole.modulus, rtol=1e-14))
    (3, True)
    """

    def __init__(self, scale: float | int) -> None:
        if not 0.0 < scale < math.inf:
            raise InputError("scale must be positive and finite", got=scale, fix="pass half an interquartile range")
        self.scale: float = float(scale)
        self.n: int = 0
        self._sums = np.zeros((2, GRID.size))

    def add(self, values: Any) -> None:
        """Take in more samples."""
        x = as_samples(values, "values") / self.scale
        for start in range(0, x.size, _CHUNK):
            angle = np.multiply.outer(GRID, x[start : start + _CHUNK])
            self._sums[0] += np.cos(angle).sum(axis=1)
            self._sums[1] += np.sin(angle).sum(axis=1)
        self.n += x.size

    def merge(self, other: CharacteristicSums) -> CharacteristicSums:
        """Sums over both sets of samples; both must have been made with the same scale."""
        if self.scale != other.scale:
            raise InputError(
                "characteristic-function sums can be merged only on the same grid",
                got=f"scales {self.scale!r} and {other.scale!r}",
                expected="one scale for all shards",
                fix="choose the scale on a first batch and hand it to every shard",
            )
        both = CharacteristicSums(self.scale)
        both.n = self.n + other.n
        both._sums = self._sums + other._sums
        return both

    @property
    def modulus(self) -> FloatArray:
        """|mean of exp(i t x)| on the grid: free of the location of the samples."""
        if self.n == 0:
            raise InputError("no samples have been added yet", fix="call add(values) first")
        return np.hypot(self._sums[0], self._sums[1]) / self.n


class QuantileSketch:
    """Counts in logarithmic buckets: every quantile within a stated relative error.

    The value at any rank is reported as ``x (1 +- relative_error)``, zeros exactly, negative values by mirrored
    buckets. The error is relative to the *value*: centre the samples first if they sit far from 0. Buckets are
    fixed in advance, so adding and merging commute exactly. Memory grows with the logarithm of the range of |x|
    over the error: about 7000 buckets per sign for six decades at 0.1 %.

    Parameters
    ----------
    relative_error
        Half the relative width of a bucket, in (0, 0.5].

    Examples
    --------
    >>> sketch = QuantileSketch(0.01)
    >>> sketch.add(np.arange(1.0, 1001.0))
    >>> bool(abs(sketch.quantile(0.95) / 950.0 - 1.0) < 0.011)
    True
    """

    def __init__(self, relative_error: float | int = 0.001) -> None:
        if not 0.0 < relative_error <= 0.5:
            raise InputError("relative_error out of range", got=relative_error, expected="0 < relative_error <= 0.5")
        self.relative_error: float = float(relative_error)
        self._log_base = math.log1p(relative_error) - math.log1p(-relative_error)
        self._buckets: dict[tuple[int, int], int] = {}  # (sign, index) -> count

    @property
    def n(self) -> int:
        """Number of samples taken in."""
        return sum(self._buckets.values())

    def add(self, values: Any) -> None:
        """Take in more samples."""
        x = as_samples(values, "values")
        index = np.zeros(x.size, dtype=np.int64)
        index[x != 0.0] = np.ceil(np.log(np.abs(x[x != 0.0])) / self._log_base).astype(np.int64)
        keys, counts = np.unique(np.stack([np.sign(x).astype(np.int64), index]), axis=1, return_counts=True)
        for sign, i, count in zip(*keys.tolist(), counts.tolist(), strict=True):
            self._buckets[sign, i] = self._buckets.get((sign, i), 0) + count

    def merge(self, other: QuantileSketch) -> QuantileSketch:
        """Counts of both; both must state the same relative error."""
        if self.relative_error != other.relative_error:
            raise InputError(
                "quantile sketches can be merged only at the same relative error",
                got=f"{self.relative_error} and {other.relative_error}",
            )
        both = QuantileSketch(self.relative_error)
        both._buckets = dict(self._buckets)
        for key, count in other._buckets.items():
            both._buckets[key] = both._buckets.get(key, 0) + count
        return both

    def quantile(self, p: Any) -> Any:
        """Value of rank ceil(p n) (the smallest for p = 0), within the stated relative error; p may be an array."""
        levels = np.asarray(p, dtype=np.float64)
        if not np.all((levels >= 0.0) & (levels <= 1.0)):
            raise InputError("p must be a probability", got=p, expected="0 <= p <= 1")
        if not self._buckets:
            raise InputError("no samples have been added yet", fix="call add(values) first")
        ordered = sorted(self._buckets, key=lambda key: (key[0], key[0] * key[1]))
        cumulative = np.cumsum([self._buckets[key] for key in ordered])
        ranks = np.clip(np.ceil(levels * cumulative[-1]), 1, None)
        chosen = np.searchsorted(cumulative, ranks)
        return np.array([self._middle(*key) for key in ordered])[chosen][()]

    def _middle(self, sign: int, index: int) -> float:
        """Point of a bucket whose relative distance to both its ends is the stated error.

        Bucket i holds (base^(i-1), base^i]; the point is base^i (1 - relative_error).
        """
        if sign == 0:
            return 0.0
        log_value = min(index * self._log_base, math.log(np.finfo(np.float64).max))
        return sign * math.exp(log_value) * (1.0 - self.relative_error)


class SequenceValues:
    """One value (or one row of values, for example one per lag) for each sequence, keyed by the sequence.

    Keys are integers (such as a 64-bit content hash) or strings, which are hashed. Values come out ordered by
    key, so the order of batches, sequences and merges leaves no trace. The same key may come again with the same
    value, which changes nothing; with another value it is an error.

    Examples
    --------
    >>> first, second = SequenceValues(), SequenceValues()
    >>> first.add([7, 3], [0.7, 0.3]); second.add([5], [0.5])
    >>> second.merge(first).values
    array([0.3, 0.5, 0.7])
    """

    def __init__(self) -> None:
        self._keys: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._values: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of distinct sequences."""
        return self._keys.size

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Keys in ascending order."""
        return self._keys.copy()

    @property
    def values(self) -> FloatArray:
        """Values, one row per sequence, in the order of `keys`."""
        return np.empty(0) if self._values is None else self._values.copy()

    def add(self, keys: Iterable[Any], values: Any) -> None:
        """Take in the values of some sequences."""
        hashed = np.array([_as_key(key) for key in keys], dtype=np.uint64)
        if type(values).__module__.partition(".")[0] == "torch":
            values = values.detach().cpu().double().numpy()
        rows = np.array(values, dtype=np.float64)
        if rows.ndim == 0 or rows.shape[0] != hashed.size:
            raise InputError(
                "one row of values per key",
                got=f"{hashed.size} keys, values of shape {rows.shape}",
                expected="as many rows as keys",
            )
        self._insert(hashed, rows)

    def merge(self, other: SequenceValues) -> SequenceValues:
        """Values of both."""
        both = SequenceValues()
        for part in (self, other):
            if part._values is not None:
                both._insert(part._keys, part._values)
        return both

    def _insert(self, keys: NDArray[np.uint64], rows: FloatArray) -> None:
        if self._values is not None:
            if rows.shape[1:] != self._values.shape[1:]:
                raise InputError(
                    "all sequences need values of one shape",
                    got=f"{rows.shape[1:]} after {self._values.shape[1:]}",
                )
            keys = np.concatenate([self._keys, keys])
            rows = np.concatenate([self._values, rows])
        distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
        same = (rows == rows[first][group]) | (np.isnan(rows) & np.isnan(rows[first][group]))
        if not same.all():
            clash = keys[~same.reshape(keys.size, -1).all(axis=1)]
            raise InputError(
                "one sequence came twice with different values",
                got=f"key {clash[0]}",
                fix="use keys that identify the sequence, and one model for all batches",
            )
        self._keys, self._values = distinct, rows[first]


def _as_key(key: Any) -> int:
    if isinstance(key, str):
        return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    if isinstance(key, int | np.integer) and not isinstance(key, bool) and -(2**63) <= key < 2**64:
        return int(key) % 2**64  # a signed hash and its unsigned twin are one key
    raise InputError("a sequence's key must identify it", got=repr(key), expected="a 64-bit integer or a string")
