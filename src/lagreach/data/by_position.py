"""What one input alone holds where inputs change in the course of their sequences: regressions of every position's own.

An autoregression takes inputs to follow from those before alike everywhere. Trends, walks, seasons with a level of their own and
columns that begin with zeros do not. Where sequences are equally long and enough, the covariance C of a whole sequence tells
all regressions (Cholesky: ``R C R' = 1`` with R lower triangular), and ``C^-1 = R' R`` up to every step. What is left of an input
is then uncorrelated with all others in the very sequences that C is of. It takes more of them, so an autoregression is kept
where it fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.autoregression import Autoregression, Series

MOST_VALUES = 1024  # inputs of a sequence, of which all covariances are kept
SURE = 4.0  # standard deviations from what an autoregression lets expect, of which chance shows less
LITTLE = 0.1  # share of the variance: if less is left of an input, small errors of an autoregression count much


@dataclass(frozen=True)
class ByPosition:
    """`root` is R, (time and input, the same), input fastest. A group of all inputs is meant wherever series have groups.

    >>> walk = ByPosition.of(np.minimum.outer(np.arange(1.0, 4), np.arange(1.0, 4)), 1, 0.0)
    >>> walk.root.round(3).tolist()
    [[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]]
    """

    root: Float[np.ndarray, "n n"]
    inputs: int
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, covariance: Float[np.ndarray, "n n"], inputs: int, ridge: float) -> ByPosition:
        """From the covariance of whole sequences."""
        root = np.linalg.inv(np.linalg.cholesky(_ridged(covariance, ridge)))
        return cls(np.tril(root) + 0.0, inputs)  # no negative zeros

    @property
    def order(self) -> int:
        """Steps that an input follows from."""
        return len(self.root) // self.inputs - 1

    @cached_property
    def _tensor(self) -> Tensor:
        return torch.from_numpy(self.root)

    def whitened(self, z: Series) -> Series:
        """``R z``."""
        return (z.flatten(1) @ self._tensor.T.to(z)).view_as(z)

    def singled(self, whitened: Series, ahead: int | None = None, onto: Series | None = None, first: int = 0) -> Series:
        """``u = C^-1 z``, C being that of inputs no more than so many steps ahead of each; see `Autoregression.singled`."""
        u, time = torch.zeros_like(whitened) if onto is None else onto, whitened.shape[1]
        rows = self._tensor.view(time, self.inputs, time, self.inputs).to(whitened)
        for k in range(first, (self.order if ahead is None else min(ahead, self.order)) + 1):
            at = torch.arange(k, time)
            u[:, : time - k] += torch.einsum("tij,rtgi->rtgj", rows[at, :, at - k], whitened[:, k:])
        return u

    def unpredicted(self, z: Series, ahead: int) -> Series:
        """What all inputs before and so many behind each of them leave of it; of the last ones nothing is said."""
        ahead = min(ahead, self.order)
        if ahead not in self._kept:
            self._kept.clear()  # lags come one after the other
            self._kept[ahead] = torch.from_numpy(self._leaving(ahead))
        return (z.flatten(1) @ self._kept[ahead].T.to(z)).view_as(z)

    def _leaving(self, ahead: int) -> Float[np.ndarray, "n n"]:
        """Matrix that leaves of every input what the others do not predict."""
        n, c = len(self.root), self.inputs
        step = np.arange(n) // c
        near = (step[:, None] - step[None]) <= ahead
        up_to = np.where(near, self.root, 0.0).T @ self.root  # rows of C^-1, each of the inputs up to its own end
        blocks = up_to.reshape(n // c, c, n // c, c)[np.arange(n // c), :, np.arange(n // c)]
        left: np.ndarray = np.einsum("tij,tjn->tin", np.linalg.inv(blocks), up_to.reshape(n // c, c, n)).reshape(n, n)
        return left

    @cached_property
    def left(self) -> Float[np.ndarray, "1 c c"]:
        """Covariance of what inputs on both sides leave of one: the median over positions, for at the ends more is left."""
        n, c = len(self.root), self.inputs
        precision = (self.root.T @ self.root).reshape(n // c, c, n // c, c)
        each = np.linalg.inv(precision[np.arange(n // c), :, np.arange(n // c)])
        median: np.ndarray = np.median(each, axis=0)[None]
        return median


def _ridged(covariance: Float[np.ndarray, "n n"], ridge: float) -> Float[np.ndarray, "n n"]:
    return covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def better_by_position(
    model: Autoregression, left: float, covariance: Float[np.ndarray, "n n"], count: int, ridge: float
) -> bool:
    """Whether so many sequences of this covariance are better told position by position; `left` is the share that is left."""
    return left < LITTLE or misfit(model, covariance, count, ridge) > SURE


def misfit(model: Autoregression, covariance: Float[np.ndarray, "n n"], count: int, ridge: float) -> float:
    """How much farther from an autoregression whole sequences are than chance lets expect, in standard deviations.

    What is compared is the likelihood ratio, ``log|C_0| + tr(C_0^-1 C) - log|C| - n``, of which mean and variance are known if
    C is that of so many independent Gaussian sequences of the model C_0. Heavy tails count as a misfit too.

    >>> generator = np.random.default_rng(0)
    >>> white = Autoregression((np.ones((1, 1, 1, 1)),), (np.ones((1, 1, 1)),))
    >>> steady, walks = generator.normal(size=(200, 20)), generator.normal(size=(200, 20)).cumsum(1)
    >>> [abs(misfit(white, x.T @ x / 200, 200, 0.0)) > SURE for x in (steady, walks)]
    [False, True]
    """
    from scipy.special import digamma, polygamma

    n, c = len(covariance), model.precision[0].shape[-1]
    covariance = _ridged(covariance, ridge)
    each = torch.eye(n, dtype=torch.float64).view(n, n // c, 1, c)
    inverse = model.singled(model.whitened(each)).view(n, n).numpy()
    known = [min(step, model.order) for step in range(n // c)]
    size = -sum(np.linalg.slogdet(model.precision[m])[1].sum() for m in known)
    ratio = size + float((inverse * covariance).sum()) - np.linalg.slogdet(covariance)[1] - n
    freedom = (count - np.arange(n)) / 2  # of the determinant's factors (Bartlett)
    expected = n * np.log(count / 2) - digamma(freedom).sum()
    variance = polygamma(1, freedom).sum() - 2 * n / count
    return float((ratio - expected) / np.sqrt(variance))
