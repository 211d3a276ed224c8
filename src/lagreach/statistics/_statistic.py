"""What a number per lag is: how it is collected from pieces of the data, and the curve it becomes.

A statistic is one file in this folder (or a class of a user's own, passed to `lagreach.diagnose`). It may collect something
in one of the two passes over the data, in an accumulator that merges, so that it is sharded and interrupted like the rest;
then it draws a curve from that and from what else was measured. Files, tables, pages, trackers and studies go through the
curves and know none of them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lagreach.errors import InputError
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.types import Status

STATES, DEPENDENCES = "states", "dependences"  # what the first and the second pass over the data offer
WINDOW, GAINS, RATES = "window", "gains", "rates"  # what a diagnosis has measured besides
SOURCES = frozenset({STATES, DEPENDENCES, WINDOW, GAINS, RATES})
# axes and arrays that a file has beside the numbers per lag
TAKEN = frozenset({"layer", "lag", "unit", "N", "first_lag", "limit", "log10_rate", "window", "record"})
MARKS = ("diamond", "line", "bar")  # in the order in which rows of a picture are drawn


@dataclass(frozen=True)
class Look:
    """How a number per lag is drawn together with others: pages and figures ask for this, and know no number by name.

    `picture` is the title of the picture that it shares, `meaning` its sentence in the caption. `lines` says which of its
    numbers are drawn there ("" is the value, others are those of `LagCurve.more`) and what each is called. `mark` is "line",
    "bar", or "diamond" (filled where the data depend on the lag). With `relative`, values are drawn beside the first one; with
    `fitted`, laws of decay stand beside them. A page `opens` with one bar for each lag.
    """

    picture: str = ""
    meaning: str = ""
    mark: str = "line"
    lines: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    relative: bool = False
    fitted: bool = False
    opens: bool = False

    def __post_init__(self) -> None:
        if self.mark not in MARKS:
            raise InputError(
                "a number per lag is drawn by a known mark", got=repr(self.mark), expected=", ".join(MARKS)
            )


@dataclass(frozen=True)
class LagCurve:
    """A number for every examined lag, with its interval and its status.

    `lags` are the far edges of the bands. `low` and `high` are NaN where there is no interval. `more` holds further numbers
    of the same curve by name (N at the slow end of kappa, say). With `log10`, values are decimal logarithms. `column` is the
    head of its column in the printed table, `tracked` its name in trackers ("n" gives ``n_lag_4``); neither is shown if empty.
    `look` says in which picture it stands with others.
    """

    name: str
    title: str
    lags: np.ndarray
    value: Float[np.ndarray, "lag"]
    low: Float[np.ndarray, "lag"]
    high: Float[np.ndarray, "lag"]
    status: tuple[Status, ...]
    unit: str = ""
    larger_is: str = "better"
    log10: bool = False
    column: str = ""
    tracked: str = ""
    more: Mapping[str, Float[np.ndarray, "lag"]] = field(default_factory=dict)
    look: Look | None = None

    def __post_init__(self) -> None:
        count = len(self.lags)
        arrays = (self.value, self.low, self.high, *self.more.values())
        lengths = {len(self.status), *(len(values) for values in arrays)}
        if lengths != {count}:
            raise InputError(
                f"the curve {self.name!r} has other numbers of values than of lags",
                got=f"{count} lags, and {', '.join(map(str, sorted(lengths)))} values",
                expected="one value, low, high and status for each lag",
            )

    @property
    def numbers(self) -> dict[str, np.ndarray]:
        """Every array by the name it has in files: the curve's own, with ``_low``, ``_high`` and what is in `more`."""
        ends = {"low": self.low, "high": self.high}
        shown = {k: v for k, v in ends.items() if not np.isnan(v).all()} | dict(self.more)
        return {self.name: self.value} | {f"{self.name}_{k}": v for k, v in shown.items()}

    def linear(self) -> LagCurve:
        """Return the curve with its values as they are, not as logarithms."""
        if not self.log10:
            return self
        with np.errstate(over="ignore", under="ignore"):
            return replace(self, value=10**self.value, low=10**self.low, high=10**self.high, log10=False)

    def better(self, one: float, other: float) -> float:
        """The better of two values, what is missing aside: of several layers, the best one counts."""
        pick = np.fmin if self.larger_is == "worse" else np.fmax
        return float(pick(one, other))


