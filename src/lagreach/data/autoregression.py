"""What one input alone holds, where inputs follow from each other in time.

If y_t depends on the inputs by weights b_k, ``y_t = sum_k b_k z_{t-k} + e_t``, its covariance with z_{t-l} also holds the other
b_k, as far as their inputs follow from this one. With the covariance C of all inputs up to t and ``u = C^-1 z``,
``E[z u'] = 1``, so that ``E[y_t u_{t-l}]`` is b_l itself: what y changes by if z_{t-l} alone is exchanged and all else stays.
Over its block of C^-1, u_{t-l} is what the other inputs up to t do not predict of z_{t-l}.

C is that of an autoregression: ``e_t = z_t - sum_k W_k z_{t-k}`` with the covariance D has ``C^-1 = A' D^-1 A``, a filter forward
and the same one backward, which ends at t: inputs after t may be what is forecast. The first steps are predicted from as many
as there are before them. Inputs of different groups are taken for independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 64  # before a step that it is predicted from
MOST_VALUES = 512  # of them, together

Covariances = Float[np.ndarray, "h group c c"]
Series = Float[Tensor, "row time group c"]


def steps_before(time: int, inputs: int, most: int = MOST_STEPS) -> int:
    """From how many steps before it a step is predicted, at most.

    >>> steps_before(20, 2), steps_before(1000, 2), steps_before(1000, 32)
    (19, 64, 16)
    """
    return max(0, min(most, time - 1, MOST_VALUES // inputs))


@dataclass(frozen=True)
class Autoregression:
    """How inputs follow from those before.

    Attributes
    ----------
    filters
        A by rows, (step, group, c, c): ``filters[m][k]`` is what an input k steps before counts where m steps are known; the
        first is one.
    precision
        Inverse of the covariance of what is left, where m steps are known.
    """

    filters: tuple[Float[np.ndarray, "_ group c c"], ...]
    precision: tuple[Float[np.ndarray, "group c c"], ...]

    @property
    def order(self) -> int:
        """Steps that an input follows from."""
        return len(self.filters) - 1

    @cached_property
    def _rows(self) -> list[Float[np.ndarray, "known group c c"]]:
        """For each distance k the entries of A for positions k, k + 1, ..., order; the last stands for all behind."""
        return [np.stack([self.filters[m][k] for m in range(k, self.order + 1)]) for k in range(self.order + 1)]

    @cached_property
    def _precisions(self) -> Float[np.ndarray, "known group c c"]:
        return np.stack(self.precision)

    def whitened(self, z: Series) -> Series:
        """``D^-1 A z``."""
        left = torch.zeros_like(z)
        for k in range(min(self.order, z.shape[1] - 1) + 1):
            for positions, matrices in self._stretches(self._rows[k], k, z.shape[1]):
                left[:, positions] += _times(matrices, z[:, _earlier(positions, k)])
        return torch.cat(
            [
                _times(matrices, left[:, positions])
                for positions, matrices in self._stretches(self._precisions, 0, z.shape[1])
            ],
            dim=1,
        )

    def singled(self, whitened: Series, ahead: int | None = None, onto: Series | None = None, first: int = 0) -> Series:
        """``u = A' D^-1 A z``, from no more than so many steps ahead of each input.

        It is added `onto` what is there already, from fewer than the `first` steps ahead.
        """
        u, time = torch.zeros_like(whitened) if onto is None else onto, whitened.shape[1]
        for k in range(first, min(self.order if ahead is None else min(ahead, self.order), time - 1) + 1):
            for positions, matrices in self._stretches(self._rows[k], k, time):
                u[:, _earlier(positions, k)] += _times(matrices.swapaxes(-1, -2), whitened[:, positions])
        return u

    def unpredicted(self, z: Series, ahead: int) -> Series:
        """What all inputs before and so many behind each of them leave of it; of the last ones nothing is said."""
        u = self.singled(self.whitened(z), ahead)
        blocks = self._blocks(ahead)
        return torch.cat(
            [
                _times(np.linalg.inv(matrices), u[:, positions])
                for positions, matrices in self._stretches(blocks, 0, z.shape[1])
            ],
            dim=1,
        )

    def _blocks(self, ahead: int) -> Float[np.ndarray, "known group c c"]:
        """Blocks of C^-1 on its diagonal at the first positions, if it ends so many steps behind; the last for all others."""
        blocks = np.zeros_like(self._precisions)
        for k in range(min(ahead, self.order) + 1):
            for position in range(self.order + 1):
                known = min(position + k, self.order)
                row = self.filters[known][k]
                blocks[position] += row.swapaxes(-1, -2) @ self.precision[known] @ row
        return blocks

    @cached_property
    def left(self) -> Float[np.ndarray, "group c c"]:
        """Covariance of what inputs on both sides leave of one."""
        return np.linalg.inv(self._blocks(self.order)[-1])

    def _stretches(self, of_positions: np.ndarray, first: int, time: int) -> list[tuple[slice, np.ndarray]]:
        """Positions from the first one on: those with few steps before them, each with its matrix, the others with the last."""
        few = min(self.order, time)
        parts = [
            (slice(first, few), of_positions[: few - first]),
            (slice(max(few, first), time), of_positions[-1:]),
        ]
        return [(positions, matrices) for positions, matrices in parts if positions.start < positions.stop]


def _earlier(positions: slice, k: int) -> slice:
    return slice(positions.start - k, positions.stop - k)


def _times(matrices: Float[np.ndarray, "#time group c c"], values: Series) -> Series:
    """The matrix of each position, or the one of all, times its values."""
    made = torch.from_numpy(matrices).to(values)
    if len(made) == 1:
        return torch.einsum("gij,rtgj->rtgi", made[0], values)
    return torch.einsum("tgij,rtgj->rtgi", made, values)


def autoregression(covariances: Covariances, steps: Float[np.ndarray, "h"], ridge: float) -> Autoregression:
    """Fit to ``E[z_t z_{t-k}']``, k = 0, 1, ..., each of so many steps; as many steps before as Schwarz's criterion grants.

    >>> covariances = np.array([0.5**k for k in range(4)])[:, None, None, None]
    >>> halved = autoregression(covariances, np.full(4, 1000.0), 1e-9)
    >>> halved.order, halved.filters[1].flatten().round(3).tolist(), halved.left.round(3).item()
    (1, [1.0, -0.5], 0.6)
    """
    groups, c = covariances.shape[1:3]
    typical = np.trace(covariances[0], axis1=-2, axis2=-1) / c
    base = covariances[0] + ridge * np.where(typical > 0, typical, 1.0)[:, None, None] * np.eye(c)
    lagged = [base, *covariances[1:]]
    among = _among(lagged)
    filters, leftovers, sizes, doubt = list[np.ndarray](), list[np.ndarray](), list[float](), list[float]()
    for known in range(len(lagged)):
        weights = _weights(among, lagged, known)
        towards = np.concatenate([base[..., :0], *lagged[1 : known + 1]], axis=-1)
        left = base - np.concatenate([base[..., :0], *weights], axis=-1) @ towards.swapaxes(-1, -2)
        left = (left + left.swapaxes(-1, -2)) / 2
        if not (
            np.linalg.eigvalsh(left) > 0
        ).all():  # far covariances are uncertain: together they may be those of nothing
            break
        filters.append(np.stack([np.broadcast_to(np.eye(c), base.shape), *(-w for w in weights)]))
        leftovers.append(left)
        size = np.linalg.slogdet(left)[1].sum()
        # far apart there are fewer steps to tell by
        more = steps[known] * (size - sizes[-1]) + groups * c**2 * np.log(max(steps[known], 1.0)) if known else 0.0
        doubt.append(more + sum(doubt[-1:]))
        sizes.append(size)
        if known - int(np.argmin(doubt)) >= MOST_STEPS:  # nothing farther is expected to count
            break
    best = int(np.argmin(doubt)) + 1
    return Autoregression(tuple(filters[:best]), tuple(np.linalg.inv(left) for left in leftovers[:best]))


def _among(lagged: list[Float[np.ndarray, "group c c"]]) -> Float[np.ndarray, "group n n"]:
    """Covariances of all but the farthest inputs with each other; its leading part is that of the nearest ones."""
    most = range(len(lagged) - 1)
    if not most:
        return lagged[0][..., :0, :0]
    return np.block([[lagged[j - i] if j >= i else lagged[i - j].swapaxes(-1, -2) for j in most] for i in most])


def _weights(
    among: Float[np.ndarray, "group n n"], lagged: list[Float[np.ndarray, "group c c"]], known: int
) -> list[Float[np.ndarray, "group c c"]]:
    """Weights of so many steps before, from the nearest to the farthest."""
    if known == 0:
        return []
    nearest = slice(known * lagged[0].shape[-1])
    towards = np.concatenate(lagged[1 : known + 1], axis=-1)  # E[z_t (z_{t-1}, z_{t-2}, ...)']
    solved = np.linalg.solve(among[..., nearest, nearest].swapaxes(-1, -2), towards.swapaxes(-1, -2))
    return np.split(solved.swapaxes(-1, -2), known, axis=-1)
