"""What is left of an input once its neighbours in time are known.

Exchanging the inputs of two sequences at one step tells lags apart only if that input says nothing about the others. Where
inputs follow each other, only the part that the neighbours do not predict is exchanged, and the predicted part stays: the
dependence that is then found is a *partial* one, on this input given the rest.

Everything is about the difference d of two partners. What both share, such as a calendar, drops out of it, and its
autocovariance is twice that of one sequence. Neighbours after the anchor t are never used: they may be what is forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.errors import InputError
from lagreach.gradients.contrast import anchor_shares
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.gradients.step_inputs import step_input
from lagreach.transport.objective import valid_steps

ORDERS = (1, 2, 4, 8, 16)  # neighbours on either side that may be used
JOINT_INPUTS = 32  # inputs up to which each is predicted from all of them; where there are more, from itself alone
SURE = 0.01  # how rarely independent inputs are taken for correlated
DETERMINED = 1e-6  # share of the variance below which nothing is left that could be exchanged
RIDGE = 1e-9  # of the variance, against inputs that repeat each other

Covariances = Float[np.ndarray, "h group c c"]


@dataclass(frozen=True)
class InputMoments:
    """How inputs differ between partners, by block.

    `products` (block, h, group, c, c) are sums of ``d_t d_{t-h}^T`` over pairs and steps, and `steps` (block, h) count them.
    All inputs make one group, or each of them a group of its own where there are many. `told` (block, band) says whether
    there is an anchor at all whose inputs at the band's lags differ, `shared` (block, input) which inputs change over time but
    not between partners.
    """

    block: np.ndarray
    steps: np.ndarray
    products: np.ndarray
    told: np.ndarray
    shared: np.ndarray

    @classmethod
    def merge(cls, parts: Iterable[InputMoments]) -> InputMoments:
        """Put the blocks of several parts together, in the order of their numbers."""
        listed = list(parts)
        block = np.concatenate([part.block for part in listed])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        order = np.argsort(block)
        names = ("steps", "products", "told", "shared")
        return cls(block[order], *(np.concatenate([getattr(part, name) for part in listed])[order] for name in names))

    def covariances(self, half: int | None = None) -> Covariances:
        """Autocovariances of the differences; of the even (0) or odd (1) blocks if a half is asked for."""
        mine = slice(None) if half is None else np.arange(len(self.block)) % 2 == half
        steps = self.steps[mine].sum(0)[:, None, None, None]
        return self.products[mine].sum(0) / np.maximum(steps, 1)


class InputSums:
    """Differences of the inputs of some blocks while they are summed."""

    def __init__(self, plan: MeasurementPlan, numbers: list[int]) -> None:
        self._numbers, self._edges = numbers, plan.bands.edges
        self._row_of = {number: row for row, number in enumerate(numbers)}
        self._told = np.zeros((len(numbers), len(plan.bands)), dtype=bool)
        self._moves: list[list[np.ndarray]] = [[] for _ in numbers]  # (2, input) each: over time, and between partners
        self._sums: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in numbers]

    def add(self, piece: PairBatch) -> None:
        """Take in some pairs."""
        part = piece.part
        place = step_input(part)
        newest = part.x if place is None else place.newest(part.x)
        difference = newest[::2] - newest[1::2]
        inside = valid_steps(part.lengths, len(part.x), part.x.shape[1], part.x.device)
        shares = anchor_shares(part.recurrence, piece.objective, part.states)
        valid, anchors = inside[::2] & inside[1::2], (shares[::2] > 0) & (shares[1::2] > 0)
        differs = (difference != 0).any(-1) & valid
        for block, rows in piece.groups(len(piece.block)):
            pairs = slice(rows.start // 2, rows.stop // 2)
            row = self._row_of[block]
            self._sums[row].append(neighbour_products(difference[pairs], valid[pairs]))
            self._told[row] |= _compared(differs[pairs], anchors[pairs], self._edges)
            change = (newest[rows, 1:] != newest[rows, :-1]) & inside[rows, 1:, None]
            apart = (difference[pairs] != 0) & valid[pairs, :, None]
            self._moves[row].append(torch.stack([moved.any(0).any(0) for moved in (change, apart)]).cpu().numpy())

    def result(self) -> InputMoments:
        """Return the sums by block."""
        steps = np.stack([sum(one for one, _ in of_block) for of_block in self._sums])
        products = np.stack([sum(one for _, one in of_block) for of_block in self._sums])
        change, apart = np.stack([np.any(of_block, axis=0) for of_block in self._moves], axis=1)
        return InputMoments(np.array(self._numbers), steps, products, self._told, change & ~apart)


def _compared(differs: Tensor, anchors: Tensor, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each band, whether some anchor's input at one of its lags differs between partners."""
    time = differs.shape[1]
    return np.array(
        [
            any(bool((differs[:, : time - lag] & anchors[:, lag:]).any()) for lag in range(first, last + 1))
            for first, last in edges
        ]
    )


