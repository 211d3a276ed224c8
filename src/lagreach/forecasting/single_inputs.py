"""What one input alone contributes, where inputs follow from each other in time.

If y_t depends on the inputs by weights b_k, ``y_t = sum_k b_k z_{t-k} + e_t``, its covariance with z_{t-l} also holds the other
b_k, as far as their inputs follow from this one. With the covariance C of all inputs of a sequence and ``u = C^-1 z``,
``E[z u'] = 1``, so that ``E[y_t u_{t-l}]`` is b_l itself: what y changes by if z_{t-l} alone is exchanged and all else stays.

C is that of an autoregression: ``e_t = z_t - sum_k A_k z_{t-k}`` with the covariance D has ``C^-1 = A' D^-1 A``, a filter forward
and the same one backward. The first steps are predicted from as many as there are before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST_STEPS = 24  # before a step that it is predicted from
LEAST = 1e-6  # part of a variance that counts as unpredictable at least


@dataclass(frozen=True)
class Autoregression:
    """How inputs follow from those before: `weights[m]` where m steps are before, and the `precision[m]` of what is left."""

    weights: tuple[Float[Tensor, "_ probe probe"], ...]
    precision: tuple[Float[Tensor, "probe probe"], ...]

    def singled(
        self, planted: Float[Tensor, "seq time probe"], inside: Bool[Tensor, "seq time"]
    ) -> Float[Tensor, "seq time probe"]:
        """``u = C^-1 z`` of every sequence; zero where it has ended."""
        z = planted.double()
        order, time = len(self.weights) - 1, z.shape[1]
        parts = [(t, slice(t, t + 1)) for t in range(min(order, time))] + [(order, slice(order, time))]
        parts = [(known, steps) for known, steps in parts if steps.start < steps.stop]

        def earlier(steps: slice, k: int) -> slice:
            return slice(steps.start - k, steps.stop - k)

        left = z.clone()
        for known, steps in parts:
            for k in range(1, known + 1):
                left[:, steps] -= z[:, earlier(steps, k)] @ self.weights[known][k - 1].T.to(z)
        left = torch.where(inside[..., None], left, 0.0)
        for known, steps in parts:
            left[:, steps] = left[:, steps] @ self.precision[known].to(z)
        singled = left.clone()
        for known, steps in parts:
            for k in range(1, known + 1):
                singled[:, earlier(steps, k)] -= left[:, steps] @ self.weights[known][k - 1].to(z)
        return torch.where(inside[..., None], singled, 0.0).to(planted)


def autoregression(covariances: Sequence[Float[np.ndarray, "probe probe"]], steps: float) -> Autoregression:
    """Fit to ``E[z_t z_{t-k}']``, k = 0, 1, ..., of so many steps; as many steps before as Schwarz's criterion grants.

    >>> halved = autoregression([0.5**k * np.eye(1) for k in range(4)], 1000.0)
    >>> [weights.shape[0] for weights in halved.weights], halved.weights[-1].flatten().round(decimals=3)
    ([0, 1], tensor([0.5000], dtype=torch.float64))
    """
    probes = len(covariances[0])
    base = covariances[0] + LEAST * np.trace(covariances[0]) / probes * np.eye(probes)
    lagged = [base, *covariances[1:]]

    def predicted(known: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights on the steps before, and the covariance of what they leave."""
        if known == 0:
            return np.zeros((0, probes, probes)), base
        rows = [[lagged[j - i] if j >= i else lagged[i - j].T for j in range(known)] for i in range(known)]
        towards = np.concatenate(lagged[1 : known + 1], axis=1)  # E[z_t (z_{t-1}, z_{t-2}, ...)']
        weights = np.linalg.solve(np.block(rows).T, towards.T).T
        left = base - weights @ towards.T
        return weights.reshape(probes, known, probes).transpose(1, 0, 2), (left + left.T) / 2

    fits = [predicted(known) for known in range(len(lagged))]
    doubt = [
        steps * np.linalg.slogdet(left)[1] + known * probes**2 * np.log(steps) for known, (_, left) in enumerate(fits)
    ]
    chosen = fits[: int(np.argmin(doubt)) + 1]
    return Autoregression(
        tuple(torch.from_numpy(weights.copy()) for weights, _ in chosen),
        tuple(torch.from_numpy(np.linalg.inv(left)) for _, left in chosen),
    )


class LaggedCovariances:
    """``E[z_t z_{t-k}']`` over the steps that have an input k steps before."""

    def __init__(self, probes: int, time: int) -> None:
        self._most = min(MOST_STEPS, time // 4)
        self._products = np.zeros((self._most + 1, probes, probes))
        self._steps = np.zeros(self._most + 1)

    def add(self, planted: Float[Tensor, "seq time probe"], inside: Bool[Tensor, "seq time"]) -> None:
        """Add sequences whose inputs are zero where they are not `inside`."""
        time = planted.shape[1]
        for k in range(min(self._most + 1, time)):
            late, early = planted[:, k:].flatten(0, 1), planted[:, : time - k].flatten(0, 1)
            self._products[k] += (late.T @ early).numpy()
            self._steps[k] += float(inside[:, k:].sum())

    def autoregression(self) -> Autoregression:
        """How each step follows from those before."""
        return autoregression(list(self._products / self._steps[:, None, None]), float(self._steps[0]))
