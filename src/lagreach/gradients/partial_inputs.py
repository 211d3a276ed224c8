"""What is left of an input once its neighbours in time are known.

Exchanging the inputs of two sequences at one step tells lags apart only if that input says nothing about the others. Where
inputs follow each other, only the part that the neighbours do not predict is exchanged, and the predicted part stays: the
dependence that is then found is a *partial* one, on this input given the rest.

Everything is about the difference d of two partners. What both share, such as a calendar, drops out of it, and its
autocovariance is twice that of one sequence. Neighbours after the anchor t are never used: they may be what is forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.data.autoregression import Autoregression, Covariances, autoregression, steps_before
from lagreach.data.by_position import ByPosition, better_by_position
from lagreach.data.course import CHANGING, EXACT, MISLED, RELATED
from lagreach.data.course import DETERMINED as EXACTLY
from lagreach.errors import InputError
from lagreach.gradients.contrast import anchor_shares
from lagreach.gradients.measurement_plan import MeasurementPlan, PairBatch
from lagreach.gradients.step_inputs import step_input
from lagreach.transport.objective import valid_steps

ORDERS = (1, 2, 4, 8, 16, 32, 64)  # distances up to which inputs are tested together
JOINT_INPUTS = 32  # inputs up to which each is predicted from all of them; where there are more, from itself alone
SURE = 0.01  # how rarely independent inputs are taken for correlated
DETERMINED = 1e-6  # share of the variance below which nothing is left that could be exchanged
RIDGE = 1e-9  # of the variance, against inputs that repeat each other
MOST_WHOLE = 512  # inputs of a sequence, up to which all their covariances are kept,
FOR_EACH = 1.5  # and pairs for each of them, from which these tell how inputs follow from each other
LOUDER = 0.2  # excess of products of neighbours' squares over those of Gaussian inputs, beyond chance
TOKENS = (
    "tokens that follow each other stand here as numbers, of which neighbours say more than an average: "
    + MISLED
    + '; lags_of="model" exchanges tokens as they are'
)
LOUD = (
    "inputs that follow from each other are large together more often than steady ones would be (zeros for missing values, "
    "sequences of different loudness, rare large values), and so is what is left of them: "
    + MISLED
    + "; carry the last value on instead of zeros, or give every sequence one scale"
)


@dataclass(frozen=True)
class InputMoments:
    """How inputs differ between partners, by block.

    `products` (block, h, group, c, c) are sums of ``d_t d_{t-h}^T`` over pairs and steps, and `steps` (block, h) count them.
    All inputs make one group, or each of them a group of its own where there are many. `told` (block, band) says whether
    there is an anchor at all whose inputs at the band's lags differ, `shared` (block, input) which inputs change over time but
    not between partners. `whole` (part, n, n) are sums of ``d d^T`` of whole sequences, time and input, input fastest, of each
    part that was measured by itself; n is zero unless these are equally long and not too long. `near` (part, 5, input) are sums
    over neighbouring steps, see `WholeProducts`.
    """

    block: np.ndarray
    steps: np.ndarray
    products: np.ndarray
    told: np.ndarray
    shared: np.ndarray
    whole: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 0)))
    near: np.ndarray = field(default_factory=lambda: np.zeros((1, 5, 0)))

    @classmethod
    def merge(cls, parts: Iterable[InputMoments]) -> InputMoments:
        """Put the blocks of several parts together, in the order of their numbers."""
        listed = list(parts)
        block = np.concatenate([part.block for part in listed])
        if len(set(block.tolist())) != len(block):
            raise InputError("two parts hold the same block", got=sorted(block.tolist()), fix="merge every part once")
        order = np.argsort(block)
        names = ("steps", "products", "told", "shared")
        by_block = {name: np.concatenate([getattr(part, name) for part in listed])[order] for name in names}
        alike = len({part.whole.shape[1:] for part in listed}) == 1
        whole = np.concatenate([part.whole for part in listed]) if alike else np.zeros((1, 0, 0))
        near = np.concatenate([part.near for part in listed])
        return cls(block[order], **by_block, whole=whole, near=near)

    def covariances(self) -> Covariances:
        """Autocovariances of the differences."""
        return self.products.sum(0) / np.maximum(self.steps.sum(0)[:, None, None, None], 1)

    def whole_covariance(self) -> tuple[Float[np.ndarray, "n n"], int] | None:
        """Covariance of whole sequences and the number of pairs; None if it is not known, or of too few."""
        n, inputs = self.whole.shape[-1], self.products.shape[-1]
        if not n:
            return None
        pairs = round(float(self.steps[:, 0].sum()) * inputs / n)
        return (self.whole.sum(0) / pairs, pairs) if pairs >= FOR_EACH * n else None

    def loud(self) -> bool:
        """Whether neighbours are large together more often than Gaussian inputs with these covariances, beyond chance."""
        squares, now, before, both, count = self.near.sum(0)
        related = both**2 > RELATED**2 * now * before
        with np.errstate(divide="ignore", invalid="ignore"):
            apart, together = now * before / count, both**2 / count
        pairs = count / max(self.steps.shape[1] - 1, 1)
        n, inputs = self.whole.shape[-1], len(squares)
        if n:  # then what changes in the course of sequences is known
            pairs = np.full(inputs, self.steps[:, 0].sum() * inputs / n)
            steps, of = np.arange(1, n // inputs), np.arange(inputs)
            covariance = (self.whole.sum(0) / pairs[0]).reshape(n // inputs, inputs, n // inputs, inputs)
            variance = covariance[:, of, :, of][:, np.arange(n // inputs), np.arange(n // inputs)]  # (input, step)
            apart = pairs * (variance[:, 1:] * variance[:, :-1]).sum(1)
            together = pairs * (covariance[:, of, :, of][:, steps, steps - 1] ** 2).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = (squares - apart - 2 * together) / apart
        return bool((excess > LOUDER + 1.5 / np.sqrt(np.maximum(pairs, 1)))[related].any())


class WholeProducts:
    """Sums of products of whole sequences' inputs, while they come in; none once one is shorter than others.

    Besides, over neighbouring steps, ``d_t^2 d_{t-1}^2``, ``d_t^2``, ``d_{t-1}^2``, ``d_t d_{t-1}`` and one, for every input.
    """

    def __init__(self) -> None:
        self._sums: np.ndarray | None = None
        self._near: np.ndarray | None = None
        self._fits = True

    def add(self, difference: Float[Tensor, "pair time input"], valid: Tensor) -> None:
        """Take in some pairs; `valid` (pair, time) says which steps both partners have. Of very many inputs nothing is kept."""
        if difference.shape[2] > JOINT_INPUTS:
            return
        rows, both = difference.flatten(1), (valid[:, 1:] & valid[:, :-1])[..., None]
        now, before = (torch.where(both, part.double(), 0.0) for part in (difference[:, 1:], difference[:, :-1]))
        parts = (
            now.square() * before.square(),
            now.square(),
            before.square(),
            now * before,
            both.expand_as(now).double(),
        )
        near = torch.stack([part.sum((0, 1)) for part in parts]).cpu().numpy()
        self._near = near if self._near is None else self._near + near
        n = rows.shape[1]
        self._fits = (
            self._fits and n <= MOST_WHOLE and bool(valid.all()) and (self._sums is None or len(self._sums) == n)
        )
        if self._fits:
            products = (rows.double().T @ rows.double()).cpu().numpy()
            self._sums = products if self._sums is None else self._sums + products

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """`InputMoments.whole` and `near`, as one part."""
        whole = self._sums[None] if self._fits and self._sums is not None else np.zeros((1, 0, 0))
        return whole, np.zeros((1, 5, 0)) if self._near is None else self._near[None]


class InputSums:
    """Differences of the inputs of some blocks while they are summed."""

    def __init__(self, plan: MeasurementPlan, numbers: list[int]) -> None:
        self._numbers, self._edges = numbers, plan.bands.edges
        self._row_of = {number: row for row, number in enumerate(numbers)}
        self._told = np.zeros((len(numbers), len(plan.bands)), dtype=bool)
        self._whole = WholeProducts()
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
        self._whole.add(difference, valid)
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
        numbers = np.array(self._numbers)
        return InputMoments(numbers, steps, products, self._told, change & ~apart, *self._whole.result())


def _compared(differs: Tensor, anchors: Tensor, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each band, whether some anchor's input at one of its lags differs between partners."""
    time = differs.shape[1]
    return np.array(
        [
            any(bool((differs[:, : time - lag] & anchors[:, lag:]).any()) for lag in range(first, last + 1))
            for first, last in edges
        ]
    )


