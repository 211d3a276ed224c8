"""Sums over sequences from which the share of a lag that a linear fit recovers follows in closed form.

A fit is linear in features ``phi`` (states, or derivatives of the output along directions of the weights). All that its outcome
depends on are second moments: of the features (S), of the features and the input l steps before (c_l), and the covariance over
sequences of the gradient ``g_n = sum_t w_t phi_t r_t`` with the residual r of the target (Gamma). They are kept by block of
sequences, so that fits can be judged on blocks they have not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.full_precision import full_products
from lagreach.errors import InputError

PIECE = 256  # rows whose products are summed in single precision
SUMS = (
    "sequences", "squares", "means", "cross", "planted", "power", "present", "gradients", "gradient", "residual",
    "concentration", "lagged",
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """What a linear fit sees of some sequences.

    An *anchor* is a step that has a target; `weights` sum to one over the anchors of a sequence. A *row* is a coordinate of the
    output in which the loss is a plain square. Where every output has features and weights of its own, and they are alike (a
    readout), one of them stands for all: there is one row, and a *copy* of the gradient for each output.

    Attributes
    ----------
    block
        Number of the block that each sequence counts in.
    features
        Features at the anchors.
    times
        Step of each anchor.
    planted
        Inputs of mean zero and variance one along the directions of the probes, at every step.
    towards
        Output direction along which an input is planted, for each group of probes.
    gradient
        ``sum_t w_t phi_t r_t`` over all steps, not only the anchors, and behind it the mean residual of every row.
    residual
        Mean square of the residual, summed over outputs.
    concentration
        Sum of the squared weights of all steps: one over their number where they count alike.
    lagged
        For each block among `block`, over all steps that have an input z l steps before: sums of ``w, w z, w r, w z r, w o,
        w z o``, with the residual r and the output o along the probe's output direction.
    """

    block: Int[Tensor, "seq"]
    features: Float[Tensor, "seq anchor row feature"]
    weights: Float[Tensor, "seq anchor"]
    times: Int[Tensor, "seq anchor"]
    planted: Float[Tensor, "seq time probe"]
    towards: Float[Tensor, "seq anchor row group"]
    gradient: Float[Tensor, "seq copy feature_and_row"]
    residual: Float[Tensor, "seq"]
    concentration: Float[Tensor, "seq"]
    lagged: Float[Tensor, "distinct 6 lag probe"]

    def to(self, device: torch.device | str) -> Rows:
        """Return the rows on a device."""
        return Rows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def rows_of_blocks(
    block: Int[Tensor, "seq"], device: torch.device | str = "cpu"
) -> list[tuple[int, slice | Int[Tensor, "row"]]]:
    """Rows of each block, in the order of the blocks; a slice where they stand together, which needs no copy.

    >>> rows_of_blocks(torch.tensor([2, 2, 5]))
    [(2, slice(0, 2, None)), (5, slice(2, 3, None))]
    """
    rows: list[tuple[int, slice | Tensor]] = []
    for number in block.unique().tolist():
        members = (block == number).nonzero()[:, 0]
        first, last = int(members[0]), int(members[-1])
        together = last - first + 1 == len(members)
        rows.append((number, slice(first, last + 1) if together else members.to(device)))
    return rows


class ShareMoments:
    """Sums by block: mergeable, in float64, of a size that does not depend on the number of sequences.

    Parameters
    ----------
    blocks
        Number of blocks.
    features, rows
        Number of features and of output coordinates.
    lags
        Lags that are looked at.
    group
        Group of each probe: which of the output directions in `Rows.towards` it belongs to. Groups take turns: 0, 1, 0, 1.
    copies
        (probe, copy): how much of each copy of the gradient moves the output along the probe's direction.
    singled
        Whether the second half of the probes is what each input of the first half alone holds, where inputs follow from each
        other: u of mean zero with ``E[z_t u_t'] = 1`` that no other input is correlated with.

    Examples
    --------
    >>> moments = ShareMoments(blocks=2, features=3, rows=1, lags=[0, 4], group=(0,), copies=torch.ones(1, 1))
    >>> moments.squares.shape, moments.cross.shape
    (torch.Size([2, 3, 3]), torch.Size([2, 2, 3, 1]))
    """

    def __init__(
        self,
        blocks: int,
        features: int,
        rows: int,
        lags: Sequence[int],
        group: tuple[int, ...],
        copies: Float[Tensor, "probe copy"],
        device: torch.device | str = "cpu",
        singled: bool = False,
    ) -> None:
        self.lags, self.group, self.copies, self.singled = tuple(lags), group, copies.double().cpu(), singled
        lag, probe = len(self.lags), len(group)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(blocks, *sizes, dtype=torch.float64, device=device)

        self.sequences: Tensor = zeros()
        self.squares: Tensor = zeros(features, features)  # sum of w phi phi'
        self.means: Tensor = zeros(rows, features)  # of w phi, by row
        self.cross: Tensor = zeros(features, lag, probe).transpose(
            1, 2
        )  # of w phi z, along the probe's output direction
        self.planted: Tensor = zeros(rows, lag, probe)  # of w z, likewise
        self.power: Tensor = zeros(lag, probe)  # of w z^2
        self.present: Tensor = zeros(lag)  # of w, where there is an input l steps before
        self.gradients: Tensor = zeros(features + rows, features + rows)  # of g g', over copies
        self.gradient: Tensor = zeros(copies.shape[1], features + rows)  # of g
        self.residual: Tensor = zeros()
        self.concentration: Tensor = zeros()
        self.lagged: Tensor = zeros(6, lag, probe)

    @property
    def features(self) -> int:
        """Number of features."""
        return self.squares.shape[1]

    def add(self, rows: Rows) -> None:
        """Add sequences."""
        for place, (block, chosen) in enumerate(rows_of_blocks(rows.block, rows.features.device)):
            self._add(block, rows, chosen)
            self.lagged[block] += rows.lagged[place].double()

    def _add(self, block: int, rows: Rows, chosen: slice | Tensor) -> None:
        """Add sequences of one block.

        Squares are summed in double precision, since fits divide by them. What is only multiplied, features with old inputs,
        is summed about the features' means, some rows at a time in the precision of the inputs.
        """
        phi, weights, towards, gradient = (
            part[chosen].double() for part in (rows.features, rows.weights, rows.towards, rows.gradient)
        )
        weighted = phi * weights[..., None, None]
        self.sequences[block] += len(phi)
        self.squares[block] += weighted.flatten(0, 2).T @ phi.flatten(0, 2)
        self.means[block] += weighted.sum((0, 1))
        self.present[block] += _from_each(rows.times[chosen], weights, self.lags)
        about = phi.mean((0, 1))
        groups = len(set(self.group))
        for group in range(groups):
            probes = slice(group, None, groups)  # groups take turns
            along = towards[..., group]
            pull = along * weights[..., None]  # (seq, anchor, row)
            psi = ((phi - about) * pull[..., None]).sum(2)
            ours = torch.cat((psi, pull), dim=2).flatten(0, 1)
            size = (weights * along.square().sum(2)).flatten()
            for lags, old in _before(rows.planted[chosen][..., probes], rows.times[chosen], self.lags):
                products, power = _products(ours, size, old.flatten(1))
                cross, planted = products.unflatten(1, old.shape[1:]).split((phi.shape[3], phi.shape[2]))
                summed = self.cross[block].transpose(0, 1)[:, lags, probes]
                summed += cross
                for row, mean in enumerate(about):
                    summed.addcmul_(mean[:, None, None], planted[row].double())
                self.planted[block][:, lags, probes] += planted
                self.power[block][lags, probes] += power.unflatten(0, old.shape[1:])
        self.gradients[block] += gradient.flatten(0, 1).T @ gradient.flatten(0, 1)
        self.gradient[block] += gradient.sum(0)
        for name in ("residual", "concentration"):
            getattr(self, name)[block] += getattr(rows, name)[chosen].double().sum(0)

    def merge(self, other: ShareMoments) -> ShareMoments:
        """Add the sums of other sequences, from another shard, say."""
        shapes = [{name: tuple(getattr(part, name).shape) for name in SUMS} for part in (self, other)]
        if (
            shapes[0] != shapes[1]
            or self.lags != other.lags
            or self.group != other.group
            or self.singled != other.singled
        ):
            raise InputError(
                "these sums do not belong to the same fit",
                got=f"{shapes[0]} and {shapes[1]}",
                fix="merge parts of one fit",
            )
        for name in SUMS:
            getattr(self, name).add_(getattr(other, name).to(self.squares.device))
        return self


def _before(
    planted: Float[Tensor, "seq time probe"], times: Int[Tensor, "seq anchor"], lags: Sequence[int]
) -> Iterator[tuple[slice, Float[Tensor, "row lag probe"]]]:
    """Planted inputs l steps before each anchor, zero where there is none: of neighbouring lags, then of the others.

    Backward in time, the inputs before a step stand together: those of neighbouring lags are one piece of memory.
    """
    seq, time, probes = planted.shape
    reach = max(lags) + 1
    backward = planted.new_zeros(seq, time + reach, probes)
    backward[:, :time] = planted.flip(1)
    newest = (torch.arange(seq, device=times.device)[:, None] * (time + reach) + time - 1 - times).flatten()
    together = next((i for i, lag in enumerate(lags) if lag != lags[0] + i), len(lags))
    pieces = backward.as_strided((seq * (time + reach) - together + 1, together * probes), (probes, 1))
    yield slice(together), pieces.index_select(0, newest + lags[0]).unflatten(1, (together, probes))
    if together < len(lags):
        apart = torch.as_tensor(lags[together:], device=newest.device)
        yield slice(together, None), backward.flatten(0, 1)[newest[:, None] + apart]


def _from_each(
    times: Int[Tensor, "seq anchor"], weights: Float[Tensor, "seq anchor"], lags: Sequence[int]
) -> Float[Tensor, "lag"]:
    """Weight of the anchors that have an input l steps before."""
    by_time = weights.new_zeros(int(times.max()) + 1).index_add_(0, times.flatten(), weights.flatten())
    since = by_time.flip(0).cumsum(0).flip(0)
    at = torch.as_tensor(lags, device=times.device)
    return torch.where(at < len(since), since[at.clamp(max=len(since) - 1)], 0.0)


def _products(
    ours: Float[Tensor, "row ours"], size: Float[Tensor, "row"], old: Float[Tensor, "row old"]
) -> tuple[Float[Tensor, "ours old"], Float[Tensor, "old"]]:
    """``sum ours old`` and ``sum size old^2``: in the old inputs' precision over `PIECE` rows, in double beyond them."""
    pieces = [part.split(PIECE) for part in (ours.to(old.dtype), size.to(old.dtype), old)]
    with full_products():
        sums = [(mine.T @ theirs, weight @ theirs.square()) for mine, weight, theirs in zip(*pieces, strict=True)]
    if len(sums) == 1:
        return sums[0]
    products, power = (torch.stack(parts).sum(0, dtype=torch.float64) for parts in zip(*sums, strict=True))
    return products, power
