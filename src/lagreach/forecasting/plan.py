"""What is fixed before a forecast looks at the model: blocks of sequences, lags, planted inputs, and anchors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach.adapters.view import check_inputs
from lagreach.data.autoregression import Autoregression, steps_before
from lagreach.data.bands import make_bands
from lagreach.data.batch import Batch, known_lengths, zero_beyond
from lagreach.data.by_position import ByPosition
from lagreach.data.course import CHANGING, DETERMINED, EXACT
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import Sequences, lend
from lagreach.data.shared_inputs import shared_columns, shared_lags
from lagreach.data.survey import Survey, survey
from lagreach.data.targets import check_time_axis
from lagreach.errors import InputError
from lagreach.forecasting.single_inputs import LaggedCovariances, SingleInputs, WholeCovariance
from lagreach.gradients.input_spread import InputSpread
from lagreach.statistics.linear_share import anchor_chance
from lagreach.statistics.memory import Autocorrelation
from lagreach.transport.objective import valid_steps

BLOCKS = 16
PROBES = 4  # directions of the input that dependencies are planted along
CODES = 8  # random numbers that stand for a token
WIDEST = 512  # inputs; of more, as many random combinations are looked at
READ_VALUES = 2**22  # numbers read at a time
EVERY_LAG = 256  # lags below this are all looked at: one more costs next to nothing
MOST_TOGETHER = 64  # directions, up to which each input is told from all others
MANY = (
    "inputs follow from each other, and are more than the {} directions up to which each is told from all others: a few "
    "combinations of them are looked at by themselves, and lags beside a true one may be named"
)
LOOKED_AT = 256  # sequences that tell whether inputs depend on earlier ones; how they do, all tell


@dataclass(frozen=True)
class InputCoding:
    """How inputs become planted values: numbers as they are, tokens by random codes; then whitened, along random directions.

    `table` holds the codes of tokens (token, code), or combinations of very many inputs (input, code), or is None. `mean` is that
    of every step where sequences share something (a calendar, a stimulus): it would pass for a dependence wherever targets have a
    course of their own. `covariance` is that of what is left. `following` says how inputs follow from those before, where they
    do: along all directions, the planted ones first and those `beside` them behind, since what one input alone holds depends on
    all others.
    """

    tokens: bool
    table: Tensor | None
    mean: Float[Tensor, "time code"]
    covariance: Float[Tensor, "code code"]
    project: Float[Tensor, "code probe"]
    following: Autoregression | ByPosition | None = None
    beside: Float[Tensor, "code rest"] | None = None

    @property
    def singled(self) -> bool:
        """Whether values are followed by what each input alone holds."""
        return self.following is not None

    @cached_property
    def _every(self) -> Float[Tensor, "code direction"]:
        return self.project if self.beside is None else torch.cat((self.project, self.beside), dim=1)

    @cached_property
    def _offset(self) -> Float[Tensor, "direction time"]:
        return (self.mean @ self._every).T.contiguous()

    def planted(self, batch: Batch, device: torch.device | str = "cpu") -> Float[Tensor, "seq time probe"]:
        """Values of mean zero and variance one along each probe, zero beyond the end of a sequence; made on a device.

        Where inputs follow from each other, behind them what each input alone holds.
        """
        return self.planted_and_single(batch, device)[0]

    def planted_and_single(
        self, batch: Batch, device: torch.device | str = "cpu"
    ) -> tuple[Float[Tensor, "seq time probe"], SingleInputs | None]:
        """The same, and what each input alone holds up to any anchor; None where inputs do not follow from each other."""
        values = _coded(batch, self.tokens, self.table, device)
        offset = self._offset[:, : values.shape[1]].to(values)
        # steps of a direction side by side: what follows reads them along time
        whole = _series(values, self._every.to(values), offset).movedim(0, 2)
        lengths = known_lengths(batch)
        if lengths is None and self.following is None:
            return whole, None
        inside = valid_steps(lengths, len(batch), values.shape[1], values.device)
        whole = torch.where(inside[..., None], whole, 0.0)
        if self.following is None:
            return whole, None
        probes = self.project.shape[1]
        single = SingleInputs.of(self.following, whole, inside, probes)
        return torch.cat((whole[..., :probes], single.up_to().to(whole)), dim=2), single


def _series(
    values: Float[Tensor, "seq time code"], directions: Float[Tensor, "code probe"], mean: Float[Tensor, "probe time"]
) -> Float[Tensor, "probe seq time"]:
    """Values in some directions along time, less their means."""
    along = directions.T @ values.flatten(0, 1).T  # one product, which leaves each direction in one piece
    return along.unflatten(1, values.shape[:2]).sub_(mean[:, None])


def _coded(
    batch: Batch, tokens: bool, table: Tensor | None, device: torch.device | str = "cpu"
) -> Float[Tensor, "seq time code"]:
    x = batch.x.detach().to(device)
    x = x.reshape(*x.shape[:2], -1)
    if table is None:
        return x
    table = table.to(device)
    return table[x.long()].flatten(2) if tokens else x.to(table) @ table  # bytes would be taken for a mask


@dataclass(frozen=True)
class ForecastPlan:
    """Which sequences are looked at, in which block each counts, and which lags are asked about.

    `order` are numbers of sequences, `rank` their places in an order that comes from their contents alone, so that batches,
    shards and the order of the data do not matter.
    """

    sequences: Sequences
    order: np.ndarray
    rank: np.ndarray
    block: np.ndarray
    lags: tuple[int, ...]
    coding: InputCoding
    time: int
    seed: int
    total: int  # sequences, of which a part or a shard may be looked at
    # (lag,): whether sequences can tell what hangs on it
    told: np.ndarray = field(default_factory=lambda: np.ones(0, dtype=bool))
    notes: tuple[str, ...] = ()  # what was seen in the data
    change: float = 1.0  # times that inputs vary more in one part of the sequences than in another
    seen: Survey | None = None  # of all sequences

    def __len__(self) -> int:
        return len(self.order)

    def _at(self, index: np.ndarray) -> ForecastPlan:
        return replace(self, order=self.order[index], rank=self.rank[index], block=self.block[index])

    def only(self, most: int) -> ForecastPlan:
        """Keep about this many sequences, the same part of every block."""
        count = len(self)
        return self if most >= count else self._at(np.arange(most) * count // most)

    def shard(self, number: int, of: int) -> ForecastPlan:
        """Return one part of the sequences; all parts together are all of them."""
        return self._at(np.arange(number, len(self), of))

    def sample(self) -> Batch:
        """Two sequences to look at a model with."""
        return zero_beyond(self.sequences.read(self.order[:2].tolist()))

    def batches(self, size: int, *, lent: bool = False) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Sequences, their blocks, and random numbers that choose their anchors.

        They come in the order in which they lie; `lent` ones may be the user's own, which nobody may write into.
        """
        for start in range(0, len(self), size):
            chosen = start + np.argsort(self.order[start : start + size])
            numbers = self.order[chosen].tolist()
            batch = zero_beyond(lend(self.sequences, numbers) if lent else self.sequences.read(numbers))
            yield batch, torch.from_numpy(self.block[chosen].copy()), anchor_chance(self.seed, self.rank[chosen])


