"""Power analysis without a model: from a guess of envelope, signal and noise to sequences, or to a window.

Before training anything: *if the transport decayed like this, how many sequences would lag l take, and how far
back would my N reach?* Signal strength and noise are taken as equal at all lags, so the separation at lag l is
``signal * f(l)``; a diagnosis of a real network replaces this guess by measurements.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from lagreach._util.arrays import Array, Number, Numbers, finite_or_none
from lagreach._util.disk import as_path, save_figure
from lagreach.detection import detection_status, required_sequences
from lagreach.errors import InputError
from lagreach.regimes.laws import LAWS, WindowGrowth, check_lags, find_law, window_growth
from lagreach.types import Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_STEPS = 2.0**53  # beyond this a float no longer counts single lags
_LONGEST_DEFAULT_LAG = 2.0**40


@dataclass(frozen=True)
class Aggregation:
    """One way of combining sequences: what it needs, and how far it reaches.

    Attributes
    ----------
    name
        "mean" or "clipped".
    required
        N(lag) over the plan's lags; inf where no number suffices or it leaves float range.
    window
        Largest lag that the plan's sequences show; None when there is none (``status`` says why) or no number of
        sequences was given.
    growth
        N and window for other numbers, as a law; None where no number of sequences suffices.
    status
        OK, or what to know about the numbers.
    """

    name: str
    required: Array
    window: int | None
    growth: WindowGrowth | None
    status: Status


@dataclass(frozen=True)
class Plan:
    """A power analysis; print it for the table, `figure` draws it, `to_dict` makes JSON of it.

    Attributes
    ----------
    law, params
        Envelope law and its parameters, ``c`` being its prefactor.
    signal, sigma, alpha, kappa
        Separation where f = 1, noise of one sequence, its tail index (None: not a stable law) and the exponent with
        which means concentrate (inf: not at all).
    error
        Error probability at every lag.
    clip, batch
        Clipping threshold in scales, and how many sequences are averaged before it.
    lags, envelope, separation
        Axis ``lag``: f(lag) and signal * f(lag).
    sequences
        How many there are, if given.
    mean, clipped
        The two ways to aggregate.
    """

    law: str
    params: Mapping[str, float]
    signal: float
    sigma: float
    alpha: float | None
    kappa: float
    error: float
    clip: float
    batch: int
    lags: Array
    envelope: Array
    separation: Array
    sequences: float | None
    mean: Aggregation
    clipped: Aggregation

    @property
    def formula(self) -> str:
        """The envelope with its numbers, for people."""
        shown = {name: f"{value:.4g}" for name, value in self.params.items()}
        c = "" if self.params["c"] == 1 else f"{shown['c']} "
        return {
            "exponential": f"{c}exp(-l/{shown.get('tau')})",
            "power": f"{c}l^-{shown.get('beta')}",
            "logarithmic": f"{shown['c']}/log(1+l)",
            "stretched": f"{c}exp(-(l/{shown.get('tau')})^{shown.get('b')})",
        }[self.law]

    @property
    def noise(self) -> str:
        """The noise in words."""
        if self.alpha is not None and self.alpha < 2:
            words = f"stable with alpha = {self.alpha:.4g} and scale {self.sigma:.4g}"
        elif self.alpha is not None:
            words = f"Gaussian, stable scale {self.sigma:.4g} (standard deviation {self.sigma * math.sqrt(2):.4g})"
        elif self.kappa == 2:
            return f"Gaussian, standard deviation {self.sigma:.4g}"
        else:
            words = f"Gaussian-equivalent half range {self.sigma:.4g}"
        rate = "do not concentrate" if math.isinf(self.kappa) else f"concentrate as N^(-1/{self.kappa:.3g})"
        return f"{words}; means {rate}"

    def verdict(self) -> str:
        """What the given number of sequences shows, in one or two sentences."""
        if self.sequences is None:
            return "Give `sequences` to turn this into a window."
        mean, clipped = _window_words(self.mean), _window_words(self.clipped)
        return f"With {_count(self.sequences)} sequences the mean shows {mean}, clipping shows {clipped}."

    def __str__(self) -> str:
        clipping = f"clipped at {self.clip:g} scales" + (f" after means of {self.batch}" if self.batch > 1 else "")
        lines = [
            f"Power analysis: envelope f(l) = {self.formula}, signal {self.signal:.4g} where f = 1",
            f"noise of one sequence: {self.noise}",
            f"test: one-sided at level {self.error:g} with power {1 - self.error:g}, direction known; {clipping}",
            "",
            f"{'lag':>18}  {'f(l)':>10}  {'N, mean':>12}  {'N, clipped':>12}",
        ]
        rows = zip(self.lags, self.envelope, self.mean.required, self.clipped.required, strict=True)
        lines += [f"{_lag(lag):>18}  {f:>10.3g}  {_count(n):>12}  {_count(r):>12}" for lag, f, n, r in rows]
        lines += ["", self.verdict()]
        if (trust := detection_status(self.alpha)) is not Status.OK:
            lines.append(f"mean: {trust}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON; what is infinite or missing becomes None."""

        def way(aggregation: Aggregation) -> dict[str, Any]:
            return {
                "required": [finite_or_none(n) for n in aggregation.required],
                "window": aggregation.window,
                "status": aggregation.status.name,
                "advice": str(aggregation.status),
            }

        return {
            "law": self.law,
            "params": dict(self.params),
            "signal": self.signal,
            "sigma": self.sigma,
            "alpha": self.alpha,
            "kappa": finite_or_none(self.kappa),
            "error": self.error,
            "clip": self.clip,
            "batch": self.batch,
            "sequences": self.sequences,
            "lags": self.lags.tolist(),
            "envelope": self.envelope.tolist(),
            "separation": self.separation.tolist(),
            "mean": way(self.mean),
            "clipped": way(self.clipped),
        }

    def figure(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw N(lag) for both aggregations with the budget and the windows; save it if a path is given."""
        from lagreach.advice.plan_figure import plan_figure

        figure = plan_figure(self)
        if path is not None:
            save_figure(figure, as_path(path))
        return figure


def plan(
    law: str = "power",
    *,
    beta: Number | None = None,
    tau: Number | None = None,
    b: Number | None = None,
    scale: Number = 1.0,
    signal: Number = 1.0,
    sigma: Number = 1.0,
    alpha: Number | None = None,
    kappa: Number | None = None,
    error: Number = 0.05,
    sequences: Number | None = None,
    lags: Numbers | None = None,
    batch: Number = 1,
    clip: Number = 1.5,
) -> Plan:
    """Plan an experiment: which lags can N sequences show, and how many does each lag take?

    Parameters
    ----------
    law
        Envelope: "power" (``scale * l^-beta``), "exponential" (``scale * exp(-l/tau)``), "logarithmic"
        (``scale / log(1+l)``) or "stretched" (``scale * exp(-(l/tau)^b)``).
    beta, tau, b
        The law's own parameters; others are refused.
    scale
        Prefactor of the envelope.
    signal
        Separation Delta where the envelope is 1.
    sigma, alpha, kappa
        Noise of one sequence, as in `lagreach.detection`: with ``alpha`` the scale of a stable law, without it the
        standard deviation (or its Gaussian equivalent for ``kappa`` > 2).
    error
        Error probability at every lag.
    sequences
        How many independent sequences there are; leave out to get only N(lag).
    lags
        Lags of the table; default powers of two.
    batch, clip
        For the clipped aggregation: values are averaged over ``batch`` sequences and clipped at ``clip`` scales.
        (For a measured kappa > 2 the stable law with that kappa and the same range stands in.)

    Examples
    --------
    >>> study = plan("power", beta=1, signal=1, sigma=5, alpha=1.7, sequences=8000)
    >>> study.mean.window, study.clipped.window
    (1, 3)
    >>> plan("exponential", tau=20, sigma=5, sequences=8000, lags=[1, 10]).mean.window
    33
    """
    chosen = find_law(law)
    shape = {name: value for name, value in (("beta", beta), ("tau", tau), ("b", b)) if value is not None}
    params = chosen.checked({"c": scale, **shape})
    for name, value in (("signal", signal), ("sigma", sigma)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite", got=value, expected=f"{name} > 0")
    if sequences is not None:
        if not 1 <= sequences <= sys.float_info.max:
            raise InputError("there must be at least one sequence", got=sequences, expected="sequences >= 1, finite")
        sequences = float(sequences)  # a whole number may be too large for numpy's
    if batch != int(batch) or batch < 1:
        raise InputError("batch is a whole number of sequences", got=batch, expected="batch >= 1")

    at_one_mean = float(required_sequences(signal, sigma, alpha, kappa, error))
    at_one_clipped = float(
        required_sequences(signal, sigma, alpha, kappa, error, criterion="robust", clip=clip, batch=batch)
    )
    if alpha is None:
        exponent = 2.0 if kappa is None else float(kappa)
    else:
        exponent = float(alpha / (alpha - 1.0)) if alpha > 1 else math.inf
    growths = [
        window_growth(law, params, power, constant) if math.isfinite(constant) else None
        for power, constant in ((exponent, at_one_mean), (2.0, at_one_clipped))
    ]
    shown = _default_lags(growths, sequences) if lags is None else check_lags(lags, np.size(lags))
    if np.any(shown < 1):
        raise InputError("lags of a plan start at 1", got=shown.tolist(), expected="lags of 1 or more")
    mean = _aggregation("mean", growths[0], shown, sequences, detection_status(alpha))
    clipped = _aggregation("clipped", growths[1], shown, sequences, Status.OK)
    envelope = np.exp(LAWS[law].log_value(shown, params))
    return Plan(
        law=law,
        params={"c": float(scale), **{name: params[name] for name in chosen.parameters}},
        signal=float(signal),
        sigma=float(sigma),
        alpha=None if alpha is None else float(alpha),
        kappa=exponent,
        error=float(error),
        clip=float(clip),
        batch=int(batch),
        lags=shown,
        envelope=envelope,
        separation=signal * envelope,
        sequences=sequences,
        mean=mean,
        clipped=clipped,
    )


def _default_lags(growths: list[WindowGrowth | None], sequences: Number | None) -> Array:
    """Powers of two, to 1024 or to twice the longer window; of a larger base where that makes many."""
    longest = 1024.0
    if sequences is not None:
        windows = [float(growth.at(sequences)) for growth in growths if growth is not None]
        longest = min(np.nanmax([longest, *(2 * window for window in windows)]), _LONGEST_DEFAULT_LAG)
    octaves = math.ceil(math.log2(longest))
    stride = math.ceil(octaves / 12)
    return np.exp2(np.arange(0, octaves + stride, stride, dtype=np.float64))


def _aggregation(
    name: str, growth: WindowGrowth | None, lags: Array, sequences: Number | None, status: Status
) -> Aggregation:
    if growth is None:
        return Aggregation(name, np.full(lags.shape, np.inf), None, None, status)
    required = growth.required(lags)
    if sequences is None:
        return Aggregation(name, required, None, growth, status)
    window, reached = _whole_window(growth, sequences)
    return Aggregation(name, required, window, growth, status if reached is Status.OK else reached)


def _whole_window(growth: WindowGrowth, sequences: Number) -> tuple[int | None, Status]:
    real = float(growth.at(sequences))
    if math.isnan(real):
        return None, Status.NOT_EVEN_LAG_ONE
    if real >= _MOST_STEPS:
        return None, Status.WINDOW_UNBOUNDED
    # a whole lag that takes exactly these sequences counts, whichever way its logarithm was rounded
    nearest = round(real)
    exact = abs(float(growth.log_required(nearest)) - math.log(sequences)) < 1e-12 if nearest >= 1 else False
    return (nearest if exact else math.floor(real)), Status.OK


def _window_words(way: Aggregation) -> str:
    if way.window is not None:
        return f"lags up to {way.window:,}" if way.window > 1 else "lag 1"
    return "any practical lag" if way.status is Status.WINDOW_UNBOUNDED else "no lag"


def _lag(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _count(number: float) -> str:
    """Sequences are whole; huge numbers in powers of ten."""
    if math.isinf(number):
        return "inf"
    return f"{max(1, math.ceil(number)):,}" if number < 1e7 else f"{number:.2e}"
