"""`Diagnosis`: what was found about one model on one data set, frozen, printable and labelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from lagreach.diagnosis.window import Window, WindowAt
from lagreach.errors import InputError
from lagreach.regimes import Regimes
from lagreach.tails.fit import TailFit
from lagreach.transport.fidelity import Fidelity
from lagreach.transport.first_order import EffectiveRates
from lagreach.types import Status

if TYPE_CHECKING:
    import xarray as xr

SCHEMA_VERSION = 2
KEPT_NOISE, KEPT_ENDS = 512, 64  # order statistics that a diagnosis keeps, and how many of them at each end


@dataclass(frozen=True)
class NoiseSample:
    """Order statistics of the gradient noise of single sequences: enough for pictures, small enough for files.

    `values` are sorted; `levels` are their positions (rank + 1/2) / n among all `n` values. Up to 512 are kept: all of
    a small sample; of a large one the 64 at each end, where tails show, and evenly spaced ones between.
    """

    levels: Float[np.ndarray, "quantile"]
    values: Float[np.ndarray, "quantile"]
    n: int

    @classmethod
    def of(cls, samples: Float[np.ndarray, "seq"]) -> NoiseSample:
        """Keep the order statistics of a sample.

        >>> NoiseSample.of(np.array([3.0, 1.0, 2.0, 0.0])).levels.tolist()
        [0.125, 0.375, 0.625, 0.875]
        """
        n = len(samples)
        ranks = np.arange(n)
        if n > KEPT_NOISE:
            middle = np.linspace(KEPT_ENDS, n - 1 - KEPT_ENDS, KEPT_NOISE - 2 * KEPT_ENDS)
            ranks = np.concatenate((ranks[:KEPT_ENDS], np.round(middle).astype(int), ranks[n - KEPT_ENDS :]))
        return cls((ranks + 0.5) / n, np.sort(samples.astype(np.float64))[ranks], n)


@dataclass(frozen=True)
class LayerDiagnosis:
    """One recurrence of the model. `local`: its lags are steps within the layer, not of the whole model."""

    name: str
    local: bool
    window: Window
    fidelity: Fidelity
    rates: EffectiveRates | None  # None where first order has no meaning (projected LSTM)
    tail: TailFit
    regimes: Regimes
    noise: NoiseSample | None = None  # None in files that were written before it was kept


@dataclass(frozen=True)
class Diagnosis:
    """Reach, dependences and limits of a model, with everything needed to judge and to repeat them.

    `d.window(N)` is the reach with N sequences; `d.required` and `d.required_if_present` are labelled arrays over lag (and
    layer, when there are several); `print(d)` says it in words. `labels` tell diagnoses of one study apart. For a diagonal
    network `convergence` says where it stands to the second theory (`lagreach.papers.cayci.standing`): numbers by name,
    and ``"text"``.
    """

    layers: tuple[LayerDiagnosis, ...]
    sequences: int
    available: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    fingerprint: str
    seconds: Mapping[str, float]
    partial: bool = False
    warnings: tuple[str, ...] = field(default=())
    labels: Mapping[str, str | int | float] = field(default_factory=dict)
    convergence: Mapping[str, Any] | None = None
    about: Mapping[str, str] = field(default_factory=dict)  # model, data and date, for the head of a page

    def labelled(self, **labels: str | int | float) -> Diagnosis:
        """Return the same diagnosis with labels such as ``epoch=3`` or ``cell="lstm"`` added; reports sort by them."""
        return replace(self, labels={**self.labels, **labels})

    def layer(self, layer: int | str = 0) -> LayerDiagnosis:
        """Return one layer, by number or name."""
        names = [one_layer.name for one_layer in self.layers]
        if isinstance(layer, str) and layer in names:
            return self.layers[names.index(layer)]
        if isinstance(layer, int) and -len(names) <= layer < len(names):
            return self.layers[layer]
        raise InputError("there is no such layer", got=repr(layer), expected=f"one of {names}")

    def window(
        self, sequences: float | None = None, strength: float | None = None, layer: int | str | None = None
    ) -> WindowAt:
        """How far back `sequences` sequences reach; of several layers, the one that reaches farthest."""
        count = self.sequences if sequences is None else sequences
        chosen = self.layers if layer is None else (self.layer(layer),)
        windows = [one.window.at(count, strength) for one in chosen]
        return max(windows, key=lambda at: -1 if at.lag is None else at.lag)

    @property
    def required(self) -> xr.DataArray:
        """Sequences needed for the dependences found in the data; inf where none was found."""
        return self._by_lag(lambda window: window.required.sequences, "required")

    @property
    def required_if_present(self) -> xr.DataArray:
        """Sequences that a dependency of the given strength would need."""
        return self._by_lag(lambda window: window.required_if_present().sequences, "required_if_present")

    @property
    def gain(self) -> xr.DataArray:
        """Exact gain of the loss gradient over each lag."""
        values = [one.fidelity.exact.numpy() for one in self.layers]
        return self._array("gain", values, [one.fidelity.lags.tolist() for one in self.layers])

    @property
    def envelope(self) -> xr.DataArray:
        """First-order envelope f(l); NaN for layers without first order."""
        lags = [one.fidelity.lags.tolist() for one in self.layers]
        values = [
            np.full(len(layer_lags), np.nan) if one.rates is None else one.rates.envelope.numpy()
            for one, layer_lags in zip(self.layers, lags, strict=True)
        ]
        return self._array("envelope", values, lags)

    @property
    def kappa(self) -> float:
        """Concentration exponent of the first layer's gradient noise."""
        return self.layers[0].window.concentration.kappa

    @property
    def tail(self) -> TailFit:
        """Stable fit to the first layer's gradient noise."""
        return self.layers[0].tail

    @property
    def limits(self) -> dict[int, Status]:
        """Which limit binds at each examined lag, for the layer that reaches farthest there."""
        binding: dict[int, Status] = {}
        for one in self.layers:
            for lag in one.window.lags.tolist():
                limit = one.window.limit(lag, self.sequences)
                if lag not in binding or limit is Status.LIMIT_LEARNED:
                    binding[lag] = limit
        return binding

    def curve(self, name: str) -> xr.DataArray:
        """Return a number per lag by its name (`Window.curves`), over lag, and layer if there are several."""
        known = list(dict.fromkeys(name for one in self.layers for name in one.window.curves))
        if name not in known:
            raise InputError("there is no such curve", got=repr(name), expected=", ".join(known))
        curves = [one.window.curves.get(name) for one in self.layers]
        values = [np.empty(0) if curve is None else curve.value for curve in curves]
        return self._array(name, values, [[] if curve is None else curve.lags.tolist() for curve in curves])

    def _by_lag(self, values: Any, name: str) -> xr.DataArray:
        """Expand bands to every lag inside them, so that any lag can be selected."""
        lags, numbers = [], []
        for one in self.layers:
            requirement = one.window.required
            spans = [
                range(a, b + 1) for a, b in zip(requirement.first.tolist(), requirement.lags.tolist(), strict=True)
            ]
            lags.append([lag for span in spans for lag in span])
            numbers.append(np.repeat(values(one.window), [len(span) for span in spans]))
        return self._array(name, numbers, lags)

    def _array(self, name: str, values: list[np.ndarray], lags: list[list[int]]) -> xr.DataArray:
        import xarray as xr

        arrays = [
            xr.DataArray(layer_values, dims="lag", coords={"lag": own_lags}, name=name)
            for layer_values, own_lags in zip(values, lags, strict=True)
        ]
        if len(arrays) == 1:
            return arrays[0]
        names = xr.DataArray([one.name for one in self.layers], dims="layer", name="layer")
        return xr.concat(arrays, dim=names, join="outer")

    def to_xarray(self) -> xr.Dataset:
        """Everything as one dataset with named axes (layer, lag, unit, N)."""
        from lagreach.diagnosis.files import to_dataset

        return to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write a netCDF file that `lagreach.load` reads back; an existing file is replaced at the end, or not at all."""
        from lagreach.diagnosis.files import save

        save(self, path)

    def report(self, path: str | Path) -> None:
        """Write a self-contained HTML page."""
        from lagreach.report import write_report

        write_report(self, path)

    def __str__(self) -> str:
        from lagreach.report.text import describe

        return describe(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """Show the same in colour where rich prints it."""
        from lagreach.report.text import renderables

        yield from renderables(self)


def check_diagnosis(value: object) -> None:
    """Refuse what is no diagnosis, a forecast, say."""
    if not isinstance(value, Diagnosis):
        raise InputError("this is not a diagnosis", got=type(value).__name__, expected="what lagreach.diagnose returns")
