"""The window as the paper builds it: the matched statistic (28), Hill and McCulloch estimates, and (34) as printed.

It is kept apart from `lagreach.diagnose`, whose windows correct it: units are turned by the data they are applied to, the
noise shrinks with the transport as the signal does, and the exponent is alpha (see `paper_requirement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from lagreach.data.batch import Batch
from lagreach.detection.law import reach
from lagreach.detection.sequences import paper_requirement
from lagreach.papers.livi.matched import rates_and_matched_statistic
from lagreach.tails.fit import fit_tail

ALPHA_RANGE = (1.01, 2.0)  # (34) has no meaning outside; Hill's estimate often lies above


@dataclass(frozen=True)
class PaperWindow:
    """N(l) by (34) with plug-in estimates. `alpha` is Hill's median over lags, cut to (1, 2]; `hill` as estimated."""

    lags: np.ndarray
    sequences: np.ndarray
    envelope: np.ndarray
    scale: np.ndarray
    alignment: np.ndarray
    alpha: float
    hill: float

    def window(self, sequences: float) -> float:
        """The largest lag that needs at most so many sequences; 0 if there is none, as the paper counts."""
        lag = reach(self.lags, self.sequences, sequences)
        return 0.0 if lag is None else float(lag)


def paper_window(
    model: nn.Module, batch: Batch, lags: Sequence[int], loss: str = "mse", error: float = 0.05, seed: int = 0
) -> PaperWindow:
    """Follow section 6: one matched statistic per sequence and lag, a global Hill index, McCulloch scales.

    ``delta(l)`` is the mean of the statistic, which carries the envelope already (f(l) times the mean alignment).
    """
    rates, matched = rates_and_matched_statistic(
        model, batch.x, batch.y, lags, loss, orientation="same-data", signal="gradient", mask=batch.mask, generator=seed
    )
    envelope = rates.envelope.numpy()
    hills = np.array([fit_tail(values, "hill", check=False).alpha for values in matched.values.T])
    hill = float(np.median(hills[np.isfinite(hills)])) if np.isfinite(hills).any() else np.nan
    alpha = float(np.clip(hill, *ALPHA_RANGE))
    scale = np.array([fit_tail(values, "mcculloch", check=False).scale for values in matched.values.T])
    mean = np.abs(matched.mean)
    usable = np.isfinite(scale) & (scale > 0) & (mean > 0)
    needed = np.full(len(mean), np.inf)
    if np.isnan(alpha):  # too few sequences for a tail index
        needed[:] = np.nan
    elif usable.any():
        needed[usable] = paper_requirement(mean[usable], scale[usable], alpha, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        alignment = np.where(envelope > 0, mean / envelope, np.nan)
    return PaperWindow(np.array(matched.lags), needed, envelope, scale, alignment, alpha, hill)