def make_plan(sequences: Sequences, lags: str | Iterable[int], seed: int, require: Iterable[int] = ()) -> ForecastPlan:
    """Read the data once, rank and deal the sequences, and fix what is planted."""
    first = sequences.read([0])
    check_time_axis(first)
    if first.x.dtype == torch.bool or first.x.is_complex():
        raise InputError(
            "inputs are numbers or tokens",
            got=str(first.x.dtype),
            expected="a floating type, or whole numbers",
            fix="pass x.float() where they are yes and no, torch.view_as_real(x).flatten(-2) of complex ones",
        )
    seen = survey(sequences)
    dealt = plan_blocks(sequences, BLOCKS, seed, seen=seen)
    order, block = dealt.pairs.ravel(), np.repeat(dealt.blocks, 2)
    generator = torch.Generator().manual_seed(seed)
    tokens = not first.x.is_floating_point()
    size = max(1, READ_VALUES // max(first.x.numel(), 1))
    table = _table(sequences, order, first, tokens, size, generator)
    mean, covariance, differs = _moments(sequences, order, tokens, table, size)
    coding = InputCoding(tokens, table, mean, covariance, _directions(covariance, generator))
    time = len(differs)
    plan = ForecastPlan(
        sequences=sequences,
        order=order,
        rank=np.arange(len(order)),
        block=block,
        lags=tuple(make_bands(lags, time, require, EVERY_LAG).lags),
        coding=coding,
        time=time,
        seed=seed,
        total=len(order),
        change=dealt.change,
        seen=seen,
    )
    # what does not vary between sequences cannot be told from a constant
    told, notes = np.array([bool(differs[: time - lag].any()) for lag in plan.lags]), dealt.notes
    alike = (~differs.any(0)).nonzero().flatten().tolist()
    if shared := [str(lag) for lag, yes in zip(plan.lags, told, strict=True) if not yes]:
        notes = (*notes, shared_lags(", ".join(shared)))
    elif alike:
        notes = (*notes, shared_columns(alike))
    if dealt.untold:
        notes = (*notes, dealt.untold)
    told, coding = told & (not dealt.untold), _following(plan, size)
    if (
        coding.following is not None and np.linalg.eigvalsh(coding.following.left).min() < EXACT
    ):  # directions have variance one
        notes = (*notes, DETERMINED)
    if dealt.change > 1 and not isinstance(coding.following, ByPosition):
        notes = (*notes, CHANGING.format(dealt.change))
    if coding.following is not None and len(_varying(coding.covariance)[0]) > MOST_TOGETHER:
        notes = (*notes, MANY.format(MOST_TOGETHER))
    return replace(plan, coding=coding, told=told, notes=notes)


def _table(
    sequences: Sequences, order: np.ndarray, first: Batch, tokens: bool, size: int, generator: torch.Generator
) -> Tensor | None:
    if tokens:
        largest = 0
        for batch in _read(sequences, order, size):
            if bool((batch.x < 0).any()):
                raise InputError("tokens are counted from 0", got=int(batch.x.min()), expected="0 or more")
            largest = max(largest, int(batch.x.max()))
        return torch.randn(largest + 1, CODES, generator=generator, dtype=torch.float64)
    width = first.x[0, 0].numel()
    if width <= WIDEST:
        return None
    return torch.randn(width, WIDEST // CODES, generator=generator, dtype=torch.float64) / width**0.5


def _read(sequences: Sequences, order: np.ndarray, size: int) -> Iterator[Batch]:
    for start in range(0, len(order), size):
        yield zero_beyond(sequences.read(order[start : start + size].tolist()))


def _moments(
    sequences: Sequences, order: np.ndarray, tokens: bool, table: Tensor | None, size: int
) -> tuple[Float[Tensor, "time code"], Float[Tensor, "code code"], Bool[Tensor, "time input"]]:
    """Mean of the coded inputs at every step, covariance of what is left, and which inputs differ between sequences.

    The mean is the same at every step, unless sequences share something that changes.
    """
    spread, extremes = InputSpread(), Extremes()
    for batch in _read(sequences, order, size):
        check_inputs(batch)
        spread.add(_coded(batch, tokens, table), known_lengths(batch))
        extremes.add(batch)
    return spread.mean.expand(spread.time, -1), spread.covariance, extremes.differ


class Extremes:
    """Smallest and largest input at every step, over the sequences that are that long."""

    def __init__(self) -> None:
        self._low, self._high = torch.zeros(0, 0), torch.zeros(0, 0)

    def add(self, batch: Batch) -> None:
        """Take in some sequences."""
        x = batch.x.detach().cpu().reshape(*batch.x.shape[:2], -1).double()
        inside = valid_steps(batch.lengths, len(x), x.shape[1], x.device)[..., None]
        low, high = (torch.where(inside, sign * x, torch.inf).amin(0) for sign in (1, -1))
        if len(low) > len(self._low):
            missing = low.new_full((len(low) - len(self._low), low.shape[1]), torch.inf)
            self._low, self._high = (
                torch.cat((part.reshape(-1, low.shape[1]), missing)) for part in (self._low, self._high)
            )
        steps = slice(len(low))
        self._low[steps] = torch.minimum(self._low[steps], low)
        self._high[steps] = torch.minimum(self._high[steps], high)

    @property
    def differ(self) -> Bool[Tensor, "time input"]:
        """Whether sequences differ in an input at a step."""
        return -self._high > self._low


def _directions(
    covariance: Float[Tensor, "code code"], generator: torch.Generator, wanted: int = PROBES
) -> Float[Tensor, "code probe"]:
    """Random directions, orthonormal once the input is whitened: all of them where there are few."""
    values, vectors = _varying(covariance)
    if not len(values):
        raise InputError(
            "the inputs do not vary, so nothing can depend on them",
            got="zero variance",
            expected="inputs that differ between sequences or steps",
        )
    # drawn in the space of the inputs: eigenvectors are arbitrary where eigenvalues agree (one-hot inputs, say)
    draws = vectors.T @ torch.randn(len(covariance), wanted, generator=generator, dtype=torch.float64)
    return (vectors / values.sqrt()) @ torch.linalg.qr(draws).Q


def _varying(
    covariance: Float[Tensor, "code code"],
) -> tuple[Float[Tensor, "varying"], Float[Tensor, "code varying"]]:
    """Variances and axes; constant or redundant inputs carry nothing that could be planted."""
    values, vectors = torch.linalg.eigh(covariance)
    keep = values > max(float(values.max()), 0.0) * 1e-10
    return values[keep], vectors[:, keep]


def wide_coding(plan: ForecastPlan, seed: int) -> InputCoding:
    """Values along as many directions of the inputs as there are codes of a token, in the place of the planted ones."""
    size = max(1, READ_VALUES // max(plan.sequences.read([0]).x.numel(), 1))
    coding = plan.coding
    project = _directions(coding.covariance, torch.Generator().manual_seed(seed), CODES)
    wide = replace(plan, coding=replace(coding, project=project, following=None, beside=None))
    return _following(wide, size)


def _following(plan: ForecastPlan, size: int) -> InputCoding:
    """How planted inputs follow from those before, if they do beyond what chance would show.

    All sequences that the dependence is looked for in tell how, and not some: a neighbour's part that is taken off by a little
    too much or too little is a dependence at its lag, which more sequences would show ever more surely.
    """
    coding, probes = plan.coding, plan.coding.project.shape[1]
    related, seen = Autocorrelation(BLOCKS, probes, steps_before(plan.time, probes)), 0
    for values, inside in _values(plan.only(LOOKED_AT), size):
        related.add(values, inside, torch.arange(seen, seen + len(values)) % BLOCKS)
        seen += len(values)
    if not related.detected():
        return coding
    # values and what they alone hold are dealt alike to two directions of the output
    project = coding.project[:, :-1] if probes % 2 and probes > 1 else coding.project
    beside = _beside(coding.covariance, project)
    every = torch.cat((project, beside), dim=1)
    lagged, whole = LaggedCovariances(every.shape[1], plan.time), None
    if WholeCovariance.suits(len(plan), plan.time, every.shape[1]):
        whole = WholeCovariance(every.shape[1], plan.time)
    for values, inside in _values(replace(plan, coding=replace(coding, project=every)), size):
        lagged.add(values, inside)
        whole = whole and whole.add(values, inside)
    model = lagged.autoregression()
    following = model if whole is None else whole.instead_of(model)
    return replace(coding, project=project, beside=beside, following=following)


def _beside(covariance: Float[Tensor, "code code"], project: Float[Tensor, "code probe"]) -> Float[Tensor, "code rest"]:
    """Directions that are left beside some, orthonormal once the input is whitened; none of very many."""
    values, vectors = _varying(covariance)
    if len(values) > MOST_TOGETHER:
        return project[:, :0]
    inside = values.sqrt()[:, None] * (vectors.T @ project)
    rest = torch.linalg.qr(inside, mode="complete").Q[:, project.shape[1] :]
    return (vectors / values.sqrt()) @ rest


def _values(
    plan: ForecastPlan, size: int
) -> Iterator[tuple[Float[Tensor, "seq time probe"], Bool[Tensor, "seq time"]]]:
    """Planted values, and where there are any: they are zero elsewhere."""
    for batch in _read(plan.sequences, plan.order, size):
        values = plan.coding.planted(batch).double()
        inside = valid_steps(known_lengths(batch), len(batch), values.shape[1], values.device)
        yield torch.where(inside[..., None], values, 0.0), inside
