"""Fit a symmetric stable law to samples, by one of five estimators, and say whether the law is supported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagreach.errors import InputError
from lagreach.tails import ecf, hill, log_moment, mcculloch, mle, support
from lagreach.tails._common import (
    ALPHA_CEILING,
    ALPHA_FLOOR,
    Estimate,
    FloatArray,
    SupportCheck,
    as_generator,
    as_samples,
    half_spread,
    require_level,
)
from lagreach.types import Status

MIN_SAMPLES = 50

Estimator = Callable[[FloatArray, float], Estimate]  # centred samples and a confidence level to an estimate

ESTIMATORS: dict[str, Estimator] = {
    "mle": mle.estimate,
    "mcculloch": mcculloch.estimate,
    "ecf": ecf.estimate,
    "hill": hill.estimate,
    "log-moment": log_moment.estimate,
}


@dataclass(frozen=True)
class TailFit:
    """A symmetric stable law with characteristic function ``exp(i location t - |scale t|^alpha)``.

    Attributes
    ----------
    alpha, scale, location
        The fitted law; ``location`` is the median of the samples. NaN where nothing could be fitted.
    interval
        Of alpha, at confidence ``level``, for independent samples.
    n, method, level
        Number of samples, estimator, confidence level.
    stable_supported
        Whether all checks passed; None when they were not made.
    checks
        The statistics behind it, with their critical values.
    status
        What to make of the fit.
    """

    alpha: float
    scale: float
    location: float
    interval: tuple[float, float]
    n: int
    method: str
    level: float
    stable_supported: bool | None
    checks: tuple[SupportCheck, ...]
    status: Status

    @property
    def kappa(self) -> float:
        """Alpha / (alpha - 1): how means would concentrate *if* the law were stable; infinite for alpha <= 1."""
        if math.isnan(self.alpha):
            return math.nan
        return math.inf if self.alpha <= 1.0 else max(2.0, self.alpha / (self.alpha - 1.0))

    def __str__(self) -> str:
        verdict = {True: "stable model supported", False: "stable model not supported", None: "not checked"}
        low, high = self.interval
        head = (
            f"alpha = {self.alpha:.3f} in [{low:.3f}, {high:.3f}] at level {self.level:g}, scale = {self.scale:.4g} "
            f"({self.method}, n = {self.n}); {verdict[self.stable_supported]}"
        )
        return "\n".join([head, *(f"  {check}" for check in self.checks), f"  {self.status}"])


def fit_tail(
    samples: Any,
    method: str | Estimator = "mle",
    *,
    level: float | int = 0.95,
    check: bool = True,
    generator: Any = 0,
) -> TailFit:
    """Fit alpha and scale of a symmetric stable law.

    Parameters
    ----------
    samples
        Independent values, one-dimensional (numpy array, torch tensor or list): one per sequence, not one per
        step.
    method
        ``"mle"`` (most efficient), ``"mcculloch"`` (quantiles), ``"ecf"`` (characteristic function),
        ``"log-moment"`` (closed form), ``"hill"`` (tail index, a diagnostic only; not clipped at 2). Or an estimator of
        your own: a function of centred samples and a level that returns an `Estimate`
        (`lagreach.testing.check_estimator` checks it).
    level
        Confidence level of the interval of alpha.
    check
        Whether to run the three checks of `lagreach.tails.support` (they need 400 samples).
    generator
        Seed or generator of the random blocks that one check averages over.

    Notes
    -----
    The law is taken to be symmetric about the median of the samples, which is subtracted first; by symmetry this
    costs nothing to first order. alpha is searched in [0.5, 2]. A fitted alpha below 2 is no evidence of infinite
    variance: products of Gaussians fit as 1.2 ... 1.5. See `concentration` for what governs averages.

    Examples
    --------
    >>> from lagreach.tails import stable
    >>> fit = fit_tail(stable.rvs(1.5, 4000, 0))
    >>> fit.interval[0] < 1.5 < fit.interval[1], fit.stable_supported
    (True, True)
    >>> rng = np.random.default_rng(0)
    >>> product = fit_tail(rng.normal(size=4000) * rng.normal(size=4000))
    >>> product.alpha < 1.4, product.stable_supported
    (True, False)
    """
    if isinstance(method, str) and method not in ESTIMATORS:
        raise InputError("unknown tail estimator", got=repr(method), expected=f"one of {', '.join(ESTIMATORS)}")
    estimate = ESTIMATORS[method] if isinstance(method, str) else method
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    level = require_level(level)
    values = as_samples(samples)
    rng = as_generator(generator)
    n = values.size
    if n < MIN_SAMPLES:
        return _nothing(n, name, level, Status.TOO_FEW_SAMPLES)
    location = float(np.median(values))
    centred = values - location
    if half_spread(centred) == 0.0:
        return _nothing(n, name, level, Status.NO_SPREAD)
    checks = support.check_support(centred, rng) if check and n >= support.MIN_SAMPLES else ()
    return _assemble(estimate(centred, level), location, n, name, level, checks)


def _nothing(n: int, method: str, level: float, status: Status) -> TailFit:
    nan = math.nan
    return TailFit(nan, nan, nan, (nan, nan), n, method, level, None, (), status)


def _assemble(
    estimate: Estimate, location: float, n: int, method: str, level: float, checks: tuple[SupportCheck, ...]
) -> TailFit:
    supported = all(one.passed for one in checks) if checks else None
    if supported is False:
        status = Status.STABLE_NOT_SUPPORTED
    elif method == "hill":
        status = Status.TAIL_INDEX_ONLY
    elif estimate.alpha == ALPHA_CEILING:
        status = Status.ALPHA_AT_TWO
    elif estimate.alpha == ALPHA_FLOOR:
        status = Status.ALPHA_AT_FLOOR
    else:
        status = Status.OK
    return TailFit(
        estimate.alpha, estimate.scale, location, estimate.interval, n, method, level, supported, checks, status
    )
