"""What an experiment gives back: curves over random starts, their slopes with intervals, and a table to print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagreach._util.arrays import Array
from lagreach.errors import InputError


@dataclass(frozen=True)
class Slope:
    """Slope of a curve on double logarithmic axes.

    value, low, high : mean over the starts, and its 95 % interval (Student)
    predicted : what the theory says, NaN where it says nothing
    """

    value: float
    low: float
    high: float
    predicted: float

    def __str__(self) -> str:
        said = "" if math.isnan(self.predicted) else f", predicted {self.predicted:+.2f}"
        return f"slope {self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]{said}"


@dataclass(frozen=True)
class Curve:
    """One measured quantity along an axis, for several random starts.

    Attributes
    ----------
    name, against
        The quantity, and the name of the axis.
    x
        Points on the axis.
    values
        (point, start).
    predicted
        Slope in the theory; None where it makes no statement.
    fit_from
        First point that counts for the slope, where the theory speaks of the far end only.
    """

    name: str
    against: str
    x: Array
    values: Array
    predicted: float | None = None
    fit_from: int = 0

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != len(self.x):
            raise InputError(
                "a curve has a row of values for every point",
                got=f"{self.values.shape} for {len(self.x)} points",
                expected="as many rows as points",
            )

    @property
    def typical(self) -> Array:
        """Median over the starts."""
        return np.asarray(np.median(self.values, axis=1))

    @property
    def slope(self) -> Slope:
        """Least squares line through the logarithms, start by start; NaN where a value is not positive.

        >>> widths = np.array([4.0, 16.0, 64.0])
        >>> print(Curve("error", "width", widths, np.outer(widths**-0.5, [1.0, 2.0, 3.0]), predicted=-0.5).slope)
        slope -0.50 [-0.50, -0.50], predicted -0.50
        """
        from scipy.special import stdtrit

        predicted = math.nan if self.predicted is None else self.predicted
        x, values = self.x[self.fit_from :], self.values[self.fit_from :]
        draws = values.shape[1]
        if len(x) < 2 or not (x > 0).all() or not (values > 0).all():
            return Slope(math.nan, math.nan, math.nan, predicted)
        t = np.log(x) - np.log(x).mean()
        each = (t[:, None] * np.log(values)).sum(0) / (t**2).sum()
        mean = float(each.mean())
        if draws < 2:
            return Slope(mean, math.nan, math.nan, predicted)
        half = float(stdtrit(draws - 1, 0.975) * each.std(ddof=1) / math.sqrt(draws))
        return Slope(mean, mean - half, mean + half, predicted)


@dataclass(frozen=True)
class Experiment:
    """Curves of one experiment; print it for a table.

    Attributes
    ----------
    name, question
        What it is called and what it asks.
    curves
        What was measured. Curves with the same axis stand side by side in the table.
    facts
        Single numbers that belong to it.
    scale, seed
        How large it was, and where its randomness came from.
    """

    name: str
    question: str
    curves: tuple[Curve, ...]
    facts: Mapping[str, float]
    scale: str
    seed: int

    @property
    def slopes(self) -> dict[str, Slope]:
        """Slopes of the curves for which the theory predicts one, by name."""
        return {curve.name: curve.slope for curve in self.curves if curve.predicted is not None}

    def curve(self, name: str) -> Curve:
        """Return a curve by its name."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        raise InputError("no such curve", got=repr(name), expected=", ".join(curve.name for curve in self.curves))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON; what is infinite or missing becomes None."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return [plain(part) for part in value]
            return float(value) if math.isfinite(value) else None

        curves = [
            {
                "name": curve.name,
                "against": curve.against,
                "x": plain(curve.x),
                "values": plain(curve.values),
                "fit_from": curve.fit_from,
                "slope": {key: plain(getattr(curve.slope, key)) for key in ("value", "low", "high", "predicted")},
            }
            for curve in self.curves
        ]
        facts = {name: plain(value) for name, value in self.facts.items()}
        return {
            "name": self.name, "question": self.question, "scale": self.scale, "seed": self.seed, "facts": facts,
            "curves": curves,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Experiment:
        """Rebuild an experiment from `to_dict`; what was infinite or missing is NaN."""
        curves = [
            Curve(
                name=str(curve["name"]),
                against=str(curve["against"]),
                x=np.array(curve["x"], dtype=float),
                values=np.array(curve["values"], dtype=float),
                predicted=curve["slope"]["predicted"],
                fit_from=int(curve["fit_from"]),
            )
            for curve in content["curves"]
        ]
        facts = {name: math.nan if value is None else float(value) for name, value in content["facts"].items()}
        return cls(content["name"], content["question"], tuple(curves), facts, content["scale"], int(content["seed"]))

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.scale}, seed {self.seed}): {self.question}"]
        for against in dict.fromkeys(curve.against for curve in self.curves):
            group = [curve for curve in self.curves if curve.against == against]
            lines.append(f"  by {against}: " + ", ".join(f"{x:g}" for x in group[0].x))
            width = max(len(curve.name) for curve in group)
            for curve in group:
                row = "  ".join(f"{value:9.3g}" for value in curve.typical)
                lines.append(
                    f"    {curve.name:<{width}}  {row}" + (f"  {curve.slope}" if curve.predicted is not None else "")
                )
        lines += [f"  {name}: {value:.4g}" for name, value in self.facts.items()]
        return "\n".join(lines)
