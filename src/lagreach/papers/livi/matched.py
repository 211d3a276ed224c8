"""The paper's matched statistic (28): first-order evidence of a lag, summed over units that are turned the same way.

With ``zeta_q(t, l) = delta_{t,q} (B_{t-l} w)_q`` for a direction w of the weights, ``m_q(l)`` the mean of zeta_q and mu the
effective learning rates, a sequence's statistic is ``T_n(l) = sum_q sgn(m_q(l)) sum_t mu_q(t, l) zeta_q(t, l)``.

The signs must come from other sequences than the ones they are applied to: turned by their own mean, all units
agree by construction, and noise alone looks like a signal (the same data give a one-sided test of size near one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach._util.generators import seeded
from lagreach.adapters import Recurrence, View
from lagreach.adapters.folded import FoldedView
from lagreach.cells import Factors
from lagreach.data.lags import check_lags
from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.contrast import signal_gradient
from lagreach.gradients.measurement_plan import select
from lagreach.gradients.selection import Selection, select_params
from lagreach.transport.dual import windows
from lagreach.transport.first_order import EffectiveRates, effective_rates, mean_rates
from lagreach.transport.first_order_sums import LagSums, groups, steps_of
from lagreach.transport.losses import Loss
from lagreach.transport.objective import valid_steps
from lagreach.transport.prepare import Prepared, prepare
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import times_power_of_two
from lagreach.transport.sensitivity import complete_direction, immediate_sensitivity
from lagreach.types import Status

ORIENTATIONS = ("split", "none", "same-data")
LIMIT_BYTES = 2**30


@dataclass(frozen=True)
class MatchedStatistic:
    """One value per sequence (or pair of sequences) and lag, and how the units were turned.

    `values` belong to the sequences `used`; with ``signal="dependence"`` sequences come in pairs 2i, 2i + 1 and `used`
    numbers the pairs. `alignment` holds the means ``m_q(l)`` whose signs turn the units, from the other sequences when
    ``orientation="split"``.
    """

    lags: tuple[int, ...]
    values: Float[np.ndarray, "seq lag"]
    used: Int[np.ndarray, "seq"]
    alignment: Float[np.ndarray, "lag unit"]
    orientation: str
    signal: str
    status: Status

    @property
    def mean(self) -> Float[np.ndarray, "lag"]:
        """Mean over sequences: an estimate of ``E T(l)``, (29)."""
        return self.values.mean(0)

    @property
    def standard_error(self) -> Float[np.ndarray, "lag"]:
        """Of the mean, over sequences."""
        return self.values.std(0, ddof=1) / np.sqrt(len(self.values))

    def __str__(self) -> str:
        head = f"matched statistic (28) of {len(self.values)} values, orientation={self.orientation!r}: {self.status}"
        rows = zip(self.lags, self.mean, self.standard_error, strict=True)
        return "\n".join(
            [head, "   lag        mean       error", *[f"{lag:6d} {m:11.4g} {e:11.4g}" for lag, m, e in rows]]
        )


def matched_statistic(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    y: Tensor,
    lags: Iterable[int],
    loss: Loss = "mse",
    *,
    orientation: str = "split",
    signal: str = "dependence",
    params: Selection = "input",
    direction: Mapping[str, Tensor] | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    steps: str | Sequence[int] | Tensor | None = None,
    generator: torch.Generator | int = 0,
    chunk: int | None = None,
) -> MatchedStatistic:
    """Measure the first-order matched statistic of every sequence at the given lags.

    Parameters
    ----------
    orientation
        "split": signs from a random half of the sequences, values of the other half. "none": all units as they are, so
        that the sum is the first-order lag gradient along w. "same-data": signs from the sequences they are applied to,
        as the paper's scripts do; biased, and said so in `status`.
    signal
        "dependence": neighbouring sequences swap targets, one value per pair; independent targets then give a symmetric
        statistic. "gradient": the loss gradient itself, one value per sequence.
    params, direction
        The direction w in weight space; drawn at random over the selected weights, of length one, if not given.
    generator
        Where the random direction and the random half come from, or its seed.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> g = torch.Generator().manual_seed(0)
    >>> model = GatedRNN("diag_gate", 2, 3, 1, gate_init=0.2, generator=g)
    >>> x = torch.randn(80, 20, 2, generator=g)
    >>> y = torch.zeros(80, 20, 1)
    >>> y[:, 3:] = x[:, :-3, :1]
    >>> statistic = matched_statistic(model, x, y, lags=[1, 3, 5])
    >>> statistic.values.shape, int(statistic.lags[abs(statistic.mean / statistic.standard_error).argmax()])
    ((20, 3), 3)
    """
    return _measured(
        _Asked(orientation, signal, params, direction, generator, chunk),
        prepare(model, x, y, mask=mask, lengths=lengths).by_sequence(),
        lags,
        loss,
        steps,
    )[0]


def rates_and_matched_statistic(
    model: nn.Module | Recurrence | View,
    x: Tensor,
    y: Tensor,
    lags: Iterable[int],
    loss: Loss = "mse",
    *,
    lr: float = 1.0,
    orientation: str = "split",
    signal: str = "dependence",
    params: Selection = "input",
    direction: Mapping[str, Tensor] | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    steps: str | Sequence[int] | Tensor | None = None,
    generator: torch.Generator | int = 0,
    chunk: int | None = None,
) -> tuple[EffectiveRates, MatchedStatistic]:
    """Measure `effective_rates` and `matched_statistic` together: the model runs once and every lag is visited once.

    Parameters are those of the two.

    Examples
    --------
    >>> from lagreach import GatedRNN
    >>> model = GatedRNN("const_gate", 2, 3, 1, gate_init=0.25)
    >>> _ = torch.nn.init.zeros_(model.layers[0]["U_h"])
    >>> rates, matched = rates_and_matched_statistic(model, torch.zeros(8, 9, 2), torch.ones(8, 9, 1), lags=[1, 2])
    >>> rates.envelope, matched.values.shape
    (tensor([2.2500, 1.6875], dtype=torch.float64), (2, 2))
    """
    asked = _Asked(orientation, signal, params, direction, generator, chunk)
    prepared = prepare(model, x, y, mask=mask, lengths=lengths).by_sequence()
    together = lengths is None and not isinstance(prepared.view, FoldedView)
    matched, sums = _measured(asked, prepared, lags, loss, steps, with_rates=together)
    if (
        sums is None
    ):  # anchors beyond a sequence's length count for one of them only, and rates are those of single rows
        return effective_rates(model, x, matched.lags, lr=lr, lengths=lengths, chunk=chunk), matched
    recurrence = prepared.view.template
    valid = valid_steps(None, len(x), prepared.time, recurrence.device)
    first = int(valid.sum()) if matched.lags[0] == 0 else None
    return mean_rates(
        recurrence, [layer_sums.sizes(first) for layer_sums in sums], list(matched.lags), valid, lr=lr
    ), matched


@dataclass(frozen=True)
class _Asked:
    """How the statistic is to be formed."""

    orientation: str
    signal: str
    params: Selection
    direction: Mapping[str, Tensor] | None
    generator: torch.Generator | int
    chunk: int | None

    def __post_init__(self) -> None:
        if self.orientation not in ORIENTATIONS:
            raise InputError("unknown orientation", got=repr(self.orientation), expected=", ".join(ORIENTATIONS))


def _measured(
    asked: _Asked,
    prepared: Prepared,
    lags: Iterable[int],
    loss: Loss,
    steps: str | Sequence[int] | Tensor | None,
    *,
    with_rates: bool = False,
) -> tuple[MatchedStatistic, list[LagSums] | None]:
    """Measure the statistic and, if wanted and possible, the sums behind the rates of every layer."""
    random = seeded(asked.generator)
    recurrence = prepared.view.template
    wanted = check_lags(lags, prepared.time)
    along = _random_direction(recurrence, asked.params, random) if asked.direction is None else asked.direction
    tangent = complete_direction(recurrence, along)
    objective = prepared.objective(loss, steps)
    layers, hidden = len(recurrence.stack.cells), recurrence.stack.hidden_size
    count, units = len(prepared.batch), hidden * layers
    if 16 * count * len(wanted) * units > LIMIT_BYTES:
        raise TooLargeError(
            "the alignments of all units would not fit into 1 GiB",
            got=f"{count} sequences x {len(wanted)} lags x {units} units",
            fix="ask for fewer lags or pass fewer sequences",
        )
    partner = torch.arange(count) ^ 1
    partner[partner == count] = count - 1  # an odd one out has no partner; its contrast is zero and it is dropped
    other = objective.select(partner)
    sums = [LagSums(wanted, hidden, "sizes" if with_rates else "") for _ in range(layers)]
    plain, weighted = (torch.zeros(count, len(wanted), units, dtype=torch.float64) for _ in range(2))
    complete = with_rates
    for rows, part in prepared.parts(asked.chunk):
        delta = signal_gradient(part.recurrence, objective.select(rows), other.select(rows), part.states, asked.signal)
        for group in groups(len(part.x), prepared.time):
            place = slice(rows.start + group.start, rows.start + group.stop)
            alignments = _alignments(select(part, group), delta[group], tangent, wanted, sums)
            plain[place], weighted[place] = alignments.plain.cpu(), alignments.weighted.cpu()
            complete &= alignments.swept
    if asked.signal == "dependence":
        plain, weighted = (v[: count // 2 * 2].unflatten(0, (-1, 2)).mean(1) for v in (plain, weighted))
    statistic = _oriented(wanted, plain.numpy(), weighted.numpy(), asked.orientation, asked.signal, random)
    return statistic, sums if complete else None


def _random_direction(recurrence: Recurrence, params: Selection, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw a Gaussian direction of length one over the selected weights."""
    names = select_params(recurrence, params)
    drawn = {
        name: torch.randn(recurrence.params[name].shape, generator=generator, dtype=torch.float64) for name in names
    }
    length = torch.stack([part.square().sum() for part in drawn.values()]).sum().sqrt()
    return {name: part / length for name, part in drawn.items()}


