"""How fast averages over sequences concentrate: the exponent kappa, measured without a model of the tails.

R_m is the distance between the ``error`` and ``1 - error`` quantiles of means of m sequences. It falls as
m^(-1/kappa): kappa = 2 for any law with finite variance once m is large, kappa = alpha / (alpha - 1) for stable
laws. Fits of a stable law do not give this exponent (products of Gaussians look like alpha = 1.2 ... 1.5 to every
one of them and have kappa = 2), so it is measured from the means themselves.

What is measured is the exponent between two sizes m; asked for is the one of far larger means. Where some sequences
are louder than others, or tails are long but the variance is finite, R_m falls slowly at first and as m^(-1/2) later.
So an exponent below 1/2 counts only if the samples show that it stays there: it does not move towards 1/2 (or away
from it) as m grows, and R_m sqrt(m) has not yet reached what the standard deviation gives. Otherwise kappa is 2, N
comes from the standard deviation, and the measured exponent is the pessimistic end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lagreach.errors import InputError
from lagreach.tails._common import as_generator, as_samples, require_level
from lagreach.tails.block_means import (
    SMALLEST_TOP,
    bootstrap,
    dyadic,
    largest_trusted,
    measure_spreads,
    slope,
    three_sizes,
    two_sided,
)
from lagreach.tails.law_of_n import exp, log, log_sequences
from lagreach.types import Status

TAIL_COUNT = 25  # values beyond each quantile that an estimate of kappa needs: 500 sequences at error = 0.05
REFUSE_BELOW = 1.0 / 11.0  # of the lower end of 1/kappa
GAUSSIAN = 0.5  # 1/kappa of laws with finite variance: no exponent is better than this


@dataclass(frozen=True)
class RequiredN:
    """Number of sequences whose mean spreads no more than the signal ``delta``.

    ``sequences`` is NaN where it would have to be extrapolated and must not be; ``pessimistic`` is the same number
    at the pessimistic end of kappa. ``status`` says where the number comes from.
    """

    delta: float
    sequences: float
    pessimistic: float
    status: Status

    @property
    def measured(self) -> bool:
        """Whether the samples reach that far, so that no exponent was needed."""
        return self.status is Status.N_MEASURED

    def __str__(self) -> str:
        number = f"N = {self.sequences:.3g} (pessimistic {self.pessimistic:.3g})"
        return f"{number} for delta = {self.delta:.3g}: {self.status}"


@dataclass(frozen=True)
class Concentration:
    """Measured concentration of means over sequences.

    Attributes
    ----------
    kappa
        Exponent to use: N grows as delta^-kappa. Never below 2; exactly 2 when 2 is inside the interval;
        NaN when it cannot be estimated.
    interval
        Of kappa, at ``level``; the upper end is infinite when means may not concentrate at all.
    kappa_pessimistic
        Upper end of ``interval``: the slowest concentration that the samples allow.
    inverse_kappa
        1/kappa as measured between the two sizes in ``blocks``, log(R_m / R_M) / log(M / m); not capped.
    inverse_interval
        Of the 1/kappa of means larger than those measured. The lower end is that of ``inverse_kappa`` (percentile
        bootstrap): as slow as measured. The upper end is 1/2 unless the samples show that 1/kappa stays below as
        means grow; see `concentration`.
    status
        ``OK`` (measured, and larger than 2), ``KAPPA_TWO``, ``KAPPA_NOT_ESTIMABLE``, ``KAPPA_REFUSED``,
        ``NO_SPREAD`` or ``INTERRUPTED``.
    blocks
        The two block sizes m, M that gave 1/kappa.
    sizes, spreads
        Block sizes 1, 2, 4, ... and R at each, corrected by sqrt(1 - m/n) for drawing without replacement.
    n, error, level
        Number of sequences, quantile level of R, confidence level.
    sd
        Standard deviation of the samples, which N rests on where kappa is 2; NaN in files of older versions.
    """

    kappa: float
    interval: tuple[float, float]
    kappa_pessimistic: float
    inverse_kappa: float
    inverse_interval: tuple[float, float]
    status: Status
    blocks: tuple[int, int]
    sizes: tuple[int, ...]
    spreads: tuple[float, ...]
    n: int
    error: float
    level: float
    sd: float = math.nan

    def spread(self, m: int) -> float:
        """R_m for one of the block sizes in ``sizes``."""
        if m not in self.sizes:
            raise InputError("R was not measured for this block size", got=m, expected=f"one of {self.sizes}")
        return self.spreads[self.sizes.index(m)]

    @property
    def reach(self) -> int:
        """Largest block size at which R still rests on enough independent means (n/50 at error = 0.05)."""
        return largest_trusted(self.n, self.error)

    @property
    def exponent(self) -> float:
        """The exponent that `required` extrapolates with: ``kappa``, or 2 as an assumption when not estimable or measured."""
        return 2.0 if self.status in (Status.KAPPA_NOT_ESTIMABLE, Status.INTERRUPTED) else self.kappa

    @property
    def left_open(self) -> bool:
        """Whether N may follow any exponent in ``interval``, so that an interval of N has to span them all.

        True for an exponent above 2, and for 2 where the measured exponent is slower beyond doubt and only may return:
        then the upper end of ``inverse_interval`` is 1/2 itself.
        """
        returns = self.status is Status.KAPPA_TWO and self.inverse_interval[1] == GAUSSIAN
        return returns or self.status is Status.OK

    def agrees_with(self, alpha: float | int) -> bool:
        """Whether 1 - 1/alpha, which a stable law would have, lies inside the interval of 1/kappa."""
        low, high = self.inverse_interval
        return bool(low <= 1.0 - 1.0 / min(alpha, 2.0) <= high)

    def required(self, delta: float | int) -> RequiredN:
        """Smallest number of sequences whose mean spreads by at most ``delta``, in the units of the samples.

        Up to `reach` the answer is read off the measured R_m (log-linear between block sizes) and needs no
        exponent. Beyond, it is (2 z sd / delta)^2 for kappa = 2, joined to the last measured size m0, and
        m0 (R_m0 / delta)^kappa otherwise; refused when the lower end of 1/kappa is 1/11 or less.
        """
        if not 0.0 < delta < math.inf:
            raise InputError("delta must be positive and finite", got=delta, fix="pass the size of the signal")
        delta = float(delta)
        if self.status is Status.NO_SPREAD:
            return RequiredN(delta, math.nan, math.nan, self.status)
        sizes, spreads = np.array(self.sizes), np.array(self.spreads)
        reachable = sizes <= max(self.reach, 1)
        sizes, spreads = sizes[reachable], spreads[reachable]
        if spreads.min() <= delta:
            first = int(np.argmax(spreads <= delta))
            needed = float(sizes[0])
            if first > 0:
                fall = math.log(spreads[first - 1] / spreads[first])
                part = math.log(spreads[first - 1] / delta) / fall
                needed = float(sizes[first - 1] * (sizes[first] / sizes[first - 1]) ** part)
            return RequiredN(delta, needed, needed, Status.N_MEASURED)
        if self.status is Status.KAPPA_REFUSED:
            return RequiredN(delta, math.nan, math.nan, self.status)
        log_ratio, start = log(float(spreads[-1]) / delta), float(sizes[-1])
        needed, worst = (
            float(exp(log_sequences(log_ratio, kappa, log(start)))) for kappa in (self.exponent, self.kappa_pessimistic)
        )
        if self.exponent == 2.0 and not math.isnan(self.sd):
            needed = _from_sd(delta, two_sided(self.error) * self.sd, start, needed)
        worst = max(worst, needed)  # stays NaN where kappa is not estimable
        known = self.status is not Status.KAPPA_NOT_ESTIMABLE
        return RequiredN(delta, needed, worst, Status.N_EXTRAPOLATED if known else self.status)

    def __str__(self) -> str:
        small, large = self.blocks
        low, high = self.inverse_interval
        return (
            f"kappa = {self.kappa:.3g} in [{self.interval[0]:.3g}, {self.interval[1]:.3g}], {self.status}\n"
            f"  1/kappa = {self.inverse_kappa:.3f} in [{low:.3f}, {high:.3f}] at level {self.level:g}, "
            f"from means of {small} and {large} of n = {self.n} sequences"
        )


def concentration(
    samples: Any,
    *,
    error: float | int = 0.05,
    level: float | int = 0.95,
    generator: Any = 0,
    arrangements: int | None = None,
    resamples: int = 400,
    blocks: tuple[int, int] | None = None,
) -> Concentration:
    """Measure the exponent kappa with which means over sequences concentrate.

    Parameters
    ----------
    samples
        One value per *independent* sequence (numpy array or torch tensor, 1-D). Their order does not matter.
    error
        Quantile level of R_m = q_{1-error} - q_error.
    level
        Confidence level of the intervals (percentile bootstrap over sequences).
    generator
        Seed or generator of the random arrangements and the bootstrap.
    arrangements
        Random arrangements per estimate. Each puts the sequences on a circle in random order and takes all n
        means of m sequences at m fixed random distances: as many means as m partitions into blocks would give.
        By default 4, and 2 from 64000 sequences on.
    resamples
        Bootstrap resamples.
    blocks
        Two block sizes, powers of two, whose spreads are compared: then the exponent and its interval are those
        between these two sizes, and nothing is said about larger means. By default sizes grow as sqrt(n).

    Notes
    -----
    The spreads of three sizes m, r m and r^2 m are compared: (1, 4, 16) under 1600 sequences at error = 0.05,
    (2, 8, 32) under 4096, (1, 8, 64) under 16384, then (2, 16, 128), (4, 32, 256) ... 1/kappa is the slope over all
    three. It is taken to stay below 1/2 for larger means only if, at the confidence level,

    - the slope from r m to r^2 m is below 1/2 even when what it gained on the one from m to r m is added once more
      (the upper end of the interval is then the larger of both),
    - it is not smaller than the one from m to r m: then rare large values have only begun to show, and what follows
      is unknown,
    - R at r^2 m is still below 2 z sd / (r sqrt(m)), what it is for a finite variance once means are large.

    Examples
    --------
    >>> gaussian = np.random.default_rng(0).normal(size=2000)
    >>> rate = concentration(gaussian, generator=1)
    >>> rate.kappa, rate.status.name
    (2.0, 'KAPPA_TWO')
    >>> rate.required(delta=0.1).status.name
    'N_EXTRAPOLATED'
    """
    values = np.sort(as_samples(samples))
    level = require_level(level)
    if arrangements is None:
        arrangements = min(4, max(2, 128_000 // max(values.size, 1)))
    _check_options(values.size, error, arrangements, resamples, blocks)
    error = float(error)
    rng = as_generator(generator)
    n = values.size
    # In a random order of the sorted values, so that the answer depends on the values and the seed but not on their order;
    # and in units of a power of two, which is exact, so that squares of the largest values do not overflow.
    unit = int(np.frexp(np.abs(values).max())[1])
    values = rng.permutation(np.ldexp(values, -unit))
    compared = blocks or three_sizes(n, error)
    sizes = dyadic(n, max(largest_trusted(n, error), *compared))
    spreads = measure_spreads(values, sizes, error, arrangements, rng)
    nan = math.nan
    not_estimated = Concentration(
        kappa=nan,
        interval=(nan, nan),
        kappa_pessimistic=nan,
        inverse_kappa=nan,
        inverse_interval=(nan, nan),
        status=Status.KAPPA_NOT_ESTIMABLE,
        blocks=(compared[0], compared[-1]),
        sizes=sizes,
        spreads=tuple(np.ldexp(spreads, unit).tolist()),
        n=n,
        error=error,
        level=level,
        sd=float(np.ldexp(values.std(ddof=1), unit)),
    )
    if spreads.min() == 0.0:
        return replace(not_estimated, status=Status.NO_SPREAD)
    if n * error < TAIL_COUNT or n < SMALLEST_TOP**2:
        return not_estimated
    draws = bootstrap(values, compared, error, arrangements, resamples, rng)
    # order statistics, which also stand infinite values
    lows, highs = np.quantile(draws, (0.5 - 0.5 * level, 0.5 + 0.5 * level), axis=0, method="inverted_cdf")
    low, high = float(lows[0]), float(highs[0])
    if blocks is None:
        _, carried_on, gain, _ = highs.tolist()
        back_to_half = carried_on >= GAUSSIAN or gain < 0.0 or lows[-1] <= 0.0
        low, high = min(low, GAUSSIAN), max(high, GAUSSIAN if back_to_half else carried_on)
    small, large = compared[0], compared[-1]
    inverse = float(slope(spreads[..., sizes.index(small)], spreads[..., sizes.index(large)], large / small))
    if low <= REFUSE_BELOW:
        status = Status.KAPPA_REFUSED
    elif high >= GAUSSIAN:
        status = Status.KAPPA_TWO
    else:
        status = Status.OK
    return replace(
        not_estimated,
        kappa=2.0 if status is Status.KAPPA_TWO else _kappa(inverse),
        interval=(_kappa(high), _kappa(low)),
        kappa_pessimistic=_kappa(low),
        inverse_kappa=inverse,
        inverse_interval=(low, high),
        status=status,
    )


def _check_options(n: int, error: float, arrangements: int, resamples: int, blocks: tuple[int, int] | None) -> None:
    if n < 2:
        raise InputError("concentration needs several sequences", got=f"{n} values", expected="500 or more")
    if not 0.0 < error < 0.5:
        raise InputError("error must lie strictly between 0 and 0.5", got=error)
    if arrangements < 1 or resamples < 20:
        raise InputError(
            "too little resampling",
            got=f"arrangements={arrangements}, resamples={resamples}",
            expected="arrangements >= 1 and resamples >= 20",
        )
    if blocks is not None:
        small, large = blocks
        powers = all(m >= 1 and m & (m - 1) == 0 for m in blocks)
        if not (powers and small < large and 2 * large <= n):
            raise InputError(
                "blocks must be two block sizes, each a power of two",
                got=f"{blocks} for n = {n}",
                expected="1 <= small < large <= n / 2",
            )


def _from_sd(delta: float, range_of_one: float, start: float, from_start: float) -> float:
    """N at which the spread is ``delta`` where the variance is finite: (range_of_one / delta)^2 when N is large.

    ``from_start`` is the N that kappa = 2 gives from the last measured size ``start``. The two differ because
    R_m^2 m still rises towards its limit; its distance from there falls as 1/m (the first term of an Edgeworth
    series), which makes N the larger root of a quadratic equation, and N = start where R was measured, unless
    R_m^2 m has not yet come half way there.
    """
    limit = float(exp(log_sequences(log(range_of_one / delta), 2.0)))
    if math.isinf(limit):
        return limit
    return 0.5 * limit * (1.0 + math.sqrt(max(0.0, 1.0 - 4.0 * (1.0 - from_start / limit) * start / limit)))


def _kappa(inverse: float) -> float:
    """Exponent from its reciprocal: never below 2, infinite where means do not concentrate."""
    return max(2.0, 1.0 / inverse) if inverse > 0.0 else math.inf
