"""N from signal and noise, and back: the number of sequences, the error, the smallest signal.

The mean of N sequences is drawn from one of two laws, ``+delta/2`` ("present") and ``-delta/2`` ("absent"), with
symmetric noise of scale ``sigma N^(-1/kappa)``, equation (31) with kappa = alpha/(alpha-1) for its exponent alpha.
The noise density is symmetric and unimodal, so for equal priors the sign is the best test, its error is
``SF(delta N^(1/kappa) / (2 sigma))``, and the number of sequences for an error ``eps`` is

    N = (2 sigma q_{1-eps} / delta)^kappa.

**What sigma means.** With ``alpha`` it is the scale of the stable law with characteristic function
``exp(-|sigma t|^alpha)``; at alpha = 2 the standard deviation is then ``sigma sqrt(2)``. Without ``alpha`` it is the
standard deviation of one sequence's value (``kappa`` = 2, the default), or, for a measured ``kappa`` > 2, the
Gaussian-equivalent half range ``R_1 / (2 z_{1-eps})`` with R_1 = q_{1-eps} - q_eps of one sequence's value: in both
cases N = (2 z_{1-eps} sigma / delta)^kappa.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lagreach._util.arrays import Floats, Number, Numbers
from lagreach.detection.information import (
    LOG2,
    binary_information,
)
from lagreach.detection.law import log_ratio, log_sequences
from lagreach.detection.noise_model import (
    Noise,
    Rate,
    checked_error,
    checked_positive,
    checked_signal,
    noise_model,
)
from lagreach.errors import InputError
from lagreach.tails import stable
from lagreach.types import Status

Criterion = Literal["exact", "fano", "converse", "robust"]
Robust = Literal["score", "sign", "clip"]
_CRITERIA = ("exact", "fano", "converse", "robust")


def required_sequences(
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    error: Numbers = 0.05,
    *,
    criterion: Criterion = "exact",
    rate: Rate = "kappa",
    constant: Numbers | None = None,
    method: Robust = "clip",
    clip: Number = 1.5,
    batch: Numbers = 1,
) -> Floats:
    """Return the number of independent sequences at which a signal is seen with the given error.

    All numbers broadcast. The result is real (below 1 when a single sequence is more than enough), and inf where
    there is no signal (``delta`` = 0), where alpha <= 1 (`detection_status` says why), or beyond float range.

    Parameters
    ----------
    delta
        Separation of "present" and "absent": the lag's contribution to the mean gradient along its direction.
    sigma, alpha, kappa
        Noise of one sequence, see the module's text. ``alpha`` (tail index of a stable law, at most 2) or
        ``kappa`` (measured concentration exponent, at least 2), not both; neither means Gaussian noise.
    error
        Error probability eps of the test, between 0 and 0.5.
    criterion
        - "exact": what the best test on the mean of the sequences needs.
        - "fano": the paper's (34), ``(sigma / (sqrt(c) delta))^kappa (log 1/(2 eps))^(kappa/2)``. With the
          default c it asks for too few at every eps below 0.28; see `paper_requirement`.
        - "converse": a number that no test on the mean can do without, from a correct Fano inequality:
          ``(sigma/delta sqrt(8 (log 2 - h_b(eps)) / I_alpha))^kappa``.
        - "robust": enough for an aggregation that bounds each sequence's influence (``method``):
          ``(2 sigma z_{1-eps} / delta)^2 / efficiency``, exponent 2 for every alpha (a large-N statement).
    rate
        "kappa": exponent kappa, from alpha if that is given. "stable": the same, but insists on alpha. "v1": the
        exponent alpha printed in the paper's first version, the wrong way round for alpha < 2.
    constant
        c of "fano"; default I_alpha/2, the Fisher information of location over two. I_alpha/8 is the other
        reading.
    method, clip
        For "robust": "clip" (each value at ``clip`` scales; default), "sign", or "score" (the efficient one).
    batch
        For "robust": values are clipped after averaging over this many sequences, which costs a factor
        ``batch^(1 - 2/kappa)`` (clip measured in scales of the batch mean).

    Examples
    --------
    >>> round(float(required_sequences(0.1, 1.0)), 1)  # Gaussian: (2 * 1.645 / 0.1)^2
    1082.2
    >>> round(float(required_sequences(0.1, 1.0, alpha=1.5) / 1e5), 2)  # heavy tails
    2.27
    >>> round(float(required_sequences(0.1, 1.0, alpha=1.5, criterion="robust", method="score")))
    2528
    >>> float(required_sequences(0.1, 1.0, alpha=1.0))
    inf
    """
    signal = checked_signal(delta)
    noise = noise_model(sigma, alpha, kappa, rate, error)
    factor, exponent, multiple = _requirement(
        noise, error, criterion=criterion, constant=constant, method=method, clip=clip, batch=batch
    )
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        ratio = np.log(noise.scale) + np.log(factor) - np.log(signal)
        number = np.exp(log_sequences(ratio, np.where(np.isinf(exponent), 0.0, exponent), np.log(multiple)))
    # an infinite exponent: averaging does not help
    return np.where(np.isinf(exponent), np.inf, number)[()]


def detectable_signal(
    sequences: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    error: Numbers = 0.05,
    *,
    criterion: Criterion = "exact",
    rate: Rate = "kappa",
    constant: Numbers | None = None,
    method: Robust = "clip",
    clip: Number = 1.5,
    batch: Numbers = 1,
) -> Floats:
    """Return the smallest signal that this many sequences show with the given error.

    The inverse of `required_sequences` in ``delta``; inf where alpha <= 1 and the mean is used. With the "fano"
    criterion and ``rate="v1"`` it is the paper's threshold (35) times the alignment.

    Examples
    --------
    >>> round(float(detectable_signal(1082.2, 1.0)), 4)
    0.1
    """
    n = checked_positive(sequences, "sequences")
    noise = noise_model(sigma, alpha, kappa, rate, error)
    factor, exponent, multiple = _requirement(
        noise, error, criterion=criterion, constant=constant, method=method, clip=clip, batch=batch
    )
    signal = noise.scale * factor * np.exp(-log_ratio(np.log(n), exponent, np.log(multiple)))
    return np.where(np.isinf(exponent), np.inf, signal)[()]


def detection_error(
    sequences: Numbers,
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers | None = None,
    kappa: Numbers | None = None,
    *,
    criterion: Criterion = "exact",
    rate: Rate = "kappa",
    constant: Numbers | None = None,
    method: Robust = "clip",
    clip: Number = 1.5,
    batch: Numbers = 1,
) -> Floats:
    """Return the error probability of the test with this many sequences.

    The inverse of `required_sequences` in ``error``: "exact" is the error of the best test on the mean, "robust"
    that of the robust test for large N, "fano" what (34) claims, "converse" a lower bound. For alpha <= 1 the
    "exact" error does not fall with N (it rises below 1).

    For a measured ``kappa`` > 2 without ``alpha`` only "exact" is defined (with a Gaussian shape, as in
    `required_sequences`): the others need the law.

    Examples
    --------
    >>> round(float(detection_error(1082.2, 0.1, 1.0)), 4)
    0.05
    """
    signal, n = checked_signal(delta), checked_positive(sequences, "sequences")
    noise = noise_model(sigma, alpha, kappa, rate, None)
    _known_criterion(criterion)
    if criterion == "exact":
        return stable.sf(0.5 * noise.distance(n, signal), noise.alpha)[()]
    noise.require_law(f"criterion={criterion!r}")
    if criterion == "robust":
        lost = _checked_batch(batch) ** (1.0 - 2.0 * noise.concentration)
        gain = n * robust_efficiency(noise.alpha, method, clip=clip) / lost
        from scipy.special import ndtr

        return ndtr(-0.5 * signal / noise.scale * np.sqrt(gain))[()]
    # both claim nothing where averaging does not help
    d = np.where(noise.concentration > 0, noise.distance(n, signal), 0.0)
    information = stable.fisher_information(noise.mean_alpha)
    if criterion == "fano":
        c = 0.5 * information if constant is None else checked_positive(constant, "constant")
        return (0.5 * np.exp(-c * d**2))[()]
    return _error_with_information(information * d**2 / 8.0)[()]


def detection_status(alpha: Number | None = None, *, criterion: Criterion = "exact") -> Status:
    """Say whether a number of sequences exists for this tail index and how far to trust it.

    Examples
    --------
    >>> detection_status(1.7)
    <Status.OK: 'ok'>
    >>> print(detection_status(0.9))  # doctest: +ELLIPSIS
    alpha <= 1: a mean over sequences is no more concentrated than one sequence, ...
    >>> detection_status(0.9, criterion="robust").name
    'OK'
    """
    _known_criterion(criterion)
    if alpha is not None and not 0 < alpha <= 2:
        raise InputError("alpha of a stable law lies in (0, 2]", got=alpha, expected="0 < alpha <= 2")
    if alpha is None or criterion == "robust":
        return Status.OK
    if alpha <= 1:
        return Status.NO_CONCENTRATION
    return Status.EXPONENT_FRAGILE if alpha <= 1.1 else Status.OK


def robust_efficiency(alpha: Numbers, method: Robust = "clip", *, clip: Number = 1.5) -> Floats:
    """Return the information per sequence about the location, in units of 1/sigma^2, that an aggregation uses.

    "score" uses all of it, I_alpha; "sign" uses 4 f(0)^2; clipping at c scales uses
    ``P(|X| < c)^2 / E min(X^2, c^2)``.
    Finite and of order 1/2 for every alpha, also where the mean does not exist.

    Examples
    --------
    >>> [round(float(robust_efficiency(2.0, m)), 4) for m in ("score", "sign")]  # Gaussian with variance 2
    [0.5, 0.3183]
    """
    index = checked_positive(alpha, "alpha")
    if np.any(index > 2):
        raise InputError("alpha of a stable law is at most 2", got=alpha, expected="0 < alpha <= 2")
    if method == "score":
        return np.asarray(stable.fisher_information(index))[()]
    if method == "sign":
        return (4.0 * stable.pdf(np.zeros_like(index), index) ** 2)[()]
    if method != "clip":
        raise InputError("unknown robust aggregation", got=method, expected="score, sign, clip")
    if not (np.isfinite(clip) and clip > 0):
        raise InputError("clip must be positive and finite", got=clip, expected="scales, for instance 1.5")
    # E min(X^2, c^2) is the integral of 2 x P(|X| > x) from 0 to c
    x, w = np.polynomial.legendre.leggauss(48)
    nodes = 0.5 * clip * (1.0 + x)
    survival = stable.sf(nodes, index[..., None])
    power = 0.5 * clip * np.sum(w * 4.0 * nodes * survival, axis=-1)
    inside = 1.0 - 2.0 * stable.sf(np.full_like(index, clip), index)
    return (inside**2 / power)[()]


def paper_requirement(
    delta: Numbers,
    sigma: Numbers,
    alpha: Numbers,
    error: Numbers = 0.05,
    *,
    constant: Numbers | None = None,
) -> Floats:
    """Return the right side of (34) as printed: (sigma/(sqrt(c) delta))^alpha (log 1/(2 eps))^(alpha/2).

    Where it fails: its exponent alpha should be kappa = alpha/(alpha-1); it solves (33), a lower bound on the
    information that is not one; "P_e >= 1 - I/log 2" is not Fano's inequality for two hypotheses; and an error
    that falls like exp(-c d^2) is not what stable tails give (d^-alpha). With kappa for alpha and c = I_alpha/2 it
    asks for .43 (alpha = 2), .16 (1.5) or .0025 (1.2) times the exact number at eps = .05, and for too many only
    at errors above .28 to .32; c = I_alpha/8 lies on either side. It is called both minimal and
    sufficient, and is neither.
    """
    return required_sequences(delta, sigma, alpha, None, error, criterion="fano", rate="v1", constant=constant)


def _requirement(
    noise: Noise,
    error: Numbers,
    *,
    criterion: Criterion,
    constant: Numbers | None,
    method: Robust,
    clip: Number,
    batch: Numbers,
) -> tuple[Floats, Floats, Floats]:
    """Return (factor, exponent, multiple) of N = multiple (scale factor / delta)^exponent."""
    _known_criterion(criterion)
    eps = checked_error(error)
    one = np.asarray(1.0)
    if criterion == "exact":
        return 2.0 * stable.isf(eps, noise.mean_alpha), noise.exponent, one
    if criterion == "robust":
        from scipy.special import ndtri

        factor = -2.0 * ndtri(eps) / np.sqrt(robust_efficiency(noise.alpha, method, clip=clip))
        lost = _checked_batch(batch) ** (1.0 - 2.0 * noise.concentration)
        return factor, np.full_like(noise.exponent, 2.0), lost
    information = stable.fisher_information(noise.mean_alpha)
    if criterion == "converse":
        return np.sqrt(8.0 * binary_information(1.0 - 2.0 * eps) / information), noise.exponent, one
    c = 0.5 * information if constant is None else checked_positive(constant, "constant")
    return np.sqrt(np.log(0.5 / eps) / c), noise.exponent, one


def _error_with_information(information: Floats) -> Floats:
    """Return the error at which log 2 - h_b(error) equals this many nats; 0 from log 2 on."""
    low, high = np.full(information.shape, np.log(1e-300)), np.full(information.shape, np.log(0.5))
    for _ in range(70):  # bisection of the logarithm, to float precision
        middle = 0.5 * (low + high)
        enough = binary_information(1.0 - 2.0 * np.exp(middle)) >= information
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.where(information >= LOG2, 0.0, np.exp(0.5 * (low + high)))


def _known_criterion(criterion: str) -> None:
    if criterion not in _CRITERIA:
        raise InputError("unknown criterion", got=criterion, expected=", ".join(_CRITERIA))


def _checked_batch(batch: Numbers) -> Floats:
    values = checked_positive(batch, "batch")
    if np.any(values < 1):
        raise InputError("a batch holds at least one sequence", got=batch, expected="batch >= 1")
    return values