def neighbour_products(
    difference: Float[Tensor, "pair time input"], valid: Tensor
) -> tuple[Float[np.ndarray, "h"], Covariances]:
    """Numbers of steps and sums of products over some pairs; `valid` (pair, time) says which steps both partners have."""
    time, inputs = difference.shape[1:]
    kept = torch.where(valid[..., None], difference.double(), 0.0)
    kept = kept[:, :, None] if inputs <= JOINT_INPUTS else kept[..., None]
    # groups and time first: a few steps later or earlier is then one piece of memory
    kept = kept.permute(2, 1, 0, 3).contiguous()
    distances = range(1 + steps_before(time, kept.shape[3]))
    products = [kept[:, h:].flatten(1, 2).mT @ kept[:, : time - h].flatten(1, 2) for h in distances]
    steps = [valid[:, h:].sum() for h in distances]
    return torch.stack(steps).double().cpu().numpy(), torch.stack(products).cpu().numpy()


@dataclass(frozen=True)
class Neighbours:
    """Linear prediction of an input (a difference of inputs) from all before it and those up to the anchor behind it."""

    model: Autoregression | ByPosition
    covariance: Float[np.ndarray, "group c c"]

    @property
    def order(self) -> int:
        """Inputs behind one that say something about it, at most."""
        return self.model.order

    @cached_property
    def left(self) -> float:
        """Share of the variance that the neighbours on both sides leave unexplained, averaged over directions."""
        return float(self.shares.mean()) if len(self.shares) else 0.0

    @cached_property
    def shares(self) -> Float[np.ndarray, "direction"]:
        """The same along each direction of the inputs."""
        whiten = [_inverse_root(covariance) for covariance in self.covariance]
        pairs = zip(self.model.left, whiten, strict=True)
        return np.concatenate([np.linalg.eigvalsh(w.T @ left @ w) for left, w in pairs])

    def unpredicted(self, difference: Float[Tensor, "row time input"], after: int) -> Float[Tensor, "row time input"]:
        """What the neighbours before and at most `after` behind leave of each input, in float64.

        The first inputs have fewer neighbours before them. Of the last `after` inputs nothing is said.
        """
        parts = difference.double().unflatten(-1, (self.covariance.shape[0], -1))
        return self.model.unpredicted(parts, after).flatten(-2)


