"""`Forecast`: what will be recovered of each lag, and what stands in the way; frozen, printable and labelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from lagreach._util.bounds import counts_of
from lagreach.errors import InputError
from lagreach.forecasting.limits import NONE_FOUND, UNKNOWN, limits
from lagreach.statistics.linear_share import AMPLE, ShareCurves, Shares, check_strength
from lagreach.statistics.linear_share.curves import HALF

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

A_LITTLE = 0.02  # share of an old input that a state must tell for it to have arrived


@dataclass(frozen=True)
class Forecast:
    """Shares of each lag that training will recover, with everything needed to judge and to repeat them.

    `f.if_present` is the share of a planted dependency (lag, sequences), `f.in_data` that of the dependency in the data, NaN
    where none was found. Each has its interval in the coordinates ``low`` and ``high``: ``f.if_present.low``. `f.limits` says
    in a word what binds at each lag with the sequences one has. `f.at(...)` answers for other numbers of sequences or another
    strength without a new pass.

    Attributes
    ----------
    read, reach, within
        Shares as functions of the amount of fitting: of the readout; of all weights; of these (or of the readout, where that
        alone is fitted) within the optimiser's steps. None where they were not asked for.
    sequences
        Numbers of sequences that shares are given for.
    available
        Sequences in the data: what `limits` speaks of.
    sketch
        How much of a share the directions that were not looked at may add, per lag: what the second half of them added.
    adjusted_p
        Test of a dependence in the data, per lag, adjusted for all of them.
    """

    read: ShareCurves
    reach: ShareCurves | None
    within: ShareCurves | None
    sequences: tuple[int, ...]
    strength: float
    error: float
    available: int
    adjusted_p: Float[np.ndarray, "lag"]
    sketch: Float[np.ndarray, "lag"]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    fingerprint: str
    seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    labels: Mapping[str, str | int | float] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)  # model, data and date, for the head of a page

    def __post_init__(self) -> None:
        check_strength(self.strength)
        counts_of(self.sequences)

    @property
    def kind(self) -> str:
        """Which kind the network is of; see `lagreach.forecasting.kinds`. Files that do not tell are older: gates were meant."""
        return str(self.settings.get("kind", "gated"))

    @property
    def lags(self) -> tuple[int, ...]:
        """Lags that were looked at."""
        return self.read.lags

    @property
    def fits(self) -> list[ShareCurves]:
        """Fits that say what training recovers: of the readout, unless that is frozen, and of all weights."""
        frozen = self.settings.get("readout_frozen") and self.reach is not None
        return [curves for curves in (None if frozen else self.read, self.reach) if curves is not None]

    def at(self, sequences: Iterable[int] | int | None = None, strength: float | None = None) -> Forecast:
        """Return the same forecast for other numbers of sequences, or another strength."""
        wanted = self.sequences if sequences is None else counts_of(sequences)
        return replace(self, sequences=wanted, strength=self.strength if strength is None else strength)

    # shares by lag and number of sequences

    @cached_property
    def readable(self) -> xr.DataArray:
        """Share of a planted dependency that a readout fitted to the states recovers."""
        return self._array("readable", self.read.planted(self._numbers, self.strength))

    @cached_property
    def reachable(self) -> xr.DataArray:
        """Share that all weights recover, the network being linear in them near the checkpoint; NaN if not asked for."""
        return self._array("reachable", self._of(self.reach, self._numbers))

    @cached_property
    def budgeted(self) -> xr.DataArray:
        """Share that the weights that are fitted recover within the optimiser's steps; NaN if not asked for."""
        return self._array("budgeted", self._of(self.within, self._numbers))

    @cached_property
    def if_present(self) -> xr.DataArray:
        """Share of a planted dependency that training recovers: the larger of readable and reachable, within the steps.

        Without the readable share where the readout is frozen.
        """
        return self._array("if_present", self._planted(self._numbers))

    @cached_property
    def in_data(self) -> xr.DataArray:
        """Share of the dependency in the data that training recovers; NaN where none was found."""
        return self._array("in_data", self._data(self._numbers))

    # numbers of sequences by lag

    @cached_property
    def needed(self) -> xr.DataArray:
        """Sequences from which half of a planted dependency is recovered, however many steps that takes."""
        fewest = _better([curves.needed(self.strength) for curves in self.fits], smaller=True)
        ample = _better([curves.planted(np.array([AMPLE]), self.strength) for curves in self.fits])
        not_known = np.isinf(fewest.value) & (ample.value + self.rising[:, None] >= HALF)
        known = (np.where(not_known, np.nan, part) for part in (fewest.value, fewest.low, fewest.high))
        return self._by_lag("needed", Shares(*known))

    @cached_property
    def enough(self) -> Float[np.ndarray, "lag"]:
        """Sequences from which half of a planted dependency is recovered within the steps, if these are limited."""
        needed = np.asarray(self.needed.values)
        within = self.takes("budgeted")
        return needed if within is None else np.maximum(needed, within.value[:, 0])

    @cached_property
    def seen(self) -> xr.DataArray:
        """Sequences from which the gradient of a planted dependency stands out of its noise."""
        seen = self.takes("seen")
        assert seen is not None
        return self._by_lag("seen", seen)

    def takes(self, name: str) -> Shares | None:
        """Sequences from which each lag is "seen", or half of it "readable", "reachable" or "budgeted"; None if not asked for."""
        if name == "seen":
            return (self.reach or self.read).visible(self.strength, self.error)
        curves = {"readable": self.read, "reachable": self.reach, "budgeted": self.within}[name]
        return None if curves is None else curves.needed(self.strength)

    # what binds

    @cached_property
    def rising(self) -> Float[np.ndarray, "lag"]:
        """What all weights may recover beyond the random directions that were looked at: as much again for every doubling.

        The second half of the directions is the last doubling that was seen. Zero where all weights were looked at.
        """
        directions, weights = (self.settings.get(name) for name in ("directions", "weights"))
        if not directions or not weights or directions >= weights:
            return np.zeros(len(self.lags))
        return np.maximum(np.nan_to_num(self.sketch), 0.0) * math.log2(weights / directions)

    @property
    def found(self) -> list[bool]:
        """Whether the data depend on each lag, as far as the test tells."""
        return [bool(p <= self.error) for p in self.adjusted_p]

    @cached_property
    def limits(self) -> xr.DataArray:
        """What binds at each lag of the data's own dependency, with the sequences in the data; "none found" without one."""
        return self._words(self.limits_in_data_at(self.available))

    @cached_property
    def limits_if_present(self) -> xr.DataArray:
        """What would bind at each lag if the data depended on it, with the sequences in the data."""
        return self._words(self.limits_at(self.available))

    def limits_at(self, sequences: float) -> list[str]:
        """What would bind at each lag with so many sequences, if the data depended on it."""
        return self._limits(sequences, in_data=False)

    def limits_in_data_at(self, sequences: float) -> list[str]:
        """What would bind at each lag of the data's own dependency with so many sequences; "none found" without one.

        "unknown" where the sequences cannot tell whether there is one.
        """
        otherwise = np.where(np.isnan(self.adjusted_p), UNKNOWN, NONE_FOUND).tolist()
        words = self._limits(sequences, in_data=True)
        return [word if yes else none for word, yes, none in zip(words, self.found, otherwise, strict=True)]

    def _limits(self, sequences: float, *, in_data: bool) -> list[str]:
        def shares(curves: ShareCurves, count: float) -> np.ndarray:
            numbers = np.array([float(count)])
            recovered = curves.data(numbers) if in_data else curves.planted(numbers, self.strength)
            return recovered.value[:, 0]

        both = [curves for curves in (self.read, self.reach) if curves is not None]
        readable = shares(self.read, sequences)
        tells = np.fmax.reduce([curves.planted(np.array([AMPLE]), self.strength).low[:, 0] for curves in both])
        stands_out = (self.reach or self.read).visible(self.strength, self.error).value[:, 0] <= sequences
        return limits(
            readable if self.fits[0] is self.read else np.full_like(readable, np.nan),
            None if self.reach is None else shares(self.reach, sequences),
            np.fmax.reduce([shares(curves, AMPLE) for curves in self.fits]),
            None if self.within is None else shares(self.within, sequences),
            stands_out | (tells >= A_LITTLE),
            self.rising,
            budgeted_ample=None if self.within is None else shares(self.within, AMPLE),
        )

    def share(self, lag: int, sequences: int | None = None) -> dict[str, float]:
        """Share of a planted dependency at one lag, with its interval, for so many sequences (the most that were asked for)."""
        if lag not in self.lags:
            raise InputError("this lag was not looked at", got=lag, expected=f"one of {list(self.lags)}")
        numbers = self._planted(np.array([float(max(self.sequences) if sequences is None else sequences)]))
        place = self.lags.index(lag)
        return {name: float(getattr(numbers, name)[place, 0]) for name in ("value", "low", "high")}

    @property
    def _numbers(self) -> np.ndarray:
        return np.array(self.sequences, dtype=float)

    def _of(self, curves: ShareCurves | None, numbers: np.ndarray) -> Shares:
        if curves is not None:
            return curves.planted(numbers, self.strength)
        return Shares(*[np.full((len(self.lags), len(numbers)), np.nan)] * 3)

    def _planted(self, numbers: np.ndarray) -> Shares:
        best = _better([curves.planted(numbers, self.strength) for curves in self.fits])
        if self.within is None:
            return best
        return _better([best, self.within.planted(numbers, self.strength)], smaller=True)

    def curves(self, numbers: np.ndarray, *, in_data: bool) -> Shares:
        """Shares (lag, number) for any numbers of sequences: of the dependence in the data, or of a planted one."""
        return self._data(numbers) if in_data else self._planted(numbers)

    def _data(self, numbers: np.ndarray) -> Shares:
        best = _better([curves.data(numbers) for curves in self.fits])
        if self.within is not None:
            best = _better([best, self.within.data(numbers)], smaller=True)
        in_data = np.array(self.found)[:, None]
        return Shares(*(np.where(in_data, part, np.nan) for part in (best.value, best.low, best.high)))

    def _array(self, name: str, shares: Shares) -> xr.DataArray:
        import xarray as xr

        axes = ("lag", "sequences")
        ends = {"low": (axes, shares.low), "high": (axes, shares.high)}
        coords = {"lag": list(self.lags), "sequences": list(self.sequences), **ends}
        return xr.DataArray(shares.value, dims=axes, coords=coords, name=name)

    def _by_lag(self, name: str, numbers: Shares) -> xr.DataArray:
        import xarray as xr

        ends = {"low": ("lag", numbers.low[:, 0]), "high": ("lag", numbers.high[:, 0])}
        return xr.DataArray(numbers.value[:, 0], dims="lag", coords={"lag": list(self.lags), **ends}, name=name)

    def _words(self, words: list[str]) -> xr.DataArray:
        import xarray as xr

        return xr.DataArray(np.array(words), dims="lag", coords={"lag": list(self.lags)}, name="limits")

    # files and text

    def to_xarray(self) -> xr.Dataset:
        """Everything as one dataset with named axes (lag, sequences)."""
        from lagreach.forecasting.dataset import to_dataset

        return to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write a netCDF file that `lagreach.load` reads back; an existing file is replaced at the end, or not at all."""
        from lagreach.diagnosis.files import save_record

        save_record(self, self.to_xarray(), path)

    def plot(self, sequences: int | None = None) -> Figure:
        """Draw what will be recovered of each lag from so many sequences (those in the data), coloured by what binds.

        Below the bars stand the numbers of sequences from which each lag is seen, readable and reachable.
        """
        from lagreach.report.forecast_figure import forecast_figure

        return forecast_figure(self, sequences)

    def report(self, path: str | Path) -> None:
        """Write a self-contained HTML page that opens with this figure, and has sliders for sequences and strength."""
        from lagreach.report.forecast_page import write_forecast

        write_forecast(self, path)

    def __str__(self) -> str:
        from lagreach.forecasting.words import describe

        return describe(self)


def _better(parts: list[Shares], smaller: bool = False) -> Shares:
    """The larger (or smaller) of several numbers, each with its own interval."""
    values = np.stack([part.value for part in parts])
    missing = np.inf if smaller else -np.inf
    filled = np.where(np.isnan(values), missing, values)
    best = (filled.argmin(0) if smaller else filled.argmax(0))[None]
    return Shares(
        *(np.take_along_axis(np.stack([getattr(p, n) for p in parts]), best, 0)[0] for n in ("value", "low", "high"))
    )
