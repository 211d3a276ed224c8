"""What every tail estimator shares: clean samples, a random generator, and the estimate it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lagreach.errors import InputError

FloatArray = NDArray[np.float64]

ALPHA_FLOOR = 0.5  # below this the stable functions are not claimed to be accurate
ALPHA_CEILING = 2.0


@dataclass(frozen=True)
class Estimate:
    """Point estimate and interval of one estimator; `fit_tail` turns it into a `TailFit`."""

    alpha: float
    scale: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class SupportCheck:
    """One statistic and the range in which it stays for stable samples."""

    name: str
    statistic: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the statistic is inside its range."""
        return self.low <= self.statistic <= self.high

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return f"{self.name}: {self.statistic:.4f} in [{self.low:.4f}, {self.high:.4f}], {verdict}"


def as_samples(samples: Any, name: str = "samples") -> FloatArray:
    """One-dimensional finite float64 array from a numpy array, a torch tensor or a list of numbers."""
    if type(samples).__module__.partition(".")[0] == "torch":
        samples = samples.detach().cpu().double().numpy()
    try:
        # a masked array would lose its mask here, so it is refused below with the other odd types
        values = np.asarray(samples)
        real = values.dtype.kind in "fiub" and not isinstance(samples, np.ma.MaskedArray)
    except ValueError:  # ragged nested lists
        real = False
    if not real:
        raise InputError(
            f"{name} must be real numbers",
            got=f"{type(samples).__name__}",
            expected="a one-dimensional array or tensor of numbers, one per sequence",
        )
    if values.ndim != 1:
        raise InputError(
            f"{name} must be one-dimensional",
            got=f"shape {values.shape}",
            expected="shape (sequences,)",
            fix="fit one lag or unit at a time",
        )
    values = values.astype(np.float64, copy=False)
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise InputError(
            f"{name} must be finite",
            got=f"{bad} of {values.size} values are NaN or infinite",
            fix="find where the gradient overflowed before fitting its tail",
        )
    return values


def as_generator(generator: Any) -> np.random.Generator:
    """Numpy generator from a seed, a numpy generator, or a torch generator (which is advanced by one draw)."""
    if isinstance(generator, np.random.Generator):
        return generator
    if isinstance(generator, int | np.integer) and not isinstance(generator, bool) and generator >= 0:
        return np.random.default_rng(int(generator))
    if type(generator).__module__.partition(".")[0] == "torch":
        import torch

        if isinstance(generator, torch.Generator):
            seed = torch.randint(2**62, (), generator=generator, device=generator.device)
            return np.random.default_rng(int(seed))
    raise InputError(
        "generator must be a source of randomness",
        got=repr(generator),
        expected="a non-negative integer seed, numpy.random.Generator or torch.Generator",
    )


def require_level(level: float | int) -> float:
    """Confidence level in (0, 1)."""
    if not 0.0 < level < 1.0:
        raise InputError("level must lie strictly between 0 and 1", got=level, expected="for example 0.95")
    return float(level)


def normal_width(level: float) -> float:
    """Half-width of a central interval of the standard normal law.

    >>> round(normal_width(0.95), 4)
    1.96
    """
    return NormalDist().inv_cdf(0.5 + 0.5 * level)


def clip_alpha(alpha: float) -> float:
    """Nearest alpha in the range that is searched."""
    return min(max(alpha, ALPHA_FLOOR), ALPHA_CEILING)


def clipped_interval(alpha: float, error: float, level: float) -> tuple[float, float]:
    """Normal interval around alpha, cut to the range that is searched."""
    half = normal_width(level) * error
    return clip_alpha(alpha - half), clip_alpha(alpha + half)


def half_spread(centred: FloatArray) -> float:
    """Half the interquartile range: close to the stable scale for every alpha in [1, 2]."""
    low, high = np.quantile(centred, (0.25, 0.75))
    return float(0.5 * (high - low))