class _Alignments(NamedTuple):
    """Sums over anchors of ``zeta_q`` and of ``mu_q zeta_q`` (seq, lag, unit), and whether the compiled sweep made them."""

    plain: Tensor
    weighted: Tensor
    swept: bool


def _alignments(
    part: Rollout, delta: Tensor, direction: dict[str, Tensor], lags: list[int], sums: list[LagSums]
) -> _Alignments:
    """Sum over anchors, layers side by side; what the sweep adds up over sequences goes to `sums`.

    The loss gradient acts on a cell's output and the weights on the block that retains: h and c of an LSTM. At lag
    0 nothing is carried and every block meets itself.
    """
    stack = part.recurrence.stack
    layers = list(stack.layers(part.x, part.previous, part.states, part.recurrence.params))
    alone = len(layers) == 1  # upper layers also see their inputs move
    known = [steps_of(layer, stack.layer_params(0, direction) if alone else None) for layer in layers]
    moved = known[0][1]
    if moved is None:
        moved = immediate_sensitivity(part, direction)
    by_layer = []
    rows = zip(layers, known, sums, stack.split(delta), stack.split(moved), strict=True)
    for layer, (factors, _), own_sums, gradient, move in rows:
        seen, held = layer.cell.output(gradient), layer.cell.block(move, layer.cell.rate_block)
        fused = own_sums.add(factors, delta=seen, moved=held)
        if fused is not None:
            plain, weighted = torch.from_numpy(fused)
        else:
            plain, weighted = _plain_alignments(factors, seen.double(), held.double(), [lag for lag in lags if lag > 0])
        if lags[0] == 0:
            both = (gradient.double() * move.double()).unflatten(-1, (len(layer.cell.blocks), -1))
            start = both.sum((1, -2))[:, None]
            plain, weighted = torch.cat((start, plain), 1), torch.cat((start, weighted), 1)
        by_layer.append(_Alignments(plain, weighted, fused is not None))
    return _Alignments(
        torch.cat([v.plain for v in by_layer], -1),
        torch.cat([v.weighted for v in by_layer], -1),
        all(v.swept for v in by_layer),
    )