@runtime_checkable
class Accumulator(Protocol):
    """What a statistic collects from pieces of the data. It must pickle, and merging must not depend on the order."""

    def add(self, piece: PairBatch) -> None:
        """Take in some pairs of sequences, run through the model."""

    def merge(self, other: Any) -> None:
        """Take in what another accumulator has collected from other sequences."""


@dataclass(frozen=True)
class Measured:
    """What a diagnosis knows of one recurrence when curves are drawn: `collected` is the statistic's own accumulator."""

    window: Any  # lagreach.diagnosis.window.Window, which stands to the right of this folder
    gains: Any = None  # Fidelity
    rates: Any = None  # EffectiveRates
    collected: Any = None


class LagStatistic(ABC):
    """A number per lag.

    Attributes
    ----------
    name
        A word that is also a Python name: what the curve is called in files.
    title, unit
        For figures and tables.
    reads
        Where the numbers come from: "states" (an accumulator fed in the first pass), "dependences" (one fed in the second
        pass, which knows the lags that the data depend on), or "window", "gains", "rates" (what is measured anyway).
    larger_is
        "better" or "worse".
    column, tracked
        Head of the column in the printed table, and name in trackers; its name if None, not shown there if empty.
    look
        The picture that it shares with other numbers; each has one of its own besides.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = frozenset({STATES})
    larger_is: ClassVar[str] = "better"
    log10: ClassVar[bool] = False
    column: ClassVar[str | None] = None
    tracked: ClassVar[str | None] = None
    look: ClassVar[Look | None] = None

    def start(self, plan: MeasurementPlan, dependences: Sequence[int]) -> Accumulator | None:
        """Return an empty accumulator for this model and data; None if nothing has to be collected.

        `dependences` are the lags that the data depend on, known in the second pass and empty in the first.
        """
        return None

    @abstractmethod
    def curve(self, measured: Measured) -> LagCurve | None:
        """Draw the curve; None where this model has none."""

    def make(
        self,
        lags: np.ndarray | Sequence[int],
        value: np.ndarray,
        low: np.ndarray | None = None,
        high: np.ndarray | None = None,
        status: Sequence[Status] | None = None,
        **more: np.ndarray,
    ) -> LagCurve:
        """Put a curve together under this statistic's name; without a status, values that are NaN are not known."""
        values = np.asarray(value, dtype=float)
        missing = np.full(len(values), np.nan)
        column, tracked = (self.name if shown is None else shown for shown in (self.column, self.tracked))
        if status is None:
            status = [Status.NO_ANCHOR if np.isnan(v) else Status.OK for v in values]
        return LagCurve(
            name=self.name, title=self.title, lags=np.asarray(lags), value=values,
            low=missing if low is None else low, high=missing if high is None else high, status=tuple(status),
            unit=self.unit, larger_is=self.larger_is, log10=self.log10, column=column, tracked=tracked,
            more={name: np.asarray(numbers, dtype=float) for name, numbers in more.items()}, look=self.look,
        )  # fmt: skip


def check_statistics(statistics: Sequence[LagStatistic]) -> None:
    """Refuse statistics that would not find their place."""
    for one in statistics:
        if not isinstance(one, LagStatistic):
            raise InputError(
                "a statistic is an object of a LagStatistic class",
                got=type(one).__name__,
                fix="pass Mine(), not Mine; see docs/extend/adding-a-statistic.md",
            )
        if not one.name.isidentifier():
            raise InputError("the name of a statistic is a word", got=repr(one.name), expected="letters, digits and _")
        if one.name in TAKEN:
            raise InputError(
                "this name has another meaning in files",
                got=repr(one.name),
                expected="a name of its own",
                fix="rename yours",
            )
        unknown = one.reads - SOURCES
        if unknown:
            raise InputError(
                f"the statistic {one.name!r} reads what nothing provides",
                got=", ".join(sorted(unknown)),
                expected=", ".join(sorted(SOURCES)),
            )
    names = [one.name for one in statistics]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InputError("two statistics have the same name", got=", ".join(sorted(repeated)), fix="rename yours")
