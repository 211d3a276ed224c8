"""The share of a lag that a linear fit recovers, in closed form, for every lag, number of sequences and strength.

A target of variance one holds a planted dependency of strength rho: ``y_t = sqrt(rho) z_{t-l} + sqrt(1 - rho) e_t``. A fit from
N sequences weighs the direction of eigenvalue s of the features' covariance S by ``w(s)``: ridge has ``w = 1 / (s + lambda)``,
gradient descent stopped after a time tau has ``w = (1 - exp(-tau s)) / s``. With ``c_l = E[phi_t z_{t-l}]``,

    share          a_l = c_l' w(S) c_l
    fitted         q_l = c_l' w(S) S w(S) c_l
    noise          gamma = tr[w(S) Gamma w(S) S] / N
    loss gained    G_l = 1 - (1 - rho (2 a_l - q_l)) / (1 - gamma)

a_l is the slope of the prediction on the planted part on fresh data. Gamma is the covariance over sequences of the gradient of a
sequence for a residual of variance one: residuals and features that vary slowly make it larger than for independent steps (the
design effect). ``1 - gamma`` stands for the noise that few sequences add to S itself; for small gamma and rho, G is the gain
``rho (2a - q) - gamma`` of a fixed S. The fit that is kept is the one with the lowest loss on held-out data, so lambda (or
tau) maximises G; more sequences then mean less shrinkage and a larger share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float

from lagreach._util.bounds import check_bounds
from lagreach.gradients.significance import jackknife_spread

Array = np.ndarray
GRID = np.concatenate(([0.5], np.geomspace(1, 1e12, 37)))  # numbers of sequences that `needed` looks through
AMPLE = 1e7  # sequences: what these do not recover, no data set will
FINER = 6  # points between two amounts of shrinkage
HALF = 0.5


@dataclass(frozen=True)
class Shares:
    """A number for each lag and number of sequences, with the ends of its 95 % interval."""

    value: Float[Array, "lag n"]
    low: Float[Array, "lag n"]
    high: Float[Array, "lag n"]


@dataclass(frozen=True)
class ShareCurves:
    """Shares as functions of the amount of shrinkage, all that any N and any strength need.

    The last axis is the amount of shrinkage, from none to all. Arrays with a leading ``fit`` axis hold the estimate first and
    then one without each block of sequences, for intervals.

    Attributes
    ----------
    lags
        Lags.
    share, fitted
        a_l and q_l. Where inputs follow from each other, a_l is what the prediction changes by if the one input alone is
        exchanged, and q_l is such that ``2 a_l - q_l`` is still what the loss gains.
    noise
        gamma for one sequence.
    present
        Share of the steps that have an input l steps before.
    gained
        Part of the residual's variance that a fit to the data's own targets explains, on fresh data and without noise.
    in_data
        Slope of the fitted output on the dependency in the data, per lag: of what it changes by if the one input alone is
        exchanged on what the target does.
    seen
        Sequences at which the gradient of a planted dependency of strength one stands out by one standard deviation.
    dependence
        Covariance of the target with the input l steps before (with what it alone holds), along each probe, by block.
    design_effect
        How much more a sequence's gradient varies than if its residuals were independent from step to step.
    """

    lags: tuple[int, ...]
    share: Float[Array, "fit lag amount"]
    fitted: Float[Array, "fit lag amount"]
    noise: Float[Array, "fit amount"]
    present: Float[Array, "lag"]
    gained: Float[Array, "fit amount"]
    in_data: Float[Array, "fit lag amount"]
    seen: Float[Array, "fit lag"]
    dependence: Float[Array, "block lag probe"]
    design_effect: float

    def planted(self, sequences: Float[Array, "n"], strength: float) -> Shares:
        """Share of a planted dependency of this strength that a fit from each number of sequences recovers."""
        check_strength(strength)
        share, fitted, noise = (finer(curve) for curve in (self.share, self.fitted, self.noise))
        explained = strength * self.present[None, :, None] * (2 * share - fitted)
        return self._best(share, explained, noise[:, None], sequences)

    def data(self, sequences: Float[Array, "n"]) -> Shares:
        """Share of the dependency in the data that a fit to its targets from each number of sequences recovers."""
        share, gained, noise = (finer(curve) for curve in (self.in_data, self.gained, self.noise))
        return self._best(share, gained[:, None], noise[:, None], sequences)

    def explained(self, sequences: float) -> tuple[float, float]:
        """Part of what the output misses of the targets that a fit from so many sequences explains, and its lower end.

        Of all inputs together, whatever functions of them the features hold: more than the lags one by one, where targets
        depend on products of inputs.
        """
        from scipy.special import stdtrit

        gain = _gain(finer(self.gained), finer(self.noise) / sequences).max(-1)
        half = stdtrit(len(gain) - 2, 0.975) * jackknife_spread(gain[1:, None])[0]
        return float(gain[0]), float(gain[0] - half)

    def _best(
        self,
        share: Float[Array, "fit lag point"],
        explained: Float[Array, "fit any point"],
        noise: Float[Array, "fit 1 point"],
        sequences: Float[Array, "n"],
    ) -> Shares:
        """Shares at the amount of shrinkage that gains most, with intervals.

        An interval has two parts. The jackknife over blocks says how well the share is known where shrinkage moves with it.
        Where quite different amounts gain nearly the same, the blocks do not tell which one is best: then all of them are in.
        """
        from scipy.special import stdtrit

        blocks = len(share) - 1
        quantile = stdtrit(blocks - 1, 0.975)
        bounds = np.empty((3, share.shape[1], len(sequences)))
        for i, count in enumerate(np.asarray(sequences, dtype=float)):
            gain = _gain(explained, noise / count)  # (fit, any, point), "any" being every lag or one for all
            best = gain.argmax(-1)[..., None]
            at_best = np.take_along_axis(share, np.broadcast_to(best, (*share.shape[:2], 1)), -1)[..., 0]
            value, half = at_best[0], quantile * jackknife_spread(at_best[1:])
            with np.errstate(invalid="ignore"):
                behind = np.take_along_axis(gain, np.broadcast_to(best[:1], (*gain.shape[:2], 1)), -1) - gain
            behind = np.where(np.isfinite(behind), behind, np.inf)
            spread = jackknife_spread(behind[1:].reshape(blocks, -1)).reshape(behind.shape[1:])
            as_good = behind[0] <= quantile * np.where(np.isnan(spread), 0.0, spread)
            low = np.where(as_good, share[0], np.inf).min(-1)
            high = np.where(as_good, share[0], -np.inf).max(-1)
            bounds[..., i] = value, np.minimum(value - half, low), np.maximum(value + half, high)
        nothing = (self.present <= 0)[:, None]
        return Shares(*np.where(nothing, np.nan, np.clip(bounds, 0.0, 1.0)))

    def needed(self, strength: float) -> Shares:
        """Sequences from which half of a planted dependency is recovered; inf where no number of them is enough.

        Its interval holds the numbers at which the interval of the share holds one half.
        """
        shares = self.planted(GRID, strength)
        parts = (first_half(shares.value), first_half(shares.high), first_half(shares.low))
        return Shares(*(part[:, None] for part in parts))

    def visible(self, strength: float, error: float) -> Shares:
        """Sequences at which the gradient of a planted dependency is told from none, both errors being `error`.

        The law of `lagreach.detection`: the mean gradient along its own direction, ``N = (2 z sigma / Delta)^2``.
        """
        from scipy.special import ndtri, stdtrit

        check_strength(strength)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.seen)
            spread = jackknife_spread(logs[1:])
        factor = (2 * ndtri(1 - error)) ** 2 / strength
        half = stdtrit(len(logs) - 2, 0.975) * np.where(np.isfinite(spread), spread, np.inf)
        value = self.seen[0] * factor
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = (np.where(np.isfinite(value), value * np.exp(s * half), value) for s in (-1, 1))
        return Shares(*(part[:, None] for part in (value, low, high)))


def check_strength(strength: float) -> None:
    """Refuse what is not a share of a variance."""
    check_bounds(strength=strength)


def _gain(explained: Array, noise: Array) -> Array:
    """Loss gained, with no fit at all where the noise would fill it."""
    possible = noise < 1
    return np.where(possible, 1 - (1 - explained) / np.where(possible, 1 - noise, 1.0), -np.inf)


def finer(curve: Float[Array, "*before amount"]) -> Float[Array, "*before point"]:
    """Points between the amounts of shrinkage: shares change smoothly over a decade, which has several amounts."""
    return curve @ _between(curve.shape[-1])


@cache
def _between(amounts: int) -> Float[Array, "amount point"]:
    from scipy.interpolate import CubicSpline

    places = np.arange(amounts)
    return CubicSpline(places, np.eye(amounts))(np.linspace(0, amounts - 1, FINER * (amounts - 1) + 1)).T


def first_half(shares: Float[Array, "lag n"]) -> Float[Array, "lag"]:
    """Where a curve over `GRID` first reaches one half, in the logarithm of N; inf if it never does, NaN if it is unknown.

    >>> float(first_half(np.where(GRID < 100, 0.0, 1.0)[None])[0].round(3))
    68.129
    """
    reached = shares >= HALF
    first = reached.argmax(1)
    rows = np.arange(len(shares))
    before = np.maximum(first - 1, 0)
    low, high = shares[rows, before], shares[rows, first]
    part = np.where(high > low, (HALF - low) / np.where(high > low, high - low, 1.0), 1.0)
    logs = np.log(GRID)
    place = np.exp(logs[before] + part * (logs[first] - logs[before]))
    crossing = np.where(reached.any(1), np.where(first == 0, GRID[0], place), np.inf)
    return np.where(np.isnan(shares).any(1), np.nan, crossing)