def fit_neighbours(moments: InputMoments) -> Neighbours | None:
    """Find how inputs follow from those before; None if they do not, beyond what independent inputs show by chance."""
    whole, steps = moments.covariances(), moments.steps.sum(0)
    orders = [order for order in ORDERS if order < len(whole)]
    if not orders or not _correlated(whole, steps, orders):
        return None
    fitted, sequences = autoregression(whole, steps, RIDGE), moments.whole_covariance()
    model: Autoregression | ByPosition = fitted
    if sequences is not None and better_by_position(fitted, Neighbours(fitted, whole[0]).left, *sequences, RIDGE):
        model = ByPosition.of(sequences[0], whole.shape[-1], RIDGE)
    return Neighbours(model, whole[0]) if model.order else None


def misleading(
    moments: InputMoments, neighbours: Neighbours | None, change: float, tokens: bool = False
) -> tuple[str, ...]:
    """Say why lags may be named that only other inputs pass on; `change` is that of `lagreach.data.course`."""
    if neighbours is None:
        return ()
    changing = change > 1 and not isinstance(neighbours.model, ByPosition)
    notes = (
        (TOKENS, tokens),
        (CHANGING.format(change), changing),
        (LOUD, moments.loud()),
        (EXACTLY, neighbours.shares.min(initial=1.0) < EXACT),
    )
    return tuple(note for note, true in notes if true)


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