def orders_for(time: int) -> tuple[int, ...]:
    """Numbers of neighbours that sequences of this length can tell about.

    >>> orders_for(40)
    (1, 2, 4, 8)
    """
    return tuple(order for order in ORDERS if 4 * order <= time)


def neighbour_products(
    difference: Float[Tensor, "pair time input"], valid: Tensor
) -> tuple[Float[np.ndarray, "h"], Covariances]:
    """Numbers of steps and sums of products over some pairs; `valid` (pair, time) says which steps both partners have."""
    time, inputs = difference.shape[1:]
    kept = torch.where(valid[..., None], difference.double(), 0.0)
    kept = kept[:, :, None] if inputs <= JOINT_INPUTS else kept[..., None]
    # groups and time first: a few steps later or earlier is then one piece of memory
    kept = kept.permute(2, 1, 0, 3).contiguous()
    distances = range(1 + 2 * max(orders_for(time), default=0))
    products = [kept[:, h:].flatten(1, 2).mT @ kept[:, : time - h].flatten(1, 2) for h in distances]
    steps = [valid[:, h:].sum() for h in distances]
    return torch.stack(steps).double().cpu().numpy(), torch.stack(products).cpu().numpy()


@dataclass(frozen=True)
class Neighbours:
    """Linear prediction of an input (a difference of inputs) from up to `order` inputs before and after it."""

    order: int
    covariances: Covariances

    @cached_property
    def left(self) -> float:
        """Share of the variance that the neighbours on both sides leave unexplained."""
        return _unexplained(self.covariances, self.covariances, self.order, self.order)

    def coefficients(self, before: int, after: int) -> Float[np.ndarray, "neighbour group c c"]:
        """Matrices that the neighbours ``-before .. -1, 1 .. after`` are multiplied by."""
        return _coefficients(self.covariances, before, after)

    def unpredicted(self, difference: Float[Tensor, "row time input"], after: int) -> Float[Tensor, "row time input"]:
        """What `order` neighbours before and at most `after` behind leave of each input, in float64.

        The first inputs have fewer neighbours before them. Of the last `after` inputs nothing is said.
        """
        d = difference.double()
        after = min(self.order, after)
        groups = self.covariances.shape[1]
        parts = d.unflatten(-1, (groups, -1))
        time = d.shape[1]
        predicted = torch.zeros_like(parts)
        for first in range(min(self.order, time - after) + 1):
            reached = slice(first, first + 1) if first < self.order else slice(first, time - after)
            matrices = torch.from_numpy(self.coefficients(first, after)).to(d)
            for offset, matrix in zip(_offsets(first, after), matrices, strict=True):
                seen = parts[:, reached.start + offset : reached.stop + offset]
                predicted[:, reached] += torch.einsum("gij,rtgj->rtgi", matrix, seen)
        return (parts - predicted).flatten(-2)


