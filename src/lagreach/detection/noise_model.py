"""Noise of one sequence, in the one form that all of `lagreach.detection` computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lagreach._util.arrays import Floats, Numbers
from lagreach.errors import InputError
from lagreach.tails import stable

Rate = Literal["kappa", "stable", "v1"]
_RATES = ("kappa", "stable", "v1")


@dataclass(frozen=True)
class Noise:
    """Symmetric stable noise; the mean of N values is taken to have scale ``scale N^-assumed``.

    Attributes
    ----------
    alpha, scale
        Of one sequence's value.
    concentration
        1/kappa, the true rate at which means concentrate: 1 - 1/alpha, so not positive for alpha <= 1.
    assumed
        The rate asked for: the same, or 1/alpha for ``rate="v1"``.
    law_known
        False when only a measured kappa > 2 was given, so that alpha stands for a shape nobody has seen.
    """

    alpha: Floats
    scale: Floats
    concentration: Floats
    assumed: Floats
    law_known: bool

    @property
    def exponent(self) -> Floats:
        """Exponent of N(delta): 1/assumed, and inf where averaging does not help."""
        helps = self.concentration > 0
        return np.where(helps, 1.0 / np.where(helps, self.assumed, 1.0), np.inf)

    @property
    def mean_alpha(self) -> Floats:
        """The tail index where means concentrate; elsewhere 2, a placeholder beside an infinite exponent."""
        return np.where(self.concentration > 0, self.alpha, 2.0)

    def distance(self, sequences: Floats, delta: Floats) -> Floats:
        """Separation of the two hypotheses in scales of the mean of that many sequences."""
        return delta / self.scale * sequences**self.assumed

    def require_law(self, what: str) -> None:
        """Refuse a question that a concentration exponent alone does not answer."""
        if not self.law_known:
            raise InputError(
                f"{what} needs the law of the noise, not only how its means concentrate",
                got="kappa > 2 without alpha",
                expected="alpha, or kappa = 2 (Gaussian)",
                fix="pass the alpha of a stable fit with its scale as sigma",
            )


def noise_model(
    sigma: Numbers,
    alpha: Numbers | None,
    kappa: Numbers | None,
    rate: str,
    error: Numbers | None,
) -> Noise:
    """Check the arguments and bring all conventions for ``sigma`` to a stable law and its scale.

    A measured kappa > 2 stands for the stable law that concentrates as fast and has the same range
    q_{1-eps} - q_eps, which needs ``error``; without it the Gaussian shape is kept and ``law_known`` is False.
    """
    if rate not in _RATES:
        raise InputError("unknown rate", got=rate, expected=", ".join(_RATES))
    if alpha is not None and kappa is not None:
        raise InputError(
            "alpha and kappa both set the exponent",
            got=f"alpha = {alpha!r}, kappa = {kappa!r}",
            expected="one of them",
            fix="alpha for a stable law (kappa follows), kappa for a measured concentration exponent",
        )
    scale = checked_positive(sigma, "sigma")
    if alpha is not None:
        index = checked_positive(alpha, "alpha")
        if np.any(index > 2):
            raise InputError("alpha of a stable law is at most 2", got=alpha, expected="0 < alpha <= 2")
        concentration = 1.0 - 1.0 / index
        assumed = 1.0 / index if rate == "v1" else concentration
        return Noise(index, scale, concentration, assumed, True)
    if rate != "kappa":
        raise InputError(f"rate={rate!r} is a statement about a stable law", fix="pass alpha, or leave rate alone")
    exponent = np.asarray(2.0) if kappa is None else checked_positive(kappa, "kappa")
    if np.any(exponent < 2):
        raise InputError(
            "no average concentrates faster than the Gaussian one",
            got=f"kappa = {kappa!r}",
            expected="kappa >= 2",
            fix="use kappa = 2; for a tail index pass it as alpha",
        )
    concentration = 1.0 / exponent
    if error is None:
        two = np.full_like(exponent, 2.0)
        return Noise(two, scale / np.sqrt(2.0), concentration, concentration, bool(np.all(exponent == 2)))
    index = exponent / (exponent - 1.0)
    eps = checked_error(error)
    from scipy.special import ndtri  # loads slowly, and is not needed to import the package

    return Noise(index, -scale * ndtri(eps) / stable.isf(eps, index), concentration, concentration, True)


def checked_positive(number: Numbers, name: str) -> Floats:
    """Return positive finite floats, or refuse."""
    values = np.asarray(number, dtype=np.float64)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError(f"{name} must be positive and finite", got=number, expected=f"{name} > 0")
    return values


def checked_signal(delta: Numbers) -> Floats:
    """Return finite floats that are not negative, or refuse."""
    values = np.asarray(delta, dtype=np.float64)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise InputError(
            "delta must be finite and not negative", got=delta, fix="pass the magnitude; 0 means no signal"
        )
    return values


def checked_error(error: Numbers) -> Floats:
    """Return error probabilities between 0 and 1/2, or refuse."""
    values = np.asarray(error, dtype=np.float64)
    if values.size == 0 or not np.all((values > 0) & (values < 0.5)):
        raise InputError(
            "error must lie strictly between 0 and 0.5",
            got=error,
            expected="for instance 0.05",
            fix="0.5 is guessing; 0 takes infinitely many sequences",
        )
    return values
