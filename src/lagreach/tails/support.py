"""Do the samples look stable at all? Three checks, calibrated by simulation.

G1  McCulloch's alpha minus the characteristic-function alpha: bulk and shoulders of a stable law agree.
G2  sqrt(n) times the Kolmogorov-Smirnov distance to the maximum-likelihood fit.
G3  alpha of means of 8 samples minus alpha of the samples: means of a stable law keep its alpha.

Each check has size 1.7 %, so that all three pass for about 95 % of truly stable samples. Critical values depend on
alpha and a little on n; they are tabulated below, looked up at the fitted alpha, and recomputed by
``python -m lagreach.tails.calibration`` (about an hour on one core).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lagreach.tails import ecf, mcculloch, mle
from lagreach.tails._common import FloatArray, SupportCheck, half_spread

SIZE = 0.017
BLOCK = 8
MIN_SAMPLES = 400  # 50 means of 8; smaller sets are not checked

# (low G1, high G1, high G2, low G3, high G3) times sqrt(n), for each n (key) and alpha (rows, as in ALPHAS)
ALPHAS = (1.1, 1.25, 1.4, 1.55, 1.7, 1.8, 1.85, 1.9, 1.94, 1.97, 1.99, 2.0)
CRITICAL: dict[int, tuple[tuple[float, ...], ...]] = {
    400: (
        (-2.112, 2.524, 0.932, -6.395, 12.322),
        (-2.81, 3.381, 0.995, -7.52, 12.508),
        (-3.851, 4.468, 1.017, -8.184, 12.2),
        (-4.38, 6.719, 1.017, -8.836, 10.369),
        (-4.971, 7.145, 1.052, -9.064, 7.929),
        (-5.322, 6.155, 1.084, -9.05, 6.507),
        (-5.456, 5.346, 1.131, -9.502, 5.257),
        (-5.855, 4.428, 1.087, -8.935, 4.561),
        (-6.003, 3.728, 1.112, -9.011, 3.497),
        (-6.292, 2.495, 1.098, -8.15, 2.46),
        (-6.509, 1.769, 1.118, -7.74, 1.785),
        (-6.263, 0.655, 1.168, -7.807, 1.21),
    ),
    1500: (
        (-2.209, 2.294, 0.947, -7.065, 9.158),
        (-3.05, 3.209, 0.988, -7.739, 10.052),
        (-3.846, 4.375, 0.996, -8.573, 10.146),
        (-4.676, 5.678, 1.065, -9.542, 10.854),
        (-5.534, 7.546, 1.069, -9.665, 10.427),
        (-6.363, 8.052, 1.099, -9.091, 8.347),
        (-6.404, 7.304, 1.096, -8.615, 6.995),
        (-7.271, 5.736, 1.143, -7.953, 5.365),
        (-7.176, 4.353, 1.124, -6.936, 3.987),
        (-7.806, 2.969, 1.149, -6.721, 2.856),
        (-7.51, 1.588, 1.128, -5.298, 1.706),
        (-7.807, 0.57, 1.142, -5.435, 0.845),
    ),
    6000: (
        (-2.111, 2.126, 0.958, -7.599, 8.281),
        (-3.116, 3.22, 0.947, -8.119, 8.767),
        (-3.785, 4.047, 1.038, -8.74, 9.927),
        (-4.645, 5.272, 1.012, -9.184, 10.072),
        (-5.997, 6.472, 1.076, -9.328, 9.826),
        (-6.344, 8.297, 1.087, -8.917, 8.709),
        (-6.849, 8.78, 1.088, -8.897, 7.932),
        (-7.466, 8.106, 1.132, -7.394, 6.692),
        (-8.232, 5.889, 1.153, -6.773, 5.34),
        (-8.4, 3.92, 1.135, -4.901, 3.377),
        (-8.604, 1.814, 1.166, -4.187, 1.73),
        (-8.965, 0.549, 1.145, -3.957, 0.444),
    ),
    24000: (
        (-2.064, 2.137, 0.944, -6.994, 8.117),
        (-2.884, 3.202, 0.977, -8.272, 9.144),
        (-3.947, 4.063, 0.994, -9.324, 9.966),
        (-4.713, 4.928, 1.043, -9.638, 10.035),
        (-5.936, 6.446, 1.092, -9.616, 9.7),
        (-6.889, 8.041, 1.103, -8.446, 9.019),
        (-7.653, 8.374, 1.088, -8.54, 7.932),
        (-8.425, 9.406, 1.137, -7.459, 7.117),
        (-9.294, 9.052, 1.101, -6.316, 5.837),
        (-8.64, 5.763, 1.112, -5.022, 4.372),
        (-9.273, 2.647, 1.151, -3.453, 2.29),
        (-9.212, 0.577, 1.135, -1.904, 0.277),
    ),
}


@dataclass(frozen=True)
class StableStatistics:
    """The three statistics as the checks use them, and the alpha at which critical values are looked up."""

    alpha: float
    n: int
    estimator_gap: float
    distance: float
    mean_gap: float

    def scaled(self) -> tuple[float, float, float, float]:
        """Alpha, then the three statistics times sqrt(n) (the distance is already scaled)."""
        root = math.sqrt(self.n)
        return self.alpha, root * self.estimator_gap, self.distance, root * self.mean_gap


def stable_statistics(centred: FloatArray, rng: np.random.Generator) -> StableStatistics:
    """Compute G1, G2, G3 of centred samples; the order of the samples does not matter."""
    from lagreach.tails import stable

    n = centred.size
    unit = half_spread(centred)
    ordered = np.sort(centred) / unit
    alpha, log_scale = mle.maximise(ordered)
    gap = mcculloch.alpha_of_samples(ordered) - ecf.estimate(ordered, 0.95).alpha
    below = np.asarray(stable.cdf(ordered * math.exp(-log_scale), alpha))
    steps = np.arange(n + 1) / n
    distance = float(max(np.max(below - steps[:-1]), np.max(steps[1:] - below)))
    means = rng.permutation(ordered)[: n - n % BLOCK].reshape(-1, BLOCK).mean(axis=1)
    means -= np.median(means)
    alpha_of_means, _ = mle.maximise(means / half_spread(means))
    return StableStatistics(alpha, n, gap, math.sqrt(n) * distance, alpha_of_means - alpha)


def critical_values(alpha: float, n: int) -> FloatArray:
    """Row of the table at (alpha, n): linear in alpha and log n, constant beyond its ends."""
    counts = sorted(CRITICAL)
    at_alpha = [[np.interp(alpha, ALPHAS, column) for column in zip(*CRITICAL[k], strict=True)] for k in counts]
    return np.array([np.interp(math.log(n), np.log(counts), column) for column in zip(*at_alpha, strict=True)])


def check_support(centred: FloatArray, rng: np.random.Generator) -> tuple[SupportCheck, ...]:
    """Run the three checks on at least `MIN_SAMPLES` samples centred at their median."""
    sample = stable_statistics(centred, rng)
    gap_low, gap_high, distance, mean_low, mean_high = critical_values(sample.alpha, sample.n)
    root = math.sqrt(sample.n)
    return (
        SupportCheck(
            "G1, McCulloch minus characteristic-function alpha",
            sample.estimator_gap,
            float(gap_low) / root,
            float(gap_high) / root,
        ),
        SupportCheck("G2, sqrt(n) distance to the fitted law", sample.distance, 0.0, float(distance)),
        SupportCheck(
            "G3, alpha of means of 8 minus alpha",
            sample.mean_gap,
            float(mean_low) / root,
            float(mean_high) / root,
        ),
    )
