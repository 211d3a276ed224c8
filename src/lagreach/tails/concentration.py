"""How fast averages over sequences concentrate: the exponent kappa, measured without a model of the tails.

R_m is the distance between the ``error`` and ``1 - error`` quantiles of means of m sequences. It falls as
m^(-1/kappa): kappa = 2 for any law with finite variance once m is large, kappa = alpha / (alpha - 1) for stable
laws. Fits of a stable law do not give this exponent (products of Gaussians look like alpha = 1.2 ... 1.5 to every
one of them and have kappa = 2), so it is measured from the means themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lagreach.errors import InputError
from lagreach.tails._common import FloatArray, as_generator, as_samples, require_level
from lagreach.types import Status

RATIO = 8  # kappa compares means of m and of RATIO * m sequences
TAIL_COUNT = 25  # values beyond each quantile that an estimate of kappa needs: 500 sequences at error = 0.05
BLOCK_TAIL_COUNT = 2.5  # independent means beyond each quantile that R_m needs: m <= n / 50 at error = 0.05
SETTLED_ERROR = 0.015  # larger blocks decide as soon as the standard error of their 1/kappa is below this
RESAMPLED_AT_ONCE = 65_536  # values per pass of the bootstrap: stays in cache
PILOT_RESAMPLES, PILOT_ARRANGEMENTS = 50, 2
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
    inverse_kappa, inverse_interval
        1/kappa as measured, log(R_m / R_8m) / log 8, and its percentile bootstrap interval; neither is capped.
    status
        ``OK`` (measured, and larger than 2), ``KAPPA_TWO``, ``KAPPA_NOT_ESTIMABLE``, ``KAPPA_REFUSED`` or
        ``NO_SPREAD``.
    blocks
        The two block sizes m, 8 m that gave 1/kappa.
    sizes, spreads
        Block sizes 1, 2, 4, ... and R at each, corrected by sqrt(1 - m/n) for drawing without replacement.
    n, error, level
        Number of sequences, quantile level of R, confidence level.
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

    def spread(self, m: int) -> float:
        """R_m for one of the block sizes in ``sizes``."""
        if m not in self.sizes:
            raise InputError("R was not measured for this block size", got=m, expected=f"one of {self.sizes}")
        return self.spreads[self.sizes.index(m)]

    @property
    def reach(self) -> int:
        """Largest block size at which R still rests on enough independent means (n/50 at error = 0.05)."""
        return _reach(self.n, self.error)

    @property
    def exponent(self) -> float:
        """The exponent that `required` extrapolates with: ``kappa``, or 2 as an assumption when not estimable."""
        return 2.0 if self.status is Status.KAPPA_NOT_ESTIMABLE else self.kappa

    def agrees_with(self, alpha: float | int) -> bool:
        """Whether 1 - 1/alpha, which a stable law would have, lies inside the interval of 1/kappa."""
        low, high = self.inverse_interval
        return bool(low <= 1.0 - 1.0 / min(alpha, 2.0) <= high)

    def required(self, delta: float | int) -> RequiredN:
        """Smallest number of sequences whose mean spreads by at most ``delta``, in the units of the samples.

        Up to `reach` the answer is read off the measured R_m (log-linear between block sizes) and needs no
        exponent. Beyond, it is m0 (R_m0 / delta)^kappa from the last measured size m0; refused when the lower end
        of 1/kappa is 1/11 or less.
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
            found = float(sizes[0])
            if first > 0:
                fall = math.log(spreads[first - 1] / spreads[first])
                part = math.log(spreads[first - 1] / delta) / fall
                found = float(sizes[first - 1] * (sizes[first] / sizes[first - 1]) ** part)
            return RequiredN(delta, found, found, Status.N_MEASURED)
        if self.status is Status.KAPPA_REFUSED:
            return RequiredN(delta, math.nan, math.nan, self.status)
        ratio, start = float(spreads[-1]) / delta, float(sizes[-1])
        with np.errstate(over="ignore"):  # an N beyond the float range is infinite for any purpose
            found, worst = (float(start * np.power(ratio, k)) for k in (self.exponent, self.kappa_pessimistic))
        known = self.status is not Status.KAPPA_NOT_ESTIMABLE
        return RequiredN(delta, found, worst, Status.N_EXTRAPOLATED if known else self.status)

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
        Two block sizes, powers of two, whose spreads are compared. By default (1, 8); with many sequences the
        largest of (2, 16), (4, 32), ... that give 1/kappa to a standard error of 0.015 take over. Small blocks
        still see the shape of single values, large ones only how means concentrate.

    Examples
    --------
    >>> gaussian = np.random.default_rng(0).normal(size=2000)
    >>> found = concentration(gaussian, generator=1)
    >>> found.kappa, found.status.name
    (2.0, 'KAPPA_TWO')
    >>> found.required(delta=0.1).status.name
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
    # a random order of the sorted values: the answer depends on the values and the seed, not on their order
    values = rng.permutation(values)
    sizes = _dyadic(n, max(RATIO, _reach(n, error), *(blocks or (1,))))
    spreads = _spreads(values, sizes, error, arrangements, rng)
    compared = blocks or (1, RATIO)
    nan = math.nan
    not_estimated = Concentration(
        kappa=nan,
        interval=(nan, nan),
        kappa_pessimistic=nan,
        inverse_kappa=nan,
        inverse_interval=(nan, nan),
        status=Status.KAPPA_NOT_ESTIMABLE,
        blocks=compared,
        sizes=sizes,
        spreads=tuple(float(r) for r in spreads),
        n=n,
        error=error,
        level=level,
    )
    if spreads.min() == 0.0:
        return replace(not_estimated, status=Status.NO_SPREAD)
    if n * error < TAIL_COUNT:
        return not_estimated
    if blocks is None:
        compared = _largest_sharp(values, _ladder(n, error), error, rng)
    draws = _bootstrap(values, [compared], error, arrangements, resamples, rng)[:, 0]
    # order statistics, which also stand infinite values
    low, high = (float(v) for v in np.quantile(draws, (0.5 - 0.5 * level, 0.5 + 0.5 * level), method="inverted_cdf"))
    inverse = float(_inverse_kappa(spreads, sizes, compared))
    if low <= REFUSE_BELOW:
        status = Status.KAPPA_REFUSED
    elif low <= GAUSSIAN <= high or inverse >= GAUSSIAN:
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
        blocks=compared,
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


