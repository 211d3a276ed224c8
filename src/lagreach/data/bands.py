"""Bands of lags: contiguous groups whose gradients are summed, so that no lag goes unexamined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lagreach.data.lags import check_lags, listed_lags
from lagreach.errors import InputError

GROWTH = 0.15  # width of an automatic band as a share of its lag
FEW = 14  # below this a band's width would be one lag in any case
EVERY = (
    64  # lags below this are bands of their own: the gradient of a band's nearest lag would drown that of the others
)


@dataclass(frozen=True)
class Bands:
    """Lag ranges (first, last), ascending and disjoint. A band is named by its far edge, its last lag."""

    edges: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def lags(self) -> list[int]:
        """The far edge of each band: what a dependency anywhere in it has to travel at most."""
        return [last for _, last in self.edges]

    @property
    def examined(self) -> list[int]:
        """All lags of all bands."""
        return [lag for first, last in self.edges for lag in range(first, last + 1)]

    def index(self, lag: int) -> int:
        """Number of the band that holds a lag."""
        for i, (first, last) in enumerate(self.edges):
            if first <= lag <= last:
                return i
        raise InputError("no band holds this lag", got=lag, expected=f"a lag in {self}")

    def __str__(self) -> str:
        return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.edges)


def make_bands(
    lags: str | Iterable[int], time: int, require: Iterable[int] = (), every: int = EVERY, growth: float = GROWTH
) -> Bands:
    """Automatic bands from 0 to T-1, or one band for every lag asked for.

    Parameters
    ----------
    every
        Lags below this are automatic bands of their own.
    growth
        Width of the bands from there on, as a share of their first lag.

    Examples
    --------
    >>> print(make_bands("auto", 32, every=FEW))
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14-15, 16-17, 18-19, 20-22, 23-25, 26-28, 29-31
    >>> len(make_bands("auto", 32)), len(make_bands("auto", 1024))
    (32, 85)
    >>> print(make_bands([4, 16], 32, require=[20]))
    4, 16, 20
    """
    asked = listed_lags(require, "require")
    required = check_lags(asked, time) if asked else []
    if isinstance(lags, str):
        if lags != "auto":
            raise InputError("unknown set of lags", got=repr(lags), expected='"auto" or integers')
        edges: list[tuple[int, int]] = []
        start = 0
        while start < time:
            width = 1 if start < every else max(1, int(growth * start))
            last = min(time - 1, start + width - 1)
            edges.append((start, last))
            start = last + 1
        return Bands(tuple(piece for edge in edges for piece in _split(edge, required)))
    return Bands(tuple((lag, lag) for lag in check_lags([*listed_lags(lags), *required], time)))


def _split(edge: tuple[int, int], required: list[int]) -> list[tuple[int, int]]:
    """Let every required lag be the far edge of a band."""
    first, last = edge
    cuts = [lag for lag in required if first <= lag < last]
    starts = [first, *[cut + 1 for cut in cuts]]
    return list(zip(starts, [*cuts, last], strict=True))
