"""The four decay laws of an envelope f(lag) and the windows that follow from them.

Everything is carried as natural logarithms, so a curve that falls to 1e-400 is as good as any other.
Import the public names from `lagreach.regimes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lagreach._util.arrays import Floats, Number, Numbers
from lagreach.detection.law import log_ratio, log_sequences
from lagreach.errors import InputError

LN10 = float(np.log(10.0))
Shape = Callable[[Floats, Mapping[str, Number]], Floats]


@dataclass(frozen=True)
class Law:
    """A decay law f(lag) = c * shape(lag), given by the logarithm of its shape and that one's inverse.

    Parameters
    ----------
    name, formula
        How users call it and how it prints.
    parameters
        Names of the shape's parameters; the prefactor ``c`` comes on top.
    log_shape
        (lags, parameters) -> log(f/c), strictly decreasing in the lag.
    lag_where
        (log(f/c), parameters) -> the real lag at which the shape has that value.
    """

    name: str
    formula: str
    parameters: tuple[str, ...]
    log_shape: Shape = field(repr=False)
    lag_where: Shape = field(repr=False)

    def log_value(self, lags: Numbers, params: Mapping[str, Number]) -> Floats:
        """Natural logarithm of f at `lags`; ``params`` holds ``log10_c`` and the shape's parameters."""
        with np.errstate(divide="ignore"):  # lag 0 of the power and logarithmic laws is +inf
            return params["log10_c"] * LN10 + self.log_shape(np.asarray(lags, dtype=np.float64), params)

    def checked(self, params: Mapping[str, Number]) -> dict[str, float]:
        """Return the parameters, ``c`` turned into ``log10_c``; refuse what does not belong to the law."""
        numbers = {name: float(value) for name, value in params.items()}
        for name, value in numbers.items():
            if name != "log10_c" and not (np.isfinite(value) and value > 0):
                raise InputError(
                    f"{name} of the {self.name} law must be a positive number",
                    got=value,
                    expected=f"{name} > 0",
                )
        if "c" in numbers and "log10_c" not in numbers:
            numbers["log10_c"] = float(np.log10(numbers.pop("c")))
        names = ("log10_c", *self.parameters)
        if set(numbers) != set(names) or not np.isfinite(numbers["log10_c"]):
            raise InputError(
                f"wrong parameters for the {self.name} law {self.formula}",
                got=", ".join(f"{name} = {value}" for name, value in params.items()) or "none",
                expected=", ".join(("c or log10_c", *self.parameters)),
            )
        return {name: numbers[name] for name in names}


def _stretched_lag(level: Floats, params: Mapping[str, Number]) -> Floats:
    depth = np.where(level <= 0, -level, np.nan)  # the law never exceeds its prefactor
    return params["tau"] * depth ** (1.0 / params["b"])


def _logarithmic_lag(level: Floats, params: Mapping[str, Number]) -> Floats:
    with np.errstate(over="ignore"):  # lags beyond float range are inf: that is the answer
        return np.expm1(np.exp(-level))


def _power_lag(level: Floats, params: Mapping[str, Number]) -> Floats:
    with np.errstate(over="ignore"):
        return np.exp(-level / params["beta"])


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "exponential",
            "c exp(-l/tau)",
            ("tau",),
            lambda lags, p: -lags / p["tau"],
            lambda level, p: -level * p["tau"],
        ),
        Law("power", "c l^-beta", ("beta",), lambda lags, p: -p["beta"] * np.log(lags), _power_lag),
        Law("logarithmic", "c / log(1+l)", (), lambda lags, p: -np.log(np.log1p(lags)), _logarithmic_lag),
        Law(
            "stretched",
            "c exp(-(l/tau)^b)",
            ("tau", "b"),
            lambda lags, p: -((lags / p["tau"]) ** p["b"]),
            _stretched_lag,
        ),
    )
}


def log_values(values: Numbers | None, log10_values: Numbers | None, name: str) -> Floats:
    """Natural logarithm of a curve given as such or as its log10; NaN or -inf where it is not positive."""
    if (values is None) == (log10_values is None):
        raise InputError(
            f"give {name} or log10_{name}",
            got="both" if values is not None else "neither",
            expected="exactly one of them",
        )
    if values is None:
        return np.asarray(log10_values, dtype=np.float64) * LN10
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.asarray(values, dtype=np.float64))