def _reach(n: int, error: float) -> int:
    """Largest block size whose R is trusted."""
    return int(n * error / BLOCK_TAIL_COUNT)


def _dyadic(n: int, top: int) -> tuple[int, ...]:
    """Powers of two up to ``top`` of which at least two blocks fit into n."""
    return tuple(2**k for k in range(top.bit_length()) if 2 ** (k + 1) <= n)


def _ladder(n: int, error: float) -> list[tuple[int, int]]:
    """Pairs (1, 8), (2, 16), (4, 32), ... as far as the sequences reach; the first one always."""
    pairs = [(1, RATIO)]
    while 2 * pairs[-1][1] <= _reach(n, error):
        pairs.append((2 * pairs[-1][0], 2 * pairs[-1][1]))
    return pairs


def _largest_sharp(
    values: FloatArray, pairs: list[tuple[int, int]], error: float, rng: np.random.Generator
) -> tuple[int, int]:
    """Largest block sizes that pin 1/kappa down, by a pilot bootstrap; the smallest ones if none do."""
    if len(pairs) == 1:
        return pairs[0]
    draws = _bootstrap(values, pairs, error, PILOT_ARRANGEMENTS, PILOT_RESAMPLES, rng)
    chosen = pairs[0]
    for pair, column in zip(pairs, draws.T, strict=True):
        if np.isfinite(column).all() and np.std(column) <= SETTLED_ERROR:
            chosen = pair
    return chosen


def _spreads(
    values: FloatArray, sizes: tuple[int, ...], error: float, arrangements: int, rng: np.random.Generator
) -> FloatArray:
    """R at each block size (last axis), of values (..., seq) in random order on a circle.

    Means of 2 m are means of two means of m at a random distance. Distances are drawn so that each exceeds the
    sum of those before and all together stay below n: no value enters a mean twice.
    """
    n = values.shape[-1]
    doublings = max(sizes).bit_length() - 1
    total = np.zeros((*values.shape[:-1], len(sizes)))
    for _ in range(arrangements):
        means, span = values, 0
        for k in range(doublings + 1):
            if 2**k in sizes:
                low, high = np.quantile(means, (error, 1.0 - error), axis=-1)
                total[..., sizes.index(2**k)] += high - low
            if k < doublings:
                shift = int(rng.integers(span + 1, max(span + 1, (n - 1) // 2 ** (doublings - k)) + 1))
                span += shift
                means = 0.5 * (means + np.concatenate([means[..., shift:], means[..., :shift]], axis=-1))
    return total / arrangements / np.sqrt(1.0 - np.array(sizes) / n)


def _inverse_kappa(spreads: FloatArray, sizes: tuple[int, ...], pair: tuple[int, int]) -> FloatArray:
    """log(R_small / R_large) / log(large / small) over the leading axes of ``spreads``.

    In resamples of tied values a spread may vanish: without R_small nothing was seen to shrink (minus infinity).
    """
    small, large = (spreads[..., sizes.index(m)] for m in pair)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (np.log(small) - np.log(large)) / math.log(pair[1] / pair[0])
    return np.where(small == 0.0, -math.inf, found)


def _bootstrap(
    values: FloatArray,
    pairs: list[tuple[int, int]],
    error: float,
    arrangements: int,
    resamples: int,
    rng: np.random.Generator,
) -> FloatArray:
    """1/kappa of resampled sequences: one row per resample, one column per pair of block sizes."""
    sizes = tuple(sorted({m for pair in pairs for m in pair}))
    rows = max(1, RESAMPLED_AT_ONCE // values.size)
    found = []
    for start in range(0, resamples, rows):
        again = values[rng.integers(0, values.size, (min(rows, resamples - start), values.size))]
        spreads = _spreads(again, sizes, error, arrangements, rng)
        found.append(np.stack([_inverse_kappa(spreads, sizes, pair) for pair in pairs], axis=-1))
    return np.concatenate(found)


def _kappa(inverse: float) -> float:
    """Exponent from its reciprocal: never below 2, infinite where means do not concentrate."""
    return max(2.0, 1.0 / inverse) if inverse > 0.0 else math.inf
