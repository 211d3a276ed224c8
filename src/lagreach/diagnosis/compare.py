"""Several diagnoses side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lagreach.diagnosis.result import Diagnosis, check_diagnosis
from lagreach.diagnosis.window import WindowAt
from lagreach.errors import InputError
from lagreach.statistics import LagCurve, all_statistics

if TYPE_CHECKING:
    import xarray as xr


SHOWN = 8  # lags of a printed number, at most
# arrays of a diagnosis over every lag, and the curve that says whether more of it is better
EVERY_LAG = {
    "required": "required",
    "required_if_present": "required_if_present",
    "gain": "log10_gain",
    "envelope": "log10_envelope",
}


def _curves(diagnosis: Diagnosis) -> dict[str, LagCurve]:
    return {name: curve for one in diagnosis.layers for name, curve in one.window.curves.items()}


def _best(values: xr.DataArray, curve: LagCurve | None) -> xr.DataArray:
    """Of several layers, the best one."""
    if "layer" not in values.dims:
        return values
    return values.min("layer") if curve is not None and curve.larger_is == "worse" else values.max("layer")


@dataclass(frozen=True)
class Comparison:
    """Windows of several models at the same number of sequences and the same strength."""

    names: tuple[str, ...]
    windows: tuple[WindowAt, ...]
    diagnoses: tuple[Diagnosis, ...]

    def to_xarray(self) -> xr.Dataset:
        """N by model and lag, for figures."""
        import xarray as xr

        models = xr.DataArray(list(self.names), dims="model", name="model")
        parts = []
        for diagnosis in self.diagnoses:
            arrays = {name: _best(diagnosis.curve(name), curve) for name, curve in sorted(_curves(diagnosis).items())}
            arrays |= {
                name: _best(getattr(diagnosis, name), _curves(diagnosis).get(curve))
                for name, curve in EVERY_LAG.items()
            }
            parts.append(xr.merge([v.rename(k) for k, v in arrays.items()], join="outer"))
        return xr.concat(parts, dim=models, join="outer")

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        head = self.windows[0]
        lines = [f"reach with {head.sequences:,.0f} sequences, for dependencies explaining {100 * head.strength:g} %:"]
        for name, at, diagnosis in zip(self.names, self.windows, self.diagnoses, strict=True):
            ends = " to ".join("none" if end is None else str(end) for end in at.interval)
            lags = sorted({lag for layer in diagnosis.layers for lag in layer.window.dependences})
            depends = ", ".join(map(str, lags)) or "none"
            lines.append(
                f"  {name:<{width}}  lag {at.lag if at.lag is not None else '-':>5} ({ends})  found: {depends}"
            )
        return "\n".join([*lines, *self._numbers(width)])

    def _numbers(self, width: int) -> Iterator[str]:
        """Lines with what a page opens with, and with statistics from outside, at a few lags."""
        arrays, built_in = self.to_xarray(), all_statistics()
        curves = {name: curve for diagnosis in self.diagnoses for name, curve in _curves(diagnosis).items()}
        for name, curve in curves.items():
            if name in built_in and not (curve.look is not None and curve.look.opens):
                continue
            values = arrays[name].dropna("lag", how="all")
            values = values[:, np.unique(np.linspace(0, values.lag.size - 1, SHOWN).round().astype(int))]
            share = curve.unit == "share"
            unit = f" ({curve.unit})" if curve.unit and not share else ""
            yield f"{curve.title}{unit}, at lags {', '.join(map(str, values.lag.values))}:"
            for model, numbers in zip(self.names, values.values, strict=True):
                written = ("-" if np.isnan(v) else f"{v:.0%}" if share else f"{v:.3g}" for v in numbers)
                yield f"  {model:<{width}}  " + "  ".join(written)


def compare(
    diagnoses: Sequence[Diagnosis],
    names: Sequence[str] | None = None,
    *,
    sequences: float | None = None,
    strength: float | None = None,
) -> Comparison:
    """Compare diagnoses at one number of sequences (the smallest any was made for) and one strength."""
    if isinstance(diagnoses, Diagnosis):
        raise InputError("diagnoses come as a list", got="a Diagnosis", expected="compare([first, second])")
    for one in diagnoses:
        check_diagnosis(one)
    if not diagnoses:
        raise InputError("there is nothing to compare", expected="one diagnosis or more")
    labels = tuple(names) if names is not None else tuple(f"model {i}" for i in range(len(diagnoses)))
    if len(labels) != len(diagnoses):
        raise InputError("one name for every diagnosis", got=f"{len(labels)} names for {len(diagnoses)}")
    count = min(d.sequences for d in diagnoses) if sequences is None else sequences
    share = strength or diagnoses[0].layers[0].window.strength
    return Comparison(labels, tuple(d.window(count, share) for d in diagnoses), tuple(diagnoses))
