"""What if: N(l) and the window of a measured checkpoint for other sequences, strength, error, exponent or noise.

Nothing is measured again. N(l) is ``m (R_m / delta)^kappa`` (see `lagreach.detection.law`), and each setting has its
place in it: a planted signal grows as the square root of its share of the target, the noise multiplies R_m, the error
turns R_m by a ratio of quantiles, and kappa is the exponent. The sliders of the report compute the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lagreach._moved import warn_renamed
from lagreach.detection.law import block_size, exp, moved, strength_shift, turned
from lagreach.diagnosis.window import Requirement, Window, WindowAt, window_at
from lagreach.errors import InputError
from lagreach.types import Status


@dataclass(frozen=True)
class WhatIf:
    """Numbers for one setting: `planted` as `Window.required_if_present`, `in_data` as `Window.required`, and the window."""

    planted: Requirement
    in_data: Requirement
    at: WindowAt

    @property
    def found(self) -> Requirement:
        """The old name of `in_data`."""
        warn_renamed("WhatIf.found", "WhatIf.in_data")
        return self.in_data

    def __str__(self) -> str:
        return str(self.at)


def what_if(
    window: Window,
    *,
    sequences: float | None = None,
    strength: float | None = None,
    error: float | None = None,
    kappa: float | None = None,
    noise: float = 1.0,
) -> WhatIf:
    """N(l) and H_N of a measured window for other settings; what is not given stays as it was measured.

    Parameters
    ----------
    sequences
        Number of sequences that the window is read off at.
    strength
        Share of the target's variance that the planted dependency explains.
    error
        Error of the test. The lags found in the data stay those found at the measured error.
    kappa
        Concentration exponent, at least 2; the interval of the measured one no longer counts then.
    noise
        Factor on the gradient noise of every sequence.

    Notes
    -----
    A change of error multiplies R_m by the ratio of the (1 - error) quantiles of the symmetric stable law whose means
    concentrate with this exponent, ``alpha = kappa / (kappa - 1)``: the normal law for kappa = 2, where the result is
    the one that measuring with the other error would give.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(64, 24, 2, generator=torch.Generator().manual_seed(0))
    >>> y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    >>> window = lagreach.measure_window(lagreach.GatedRNN("diag_gate", 2, 8, 1), (x, y), lags=[0, 1, 3])
    >>> quiet, loud = what_if(window, noise=1.0).planted, what_if(window, noise=3.0).planted
    >>> (loud.sequences / quiet.sequences).round(9).tolist()  # kappa is 2
    [9.0, 9.0, 9.0]
    """
    count = window.sequences if sequences is None else sequences
    share = window.strength if strength is None else strength
    _check(count, share, error, kappa, noise)
    tested = window.error if error is None else error
    exponent = measured_exponent(window) if kappa is None else kappa
    log_range = math.log(noise) + log_quantile(exponent, tested) - log_quantile(exponent, window.error)
    normal = math.log(noise) + log_quantile(2.0, tested) - log_quantile(2.0, window.error)
    planted_shift = strength_shift(share)
    planted = _rescaled(window.probe, window, kappa, log_range + planted_shift, normal + planted_shift)
    in_data = _rescaled(window.required, window, kappa, log_range, normal)
    return WhatIf(planted, in_data, window_at(planted, in_data, count, share, window.lags_of_bands))


def measured_exponent(window: Window) -> float:
    """Return kappa as it enters N; where it was refused, N is NaN, and 2 is what lower bounds are made with."""
    rate = window.concentration
    return 2.0 if rate.status in (Status.KAPPA_REFUSED, Status.NO_SPREAD) else rate.exponent


def log_quantile(kappa: float, error: float) -> float:
    """Logarithm of the (1 - error) quantile of the stable law whose means concentrate with exponent kappa.

    >>> round(log_quantile(2.0, 0.05), 6)  # a normal law with standard deviation sqrt(2)
    0.844225
    """
    from lagreach.tails import stable

    return math.log(stable.isf(error, kappa / (kappa - 1)))


def _check(sequences: float, strength: float, error: float | None, kappa: float | None, noise: float) -> None:
    if not sequences > 0:
        raise InputError("the number of sequences must be positive", got=sequences)
    if not 0 < strength <= 1:
        raise InputError("strength is a share of the target's variance", got=strength, expected="0 < strength <= 1")
    if error is not None and not 0 < error < 0.5:
        raise InputError("error is a probability below one half", got=error)
    if kappa is not None and not 2 <= kappa < math.inf:
        raise InputError("no exponent is better than 2", got=kappa, expected="2 <= kappa < inf")
    if not 0 < noise < math.inf:
        raise InputError("the noise is multiplied by a positive number", got=noise, expected="a factor above 0")


def _rescaled(base: Requirement, window: Window, kappa: float | None, shift: float, normal: float) -> Requirement:
    """N(l) after log(R_m / delta) moved by `shift`, with another exponent if one is given.

    `normal` is the same for clipped values, whose exponent is 2. Where no dependence was found N stays infinite and
    `low` is a bound on it.
    """
    rate = window.concentration
    measured, start = measured_exponent(window), math.log(block_size(rate))
    infinite = np.isposinf(base.sequences)  # such lags have a bound, but no interval
    with np.errstate(divide="ignore"):
        log_n, log_low, log_high, log_slow = (
            np.log(numbers) for numbers in (base.sequences, base.low, base.high, base.pessimistic)
        )
    ends = rate.interval if rate.left_open else (measured, measured)
    if kappa is None:
        slow = rate.kappa_pessimistic if math.isfinite(rate.kappa_pessimistic) else measured
        low = np.minimum(*(moved(log_low, end, shift) for end in ends))
        high = np.maximum(*(moved(log_high, end, shift) for end in ends))
        sequences, pessimistic = moved(log_n, measured, shift), moved(log_slow, slow, shift)
    else:
        turn = kappa / measured
        sequences = moved(turned(log_n, measured, kappa, start), kappa, shift)
        with np.errstate(invalid="ignore"):
            below, above = _half_widths(log_n, log_low, log_high, start, measured, ends)
            bound = moved(turned(log_low, measured, kappa, start), kappa, shift)
            low = np.where(infinite, bound, sequences - turn * below)
            high = np.where(infinite, np.inf, sequences + turn * above)
        pessimistic = sequences
    return Requirement(
        base.lags, base.first, exp(sequences), exp(low), exp(high), exp(pessimistic),
        base.robust * exp(moved(0.0, 2.0, normal)), base.status,
    )  # fmt: skip


def _half_widths(
    log_n: Float[np.ndarray, "lag"],
    log_low: Float[np.ndarray, "lag"],
    log_high: Float[np.ndarray, "lag"],
    start: float,
    measured: float,
    ends: tuple[float, float],
) -> tuple[Float[np.ndarray, "lag"], Float[np.ndarray, "lag"]]:
    """Widths of the interval of log N without the part that comes from the interval of kappa.

    Where kappa is 2 and the other end is only possible, that end starts from another size than N does (see
    `lagreach.detection.law`); the part of the signal and the noise is then as wide above as below.
    """
    at_ends = [turned(log_n, measured, end, start) for end in ends]
    below = np.fmax(np.fmin(*at_ends) - log_low, 0.0)
    if ends[0] == measured < ends[1]:
        return below, below
    return below, np.fmax(log_high - np.fmax(*at_ends), 0.0)