def fit_neighbours(moments: InputMoments) -> Neighbours | None:
    """Choose the number of neighbours that predicts best where it was not fitted; None if inputs do not follow each other.

    Half of the blocks predict the other half, and the other way round. That inputs are correlated at all must be beyond
    what independent inputs show by chance.
    """
    whole = moments.covariances()
    orders = [order for order in ORDERS if 2 * order < len(whole)]
    if not orders or not _correlated(whole, moments.steps.sum(0), orders):
        return None
    halves = [moments.covariances(half) for half in (0, 1)]
    error = {0: 1.0} | {
        order: sum(_unexplained(halves[i], halves[1 - i], order, order) for i in (0, 1)) / 2 for order in orders
    }
    largest = min(error, key=lambda order: error[order])
    chance = 2 * np.sqrt(4 * largest * whole.shape[-1]) / moments.steps[:, 0].sum()  # more neighbours must gain more
    best = min(order for order in error if error[order] <= error[largest] * (1 + chance))
    return Neighbours(best, whole[: 2 * best + 1]) if best else None


def _correlated(covariances: Covariances, steps: Float[np.ndarray, "h"], orders: list[int]) -> bool:
    """Whether squared autocorrelations up to some order are larger than chance (a portmanteau test)."""
    from scipy.special import chdtrc

    whiten = [_inverse_root(covariance) for covariance in covariances[0]]
    squares = [
        n * sum(np.square(w.T @ covariance @ w).sum() for covariance, w in zip(at_distance, whiten, strict=True))
        for n, at_distance in zip(steps[1:], covariances[1:], strict=True)
    ]
    freedom = sum(w.shape[1] ** 2 for w in whiten)
    if not freedom:
        return False
    chances = [chdtrc(order * freedom, sum(squares[:order])) for order in orders]
    return bool(min(chances) * len(orders) <= SURE)


def _inverse_root(covariance: Float[np.ndarray, "c c"]) -> Float[np.ndarray, "c kept"]:
    """Matrix that makes inputs uncorrelated with variance one; constant or redundant ones are left out."""
    values, vectors = np.linalg.eigh(covariance)
    keep = values > max(values[-1], 0.0) * 1e-10
    return vectors[:, keep] / np.sqrt(values[keep])


def _offsets(before: int, after: int) -> list[int]:
    return [*range(-before, 0), *range(1, after + 1)]


def _at(covariances: Covariances, distance: int) -> Float[np.ndarray, "group c c"]:
    """``E d_t d_{t-h}^T``, also for inputs that come later."""
    return covariances[distance] if distance >= 0 else covariances[-distance].swapaxes(-1, -2)


def _normal_equations(covariances: Covariances, before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariances among the neighbours, (group, n c, n c), and of an input with them, (group, c, n c)."""
    offsets = _offsets(before, after)
    among = np.block([[_at(covariances, i - j) for j in offsets] for i in offsets])
    cross = np.concatenate([_at(covariances, -j) for j in offsets], axis=-1)
    return among, cross


def _coefficients(covariances: Covariances, before: int, after: int) -> Float[np.ndarray, "neighbour group c c"]:
    groups, c = covariances.shape[1:3]
    if before + after == 0:
        return np.zeros((0, groups, c, c))
    among, cross = _normal_equations(covariances, before, after)
    typical = np.trace(covariances[0], axis1=-2, axis2=-1) / c
    ridge = RIDGE * np.where(typical > 0, typical, 1.0)[:, None, None] * np.eye(among.shape[-1])
    solved = np.linalg.solve(among + ridge, cross.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.stack(np.split(solved, before + after, axis=-1))


def _unexplained(fitted: Covariances, judged: Covariances, before: int, after: int) -> float:
    """Share of the variance of `judged` that a prediction fitted elsewhere leaves, averaged over directions."""
    solved = np.concatenate(_coefficients(fitted, before, after), axis=-1)
    among, cross = _normal_equations(judged, before, after)
    error = judged[0] - solved @ cross.swapaxes(-1, -2) - cross @ solved.swapaxes(-1, -2)
    error = error + solved @ among @ solved.swapaxes(-1, -2)
    whiten = [_inverse_root(covariance) for covariance in judged[0]]
    count = sum(w.shape[1] for w in whiten)
    unexplained = sum(np.trace(w.T @ covariance @ w) for covariance, w in zip(error, whiten, strict=True)) / max(
        count, 1
    )
    return max(float(unexplained), 0.0)