def check_lags(lags: Numbers, length: int) -> Floats:
    """Return the lags as floats; refuse NaN, negative ones and a length that does not fit the curve."""
    checked = np.asarray(lags, dtype=np.float64)
    if checked.ndim != 1 or checked.size == 0 or checked.size != length:
        raise InputError("lags and curve must have one entry a lag", got=f"{checked.shape} lags for {length} values")
    if not np.all(np.isfinite(checked)) or checked.min() < 0:
        raise InputError("lags must be finite and not negative", got=checked.tolist())
    return checked


def find_law(name: str) -> Law:
    """Look a law up by its name."""
    if name not in LAWS:
        raise InputError("unknown decay law", got=name, expected=", ".join(LAWS))
    return LAWS[name]


@dataclass(frozen=True)
class WindowGrowth:
    """How the window H_N grows with the number of sequences, if strength and noise are equal at all lags.

    It inverts N(lag) = constant * f(lag)^-kappa exactly, prefactors included. Made by `window_growth`.
    """

    law: str
    params: Mapping[str, Number]
    kappa: float
    constant: float

    def log_required(self, lags: Numbers) -> Floats:
        """Natural logarithm of N(lag)."""
        log_f = LAWS[self.law].log_value(lags, self.params)
        return log_sequences(-log_f, self.kappa, np.log(self.constant))

    def required(self, lags: Numbers) -> Floats:
        """N(lag), inf where it leaves float range."""
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(self.log_required(lags))

    def at(self, sequences: Numbers) -> Floats:
        """Real-valued window H_N for each number of sequences; NaN where not even lag 1 is within reach."""
        n = np.asarray(sequences, dtype=np.float64)
        if not np.all(n > 0):
            raise InputError("the number of sequences must be positive", got=sequences, expected="sequences > 0")
        level = -log_ratio(np.log(n), self.kappa, np.log(self.constant)) - self.params["log10_c"] * LN10
        lag = LAWS[self.law].lag_where(level, self.params)
        first = self.log_required(1.0)
        rounding = 8 * np.finfo(np.float64).eps * np.maximum(1.0, np.abs(first))  # N = N(1) itself reaches lag 1
        return np.where(np.log(n) >= first - rounding, np.fmax(lag, 1.0), np.nan)

    @property
    def formula(self) -> str:
        """The growth law in symbols, C being ``constant``."""
        return {
            "exponential": "H_N = tau [log(N/C)/kappa + log c]",
            "power": "H_N = [c (N/C)^(1/kappa)]^(1/beta)",
            "logarithmic": "H_N = exp[c (N/C)^(1/kappa)] - 1",
            "stretched": "H_N = tau [log(N/C)/kappa + log c]^(1/b)",
        }[self.law]

    def __str__(self) -> str:
        shown = ", ".join(f"{name} = {value:.4g}" for name, value in self.params.items())
        return f"{self.formula}   ({shown}, kappa = {self.kappa:.4g}, C = {self.constant:.4g})"


def window_growth(law: str, params: Mapping[str, Number], kappa: Number = 2.0, constant: Number = 1.0) -> WindowGrowth:
    """Growth law of the window for an envelope law (section 5.4 and appendix F, with kappa for alpha).

    Parameters
    ----------
    law
        "exponential", "power", "logarithmic" or "stretched".
    params
        ``c`` (or ``log10_c``) and the law's own parameters: ``tau``, ``beta`` or ``tau`` and ``b``.
    kappa
        Concentration exponent, at least 2.
    constant
        C in N(lag) = C f(lag)^-kappa, for instance ``required_sequences(strength, sigma, ...)``, the number
        of sequences a dependency needs where f = 1.

    Examples
    --------
    >>> growth = window_growth("power", {"c": 1.0, "beta": 1.0}, kappa=2.0, constant=100.0)
    >>> growth.at([50, 100, 10_000]).round(9).tolist()
    [nan, 1.0, 10.0]
    >>> window_growth("exponential", {"c": 1.0, "tau": 10.0}).formula
    'H_N = tau [log(N/C)/kappa + log c]'
    """
    checked = find_law(law).checked(params)
    if not (np.isfinite(kappa) and kappa > 0):
        raise InputError("kappa must be a positive number", got=kappa, expected="kappa >= 2 (or alpha, for v1)")
    if not (np.isfinite(constant) and constant > 0):
        raise InputError("constant must be a positive number", got=constant, expected="constant > 0")
    return WindowGrowth(law, checked, float(kappa), float(constant))
