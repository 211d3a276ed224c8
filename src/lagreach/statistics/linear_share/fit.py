"""From the sums of `ShareMoments` to `ShareCurves`: fits on all blocks but one, judged on that one.

With moments of the whole sample, ``c' w(S) c`` would count the noise of c as if it were there on fresh data: a lag without any
trace in the features would get a share of (features / rows). Here one of the two c comes from the block that is left out, so
that such a lag gets zero on average, and a lag that the features hold exactly gets one.

Where inputs follow from each other, the prediction may vary with an input only because its neighbours do. Then ``u`` stands for
what the input alone holds, and ``E[prediction u]`` is what the prediction changes by if that input alone is exchanged: the share.
The loss that is gained does not ask by which input.

Products and eigenvectors are torch's, on one thread: numpy's library takes all cores, and where these are busy (a training that
waits for its forecast, say) its threads wait for each other thirty times as long as one takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.threads import one_thread
from lagreach.errors import InputError
from lagreach.statistics.linear_share.curves import ShareCurves
from lagreach.statistics.linear_share.moments import SUMS, ShareMoments

Array = np.ndarray
Sums = dict[str, Tensor]
AMOUNTS = 65  # amounts of shrinkage from none to all: four a decade
MOST_SHRINKAGE = 1e4  # in units of the largest eigenvalue
DIGITS = 9  # of shares that are kept, so that files stay small
FLOORS = {torch.float64: 1e-14, torch.float32: 1e-12}  # variances below this part of the largest are rounding
COARSE_FLOOR = 1e-6  # for half precision, and for differences
CHANCE = 0.99  # quantile that a lag's mean gradient must exceed to count as one
UNTOLD = 1e-3  # of its variance in the block left out: a direction that varies less in the fit is none that it tells of
LEAST = 1e-6  # eigenvalues below this part of the largest do not count for the design effect


def rounding_floor(dtype: torch.dtype | None) -> float:
    """Smallest shrinkage that features of this type allow, in units of the largest eigenvalue; None for coarse ones."""
    return COARSE_FLOOR if dtype is None else FLOORS.get(dtype, COARSE_FLOOR)


@one_thread()
def share_curves(
    moments: ShareMoments,
    *,
    floor: float = 1e-12,
    budget: float | None = None,
    features: Array | None = None,
    scale: Tensor | None = None,
) -> ShareCurves:
    """Evaluate the closed forms of `lagreach.statistics.linear_share.curves`.

    Parameters
    ----------
    floor
        Smallest shrinkage, and smallest variance of a direction that a fit uses, in units of the largest: what lies below is
        rounding.
    budget
        Stop gradient descent after this time (sum of its step sizes) at the latest; ridge if None.
    features
        Numbers of the features that take part; all if None.
    scale
        Times which each feature is taken: the root of the step size of its weight.
    """
    sums = {name: getattr(moments, name).cpu() for name in SUMS}
    if scale is not None:
        sums = scaled(sums, scale)
    if features is not None:
        sums = _selected(sums, torch.from_numpy(features))
    blocks = sums["sequences"].nonzero()[:, 0].tolist()
    if len(blocks) < 3:
        raise InputError("too few sequences for a forecast", got=f"{len(blocks)} blocks of them", expected="at least 3")
    total = {name: by_block.sum(0) for name, by_block in sums.items()}
    probes = len(moments.group) // (2 if moments.singled else 1)
    whole = _Fold.of(total, total, probes)
    largest = float(torch.linalg.eigvalsh(whole.squares)[-1])
    top = largest if largest > 0 else 1.0  # features that never vary fit nothing, in any units
    grid = _ridge(top, floor) if budget is None else _descent(top, budget)
    folds = []
    for block in blocks:
        left_out = {name: by_block[block] for name, by_block in sums.items()}
        rest = {name: total[name] - left_out[name] for name in SUMS}
        fit, fresh = _Fold.of(rest, rest, probes), _Fold.of(left_out, rest, probes)
        folds.append(_judge(fit, fresh, grid, floor, moments.copies[-probes:], descent=budget is not None))
    size = (sums["sequences"][blocks] / total["sequences"]).numpy()
    present = (total["present"] / total["sequences"]).numpy()
    power = whole.power.numpy()
    rows = sums["means"].shape[1]
    share, fitted = (_with_blocks(folds, name, size, "power", power) for name in ("share", "fitted"))
    if moments.singled:
        alone = _with_blocks(folds, "alone", size, "present", whole.present.numpy())
        share, fitted = alone, fitted + 2 * (alone - share)  # what is gained, 2 share - fitted, stays
    return ShareCurves(
        lags=moments.lags,
        share=share,
        fitted=fitted,
        noise=np.stack([_mean(folds, "noise", size), *(fold.noise for fold in folds)]),
        present=present,
        gained=_with_blocks(folds, "gained", size),
        in_data=_in_data(folds, size),
        seen=_seen(folds, size, power, present),
        dependence=_dependence(sums, blocks, total, probes),
        design_effect=_design_effect(whole, rows / float(total["concentration"] / total["sequences"])),
    )


def _selected(sums: Sums, features: Tensor) -> Sums:
    """The sums of some features only."""
    rows, count = sums["means"].shape[1:]
    # gradients carry the rows' residuals behind the features
    behind = torch.cat((features, count + torch.arange(rows)))
    return sums | {
        "squares": sums["squares"][:, features][:, :, features],
        "means": sums["means"][:, :, features],
        "cross": sums["cross"][:, :, features],
        "gradients": sums["gradients"][:, behind][:, :, behind],
        "gradient": sums["gradient"][:, :, behind],
    }


def scaled(sums: Sums, scale: Float[Tensor, "feature"]) -> Sums:
    """The sums of features that are each taken so many times."""
    scale = scale.to(sums["squares"])
    behind = torch.cat((scale, torch.ones(sums["means"].shape[1], dtype=scale.dtype)))  # the rows' residuals stay
    return sums | {
        "squares": sums["squares"] * scale[:, None] * scale,
        "means": sums["means"] * scale,
        "cross": sums["cross"] * scale[:, None],
        "gradients": sums["gradients"] * behind[:, None] * behind,
        "gradient": sums["gradient"] * behind,
    }


def _ridge(top: float, floor: float) -> Array:
    return top * np.geomspace(max(floor, 1e-15), MOST_SHRINKAGE, AMOUNTS)


def _descent(top: float, budget: float) -> Array:
    """Times from the whole budget down to a step that does nothing."""
    shortest = min(budget, 1 / top) / MOST_SHRINKAGE
    return np.geomspace(budget, shortest, AMOUNTS)


@dataclass(frozen=True)
class _Fold:
    """Moments of some sequences about the means of those that a fit is made from."""

    squares: Float[Tensor, "feature feature"]
    cross: Float[Tensor, "feature lag probe"]
    single: Float[Tensor, "feature lag probe"]  # with what the input alone holds: the same where inputs are independent
    power: Float[Tensor, "lag"]
    present: Float[Tensor, "lag"]
    noise: Float[Tensor, "feature feature"]  # covariance of a sequence's gradient, for a residual of variance one
    gradient: Float[Tensor, "copy feature"]
    variance: float  # of the residual
    target: Float[Tensor, "lag probe"]
    output: Float[Tensor, "lag probe"]

    @classmethod
    def of(cls, sums: Sums, about: Sums, probes: int) -> _Fold:
        n, m = float(sums["sequences"]), float(about["sequences"])
        mean, planted = about["means"] / m, about["planted"] / m  # (row, feature), (row, lag, probe)
        cross = sums["cross"].transpose(0, 1) - _outer(mean, sums["planted"]) - _outer(sums["means"], planted)
        cross = cross / n + _outer(mean, planted)
        power = (sums["power"] - 2 * (planted * sums["planted"]).sum(0)) / n + planted.square().sum(0)
        features = mean.shape[1]
        centred = torch.cat((torch.eye(features, dtype=mean.dtype), -mean))  # gradients of features about their means
        gradient, offset = sums["gradient"] @ centred / n, sums["gradient"][:, features:] / n
        second = centred.T @ sums["gradients"] @ centred / n
        variance = float(sums["residual"] / n - offset.square().sum())
        spread = second - gradient.T @ gradient
        target, output = _lagged(sums["lagged"], about["lagged"], n)
        return cls(
            squares=sums["squares"] / n - mean.T @ mean,
            cross=cross[..., :probes],
            single=cross[..., -probes:],
            power=power[:, :probes].mean(1),
            present=sums["present"] / n,
            noise=spread * n / max(n - 1, 1) / variance if variance > 0 else torch.zeros_like(second),
            gradient=gradient,
            variance=variance,
            target=target[:, -probes:],
            output=output[:, -probes:],
        )


def _outer(by_feature: Float[Tensor, "row feature"], by_lag: Float[Tensor, "row lag probe"]) -> Tensor:
    """Sum over rows: (feature, lag, probe)."""
    return (by_feature.T @ by_lag.flatten(1)).unflatten(1, by_lag.shape[1:])


def _lagged(sums: Float[Tensor, "six lag probe"], about: Tensor, n: float) -> tuple[Tensor, Tensor]:
    """Covariances of target and output with the old input, over the steps that have one."""
    w, z, r, zr, o, zo = sums
    count = torch.where(about[0] > 0, about[0], 1.0)
    z_mean, r_mean, o_mean = about[1] / count, about[2] / count, about[4] / count
    residual = zr - z_mean * r - r_mean * z + z_mean * r_mean * w
    output = zo - z_mean * o - o_mean * z + z_mean * o_mean * w
    return (residual + output) / n, output / n


@dataclass(frozen=True)
class _Judged:
    """One fit: by its own moments (for the jackknife), and with those of the block that it has not seen."""

    share: tuple[Array, Array]  # (lag, amount): held out; of the fit's own blocks, divided by their power
    fitted: tuple[Array, Array]
    alone: tuple[Array, Array]  # of what the input alone holds, to be divided by `present`
    gained: tuple[Array, Array]  # (amount,)
    noise: Array  # (amount,)
    in_data: tuple[Array, Array]  # (lag, amount), to be divided by `strength`
    strength: tuple[Array, Array]  # (lag,)
    seen: tuple[Array, Array]  # (2, lag): |c|^2 and c' Gamma c
    power: Array  # (lag,)
    present: Array  # (lag,)


def _judge(fit: _Fold, fresh: _Fold, grid: Array, floor: float, copies: Tensor, *, descent: bool) -> _Judged:
    values, vectors = torch.linalg.eigh(fit.squares)
    # where targets are hardly more than features, some directions hardly vary in a fit: what it holds of them is rounding or
    # chance, which the block that is left out, where they do vary, would make large
    elsewhere = (vectors * (fresh.squares @ vectors)).sum(0)
    kept = (values > floor * values[-1].clamp(min=0.0)) & (values > UNTOLD * elsewhere)
    values, vectors = values[kept], vectors[:, kept]
    amounts = torch.from_numpy(grid)[:, None]
    weight = _descended(values, amounts) if descent else 1 / (values + amounts)  # (amount, feature)
    twice = values * weight**2
    fitted, new, *single = (
        (vectors.T @ cross.flatten(1)).unflatten(1, cross.shape[1:])
        for cross in (fit.cross, fresh.cross, fresh.single, fit.single)
    )
    crossed = [(fitted * other).mean(2).T for other in (new, fitted)]  # (lag, feature)
    own_gradient, new_gradient = fit.gradient @ vectors, fresh.gradient @ vectors
    turned = vectors.T @ fit.noise @ vectors
    noise = turned.diagonal().clamp(min=0.0)
    scale = fit.variance if fit.variance > 0 else 1.0
    pushed = (copies @ own_gradient).T  # (feature, probe)

    def gained(other: Tensor) -> Array:
        return ((2 * weight - twice) @ (own_gradient * other).sum(0) / scale).numpy()

    def moved(b: Tensor, cross: Tensor, output: Tensor) -> Array:
        change = (cross * pushed[:, None] * b).sum(2).T
        return ((b * output).sum(1)[:, None] + change @ weight.T).numpy()

    def seen(other: Tensor) -> Array:
        along = (turned @ other.flatten(1)).view_as(other)
        return torch.stack([(fitted * part).sum(0).mean(1) for part in (other, along)]).numpy()

    def both(values: Sequence[Tensor], by: Tensor) -> tuple[Array, Array]:
        held_out, in_sample = ((value @ by.T).numpy() for value in values)
        return held_out, in_sample

    return _Judged(
        share=both(crossed, weight),
        fitted=both(crossed, twice),
        alone=both([(fitted * other).mean(2).T for other in single], weight),
        gained=(gained(new_gradient), gained(own_gradient)),
        noise=(twice @ noise).numpy(),
        in_data=(moved(fit.target, single[0], fresh.output), moved(fit.target, single[1], fit.output)),
        strength=((fit.target * fresh.target).sum(1).numpy(), fit.target.square().sum(1).numpy()),
        seen=(seen(new), seen(fitted)),
        power=fit.power.numpy(),
        present=fit.present.numpy(),
    )


def _descended(values: Tensor, times: Tensor) -> Tensor:
    """``(1 - exp(-tau s)) / s``, which is tau where s is zero."""
    product = times * values
    return torch.where(product > 1e-8, -torch.expm1(-product) / values, times * (1 - product / 2))


def _mean(folds: list[_Judged], name: str, size: Array) -> Array:
    return sum(part * getattr(fold, name) for part, fold in zip(size, folds, strict=True))


def _with_blocks(
    folds: list[_Judged], name: str, size: Array, over: str | None = None, whole: Array | None = None
) -> Array:
    """The held-out estimate, and behind it what it would be without each block, as far as the fits' own values move.

    Divided by `over`: its value `whole` of all sequences, or that of each fit.
    """
    pairs = [getattr(fold, name) for fold in folds]
    held_out = sum(part * pair[0] for part, pair in zip(size, pairs, strict=True))
    inside = np.stack([pair[1] for pair in pairs])
    if over is not None and whole is not None:
        held_out = _ratio(held_out, whole[:, None])
        inside = _ratio(inside, np.stack([getattr(fold, over) for fold in folds])[..., None])
    return np.round(np.concatenate((held_out[None], held_out + inside - inside.mean(0))), DIGITS)


def _ratio(upper: Array, lower: Array) -> Array:
    return np.divide(upper, lower, out=np.zeros(np.broadcast_shapes(upper.shape, lower.shape)), where=lower > 0)


def _in_data(folds: list[_Judged], size: Array) -> Array:
    """Slope on the dependency in the data; zero where the blocks do not agree that there is one."""
    upper, lower = (
        sum(part * getattr(fold, name)[0] for part, fold in zip(size, folds, strict=True))
        for name in ("in_data", "strength")
    )
    inside = np.stack([_ratio(fold.in_data[1], fold.strength[1][:, None]) for fold in folds])
    value = _ratio(upper, lower[:, None])
    return np.round(np.concatenate((value[None], value + inside - inside.mean(0))), DIGITS)


def _seen(folds: list[_Judged], size: Array, power: Array, present: Array) -> Float[Array, "fit lag"]:
    """``power c' Gamma c / (present |c|^4)``: inf where the mean gradient holds no more of a lag than chance leaves there."""
    from scipy.special import stdtrit

    def needed(square: Array, along: Array, own_power: Array) -> Array:
        usable = (square > 0) & (along > 0) & (present > 0)
        lower = np.where(usable, present * np.square(square), 1.0)
        return np.where(usable, own_power * along / lower, np.inf)

    by_block = np.stack([part * fold.seen[0] for part, fold in zip(size, folds, strict=True)])
    square, along = by_block.sum(0)
    blocks = len(folds)  # every pair of them counts in two: hence twice the variance of independent terms
    chance = stdtrit(blocks - 1, CHANCE) * np.sqrt(2 * blocks) * by_block[:, 0].std(0, ddof=1)
    value = np.where(square > chance, needed(square, along, power), np.inf)
    inside = np.stack([needed(fold.seen[1][0], fold.seen[1][1], fold.power) for fold in folds])
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(inside)
        moved = value * np.exp(logs - logs.mean(0))
    return np.concatenate((value[None], np.where(np.isnan(moved), np.inf, moved)))


def _dependence(sums: Sums, blocks: Sequence[int], total: Sums, probes: int) -> Float[Array, "block lag probe"]:
    """Covariance of the target with what the old input alone holds, by block."""
    by_block = [_lagged(sums["lagged"][b], total["lagged"], float(sums["sequences"][b]))[0] for b in blocks]
    return torch.stack(by_block)[..., -probes:].numpy()


def _design_effect(whole: _Fold, rows_a_sequence: float) -> float:
    """Mean over the directions of S of what a gradient varies, over what it would for independent residuals."""
    values, vectors = torch.linalg.eigh(whole.squares)
    kept = values > LEAST * values[-1]
    along = (vectors * (whole.noise @ vectors)).sum(0)[kept]
    return float((along / values[kept]).mean() * rows_a_sequence) if bool(kept.any()) else float("nan")