def _plain_alignments(factors: Factors, seen: Tensor, held: Tensor, lags: list[int]) -> tuple[Tensor, Tensor]:
    """Sum lag by lag, without the compiled sweep."""
    plain, weighted = (seen.new_zeros(len(seen), len(lags), seen.shape[2]) for _ in range(2))
    for i, window in enumerate(windows(factors, lags)):
        zeta = seen[:, window.lag :] * held[:, : window.real.shape[1]]
        rate = window.rate()
        rate = rate if window.exponent is None else times_power_of_two(rate, window.exponent)
        plain[:, i], weighted[:, i] = zeta.sum(1), (rate * zeta).sum(1)
    return plain, weighted


def _oriented(
    lags: list[int],
    plain: np.ndarray,
    weighted: np.ndarray,
    orientation: str,
    signal: str,
    generator: torch.Generator,
) -> MatchedStatistic:
    """Turn the units by the signs of their mean alignment and add them up."""
    used = np.arange(len(plain))
    others = used
    if orientation == "split":
        if len(plain) < 4:
            raise InputError("a split needs at least four values", got=f"{len(plain)}", fix="pass more sequences")
        mixed = torch.randperm(len(plain), generator=generator).numpy()
        others, used = np.sort(mixed[: len(plain) // 2]), np.sort(mixed[len(plain) // 2 :])
    alignment = plain[others].mean(0)
    signs = np.ones_like(alignment) if orientation == "none" else np.sign(alignment)
    return MatchedStatistic(
        lags=tuple(lags),
        values=(weighted[used] * signs).sum(-1),
        used=used,
        alignment=alignment,
        orientation=orientation,
        signal=signal,
        status=Status.ORIENTED_BY_ITSELF if orientation == "same-data" else Status.OK,
    )
