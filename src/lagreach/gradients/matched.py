"""The paper's matched statistic (28): first-order evidence of a lag, summed over units that are turned the same way.

With ``zeta_q(t, l) = delta_{t,q} (B_{t-l} w)_q`` for a direction w of the weights, ``m_q(l)`` the mean of zeta_q and mu the
effective learning rates, a sequence's statistic is ``T_n(l) = sum_q sgn(m_q(l)) sum_t mu_q(t, l) zeta_q(t, l)``.

The signs must come from other sequences than the ones they are applied to: turned by their own mean, all units
agree by construction, and noise alone looks like a signal (the same data give a one-sided test of size near one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach.adapters import Recurrence, View
from lagreach.cells.stack import Layer
from lagreach.errors import InputError, TooLargeError
from lagreach.gradients.contrast import signal_gradient
from lagreach.gradients.selection import Selection, select_params
from lagreach.gradients.task import select
from lagreach.transport.binding import open_data
from lagreach.transport.first_order import first_order_windows
from lagreach.transport.first_order_sums import groups, matched_sums
from lagreach.transport.lags import check_lags
from lagreach.transport.objective import Loss
from lagreach.transport.rollout import Rollout
from lagreach.transport.scaled import times_power_of_two
from lagreach.transport.sensitivity import immediate_sensitivity
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
    >>> found = matched_statistic(model, x, y, lags=[1, 3, 5])
    >>> found.values.shape, int(found.lags[abs(found.mean / found.standard_error).argmax()])
    ((20, 3), 3)
    """
    if orientation not in ORIENTATIONS:
        raise InputError("unknown orientation", got=repr(orientation), expected=", ".join(ORIENTATIONS))
    random = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
    opened = open_data(model, x, y, mask=mask, lengths=lengths)
    recurrence = opened.view.template
    wanted = check_lags(lags, opened.time)
    along = _random_direction(recurrence, params, random) if direction is None else direction
    objective = opened.objective(loss, steps)
    count, units = len(opened.batch), recurrence.stack.hidden_size * len(recurrence.stack.cells)
    if 16 * count * len(wanted) * units > LIMIT_BYTES:
        raise TooLargeError(
            "the alignments of all units would not fit into 1 GiB",
            got=f"{count} sequences x {len(wanted)} lags x {units} units",
            fix="ask for fewer lags or pass fewer sequences",
        )
    partner = torch.arange(count) ^ 1
    partner[partner == count] = count - 1  # an odd one out has no partner; its contrast is zero and it is dropped
    other = objective.select(partner)
    plain, weighted = (torch.zeros(count, len(wanted), units, dtype=torch.float64) for _ in range(2))
    for rows, part in opened.parts(chunk):
        delta = signal_gradient(part.recurrence, objective.select(rows), other.select(rows), part.states, signal)
        for own in groups(len(part.x), opened.time):
            few, place = select(part, own), slice(rows.start + own.start, rows.start + own.stop)
            moved = immediate_sensitivity(few, along)
            plain[place], weighted[place] = (v.cpu() for v in _alignments(few, delta[own], moved, wanted))
    if signal == "dependence":
        plain, weighted = (v[: count // 2 * 2].unflatten(0, (-1, 2)).mean(1) for v in (plain, weighted))
    return _oriented(wanted, plain.numpy(), weighted.numpy(), orientation, signal, random)


def _random_direction(recurrence: Recurrence, params: Selection, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw a Gaussian direction of length one over the selected weights."""
    names = select_params(recurrence, params)
    drawn = {
        name: torch.randn(recurrence.params[name].shape, generator=generator, dtype=torch.float64) for name in names
    }
    length = torch.stack([part.square().sum() for part in drawn.values()]).sum().sqrt()
    return {name: part / length for name, part in drawn.items()}


def _alignments(part: Rollout, delta: Tensor, moved: Tensor, lags: list[int]) -> tuple[Tensor, Tensor]:
    """Sums over anchors of ``zeta_q`` and of ``mu_q zeta_q`` (seq, lag, unit), layers side by side.

    The loss gradient acts on a cell's output and the weights on the block that retains: h and c of an LSTM. At lag
    0 nothing is carried and every block meets itself.
    """
    recurrence = part.recurrence
    stack = recurrence.stack
    layers = stack.layers(part.x, part.previous, part.states, recurrence.params)
    found = []
    for layer, own, move in zip(layers, stack.split(delta.double()), stack.split(moved.double()), strict=True):
        plain, weighted = _layer_alignments(layer, own, move, [lag for lag in lags if lag > 0])
        if lags[0] == 0:
            start = (own * move).unflatten(-1, (len(layer.cell.blocks), -1)).sum((1, -2))[:, None]
            plain, weighted = torch.cat((start, plain), 1), torch.cat((start, weighted), 1)
        found.append((plain, weighted))
    return torch.cat([plain for plain, _ in found], -1), torch.cat([weighted for _, weighted in found], -1)


def _layer_alignments(layer: Layer, own: Tensor, move: Tensor, lags: list[int]) -> tuple[Tensor, Tensor]:
    """Do the same for one layer, at positive lags."""
    seen, held = layer.cell.output(own), layer.cell.block(move, layer.cell.rate_block)
    fused = matched_sums(layer, seen, held, lags)
    if fused is not None:
        return fused
    plain, weighted = (seen.new_zeros(len(seen), len(lags), seen.shape[2]) for _ in range(2))
    for i, window in enumerate(first_order_windows(layer, lags)):
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
