"""Several diagnoses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lagreach.diagnosis.result import Diagnosis
from lagreach.diagnosis.window import WindowAt
from lagreach.errors import InputError

if TYPE_CHECKING:
    import xarray as xr


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
            curves = {name for one in diagnosis.layers for name in one.window.curves}
            arrays = {name: diagnosis.curve(name) for name in sorted(curves)}
            arrays |= {
                name: getattr(diagnosis, name) for name in ("required", "required_if_present", "gain", "envelope")
            }
            reduced = {k: v.min("layer") if "layer" in v.dims else v for k, v in arrays.items()}
            parts.append(xr.merge([v.rename(k) for k, v in reduced.items()], join="outer"))
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
        return "\n".join(lines)


def compare(
    diagnoses: Sequence[Diagnosis],
    names: Sequence[str] | None = None,
    *,
    sequences: float | None = None,
    strength: float | None = None,
) -> Comparison:
    """Compare diagnoses at one number of sequences (the smallest any was made for) and one strength."""
    if not diagnoses:
        raise InputError("there is nothing to compare", expected="one diagnosis or more")
    labels = tuple(names) if names is not None else tuple(f"model {i}" for i in range(len(diagnoses)))
    if len(labels) != len(diagnoses):
        raise InputError("one name for every diagnosis", got=f"{len(labels)} names for {len(diagnoses)}")
    count = min(d.sequences for d in diagnoses) if sequences is None else sequences
    share = strength or diagnoses[0].layers[0].window.strength
    return Comparison(labels, tuple(d.window(count, share) for d in diagnoses), tuple(diagnoses))
