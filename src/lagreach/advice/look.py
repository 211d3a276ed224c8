"""Forecasts of one model and of its changed copies, on the same data and within one budget."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lagreach.adapters.calling import as_output, default_call, first_call, untouched
from lagreach.advice.changes import (
    CELL,
    HALF,
    SEQUENCES,
    UNITS,
    Change,
    cell_change,
    gates_change,
    is_supported,
    orthogonal_change,
    sequences_change,
    units_change,
)
from lagreach.advice.gates import spread_biases
from lagreach.advice.starts import alike, is_orthogonal, orthogonal_weights, recurrent_layers
from lagreach.data.batch import Batch
from lagreach.data.targets import check_time_axis
from lagreach.errors import InputError
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.result import Forecast
from lagreach.gradients.output_anchors import AT_THE_END
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics.linear_share import AMPLE, Shares
from lagreach.transport.objective import valid_steps

NEARLY = 0.75  # of the largest expected share: from there on, what costs less comes first
ALMOST = 0.97  # the same, where the forecast had promised the lag and training failed
BETTER = 0.1  # more sequences should add so much
MORE_UNITS = 4
MOST_UNITS = 256
LONGER = 5
MOST_SEQUENCES = 100  # times as many sequences are still worth advising,
FEW = (500, 1_000, 2_000, 5_000)  # and these in any case
SMALL_PART = 4  # a look that comes before all others takes one part in so many of the time
LEAST = 0.1  # share of a budget that is handed out, though it is spent


def expecting(change: Change, shares: Shares) -> Change:
    """A change with the share that is expected after it."""
    low, value, high = (float(part[0, 0]) for part in (shares.low, shares.value, shares.high))
    return replace(change, expected=value, low=low, high=high)


class Look:
    """Forecasts of one model and its changed copies on the same data."""

    def __init__(
        self,
        model: nn.Module,
        source: Any,
        sequences: int,
        directions: int | None,
        seed: int,
        options: dict[str, Any],
        wanted: tuple[str, ...],
    ) -> None:
        self.model, self.source, self.sequences, self.seed, self.wanted = model, source, sequences, seed, wanted
        self.begun, self.made = time.perf_counter(), 0
        self.options = {"directions": directions, "seed": seed, **options}
        self.budget = self.options.pop("budget", None)
        batch = source.read([0, 1])
        check_time_axis(batch)
        self.time, self.inputs = batch.x.shape[1], batch.x.shape[-1] if batch.x.is_floating_point() else 0
        self.batch, self.at_end = batch, False

    def __call__(self, model: nn.Module, lag: int) -> Forecast:
        changes = sum(change.kind in self.wanted for change, _ in self._possible(lag))
        made = self._forecast(model, [lag], self.options, 1 + changes)
        self.at_end = made.settings["outputs"] == AT_THE_END
        return made

    def _forecast(self, model: nn.Module, lags: Any, options: dict[str, Any], still: int) -> Forecast:
        """One forecast, within its part of the seconds that are left if `still` so many are to be made."""
        self.made += 1
        if self.budget is not None:
            left = self.budget - (time.perf_counter() - self.begun)
            options = {**options, "budget": max(left, LEAST * self.budget) / still}
        return forecast(model, self.source, (self.sequences,), lags, **options)

    def within_budget(self, base: Forecast) -> Forecast:
        """Say it where forecasts, each in its part of the budget, took longer than all of it."""
        if self.budget is None:
            return base
        taken = time.perf_counter() - self.begun
        kept = tuple(warning for warning in base.warnings if "the budget of" not in warning)  # its part of it
        if taken > self.budget:
            kept += (
                f"the budget of {self.budget:.3g} s is too small: {self.made} forecasts took {taken:.0f} s; fewer kinds of "
                "changes (kinds=) or shorter sequences take less",
            )
        return replace(base, warnings=kept)

    @cached_property
    def outputs(self) -> tuple[int, int]:
        """Positions of the model's outputs and values at each: targets of classes do not tell how many logits there are."""
        call = self.options.get("call") or default_call
        with untouched(self.model), torch.no_grad():
            _, positions, width = as_output(first_call(self.model, self.batch, call), self.batch, self.time).shape
        return positions, width

    def distance(self, base: Forecast, lag: int, optimiser: Any, steps: int | None) -> float | None:
        """How far the weights can move in these steps; None where they are not known."""
        if optimiser is None or steps is None:
            return None
        least = (
            {"directions": 2} if base.settings["readout_frozen"] else {"weights": "readout"}
        )  # what takes least time
        options = {**self.options, **least, "optimiser": optimiser, "steps": steps}
        return float(self._forecast(self.model, [lag], options, SMALL_PART).settings["farthest"])

    def most_in_need(self) -> int:
        """The longest lag in the data that is not expected to be recovered, or else the longest in the data."""
        made = self._forecast(self.model, "auto", self.options, SMALL_PART)
        share = made.in_data.values[:, 0]
        there = [(lag, value) for lag, value in zip(made.lags, share, strict=True) if not math.isnan(value)]
        if not there:
            raise InputError(
                "no lag was found that the targets depend on, so there is none to advise about",
                got=f"{len(self.source)} sequences",
                fix="name the lag that matters: lag=",
            )
        return max([lag for lag, value in there if value < HALF] or [lag for lag, _ in there])

    def share(self, made: Forecast, lag: int, sequences: float | None = None) -> Shares:
        """Share expected without regard to the steps: of the dependence in the data, or of a planted one."""
        return _share(replace(made, within=None), float(self.sequences if sequences is None else sequences))

    def steps_bind(self, lag: int, optimiser: Any, steps: int | None) -> bool:
        """Whether these steps recover less than half of the lag, however many sequences there are."""
        if optimiser is None or steps is None:
            return False
        made = self._forecast(self.model, [lag], {**self.options, "optimiser": optimiser, "steps": steps}, SMALL_PART)
        return float(_share(made, AMPLE).value[0, 0]) < HALF

    def why(self, made: Forecast, lag: int) -> str:
        """What stands in the way."""
        free = replace(made, within=None, available=self.sequences)
        word = str(free.limits.values[0])
        return word if word != "none found" else str(free.limits_if_present.values[0])

    def candidates(
        self, lag: int, base: Forecast, wanted: tuple[str, ...], *, all_of_them: bool, supported: bool
    ) -> list[Change]:
        """Changes that fit the model, from what costs least, each with the forecast after it.

        Unless all are asked for, it ends with the first one good enough that nothing dearer would come before it.
        """
        candidates: list[Change] = []
        possible = [(change, build) for change, build in self._possible(lag) if change.kind in wanted]
        for number, (change, build) in enumerate(possible):
            made = self._forecast(build(), [lag], self._options_for(change), len(possible) - number)
            candidates.append(expecting(change, self.share(made, lag)))
            enough = candidates[-1].expected >= NEARLY and (is_supported(change.kind) or not supported)
            if enough and not all_of_them:
                return candidates
        if SEQUENCES in wanted:
            candidates += self._more_sequences(base, lag)
        return candidates

    def _more_sequences(self, base: Forecast, lag: int) -> list[Change]:
        """As many as the forecast names; where it had promised the lag and training failed, it saw too little noise."""
        now = float(self.share(base, lag).value[0, 0])
        factors = [n for n in (2, 5, 10, 20, 50, MOST_SEQUENCES) if now < HALF or n >= LONGER]
        numbers = [n * self.sequences for n in factors]
        numbers += [n for n in FEW if n > numbers[-1]]
        shares = {number: self.share(base, lag, number) for number in numbers}
        values = {number: float(share.value[0, 0]) for number, share in shares.items()}
        goal = min(max(HALF, now) + BETTER, NEARLY, max(HALF, ALMOST * max(values.values())))
        at = next((number for number, value in values.items() if value >= goal), None)
        return [] if at is None else [expecting(sequences_change(self.sequences, at), shares[at])]

    def _options_for(self, change: Change) -> dict[str, Any]:
        if change.kind not in (UNITS, CELL):
            return self.options
        # such a network is called as model(x), and has an output at every step
        options = {name: value for name, value in self.options.items() if name not in ("call", "outputs")}
        if not self.at_end:
            return options
        return options | {"call": partial(_at_last_step, positions=self.outputs[0]), "outputs": AT_THE_END}

    def _possible(self, lag: int) -> list[tuple[Change, Callable[[], nn.Module]]]:
        """Changes of the network, and how to make a network of each."""
        possible: list[tuple[Change, Callable[[], nn.Module]]] = []
        biases = spread_biases(self.model, lag) if lag > 0 else {}
        if biases:
            change = gates_change(self.model, biases, lag)
            possible.append((change, partial(_written, self.model, change)))
        recurrent = orthogonal_weights(self.model, self.seed)
        if recurrent and not is_orthogonal(self.model, recurrent):
            change = orthogonal_change(self.model, recurrent)
            possible.append((change, partial(_written, self.model, change)))
        layers = recurrent_layers(self.model)
        if len(layers) != 1:
            return possible
        positions, width = self.outputs
        values = positions * width if self.at_end else width
        like = partial(alike, self.model, self.inputs, values, seed=self.seed)
        now = like()
        if now is None:
            return possible
        units = now.hidden_size
        # a state that is asked at every step for an input of l steps ago holds all those in between
        wanted = max(MORE_UNITS * units, 2 ** math.ceil(math.log2(max(2 * lag, 1))))
        factor = min(wanted, MOST_UNITS) // units
        if factor > 1:
            possible.append((units_change(self.model, factor), partial(_built, like, units=units * factor)))
        for cell in ("lstm", "elman") if lag > 0 else ():
            if cell == now.cell.name:
                continue
            possible.append((cell_change(self.model, cell, lag), partial(_built, like, cell=cell, lag=lag)))
            if factor > 1 and units < 2 * lag:
                larger = partial(_built, like, cell=cell, lag=lag, units=units * factor)
                possible.append((cell_change(self.model, cell, lag, factor), larger))
        return possible


def _share(made: Forecast, sequences: float) -> Shares:
    numbers = np.array([sequences])
    in_data = made.curves(numbers, in_data=True)
    return made.curves(numbers, in_data=False) if np.isnan(in_data.value).all() else in_data


def _at_last_step(model: nn.Module, batch: Batch, positions: int = 1) -> Tensor:
    """What a network with an output at every step says at the end of each sequence: for some positions, side by side."""
    output = default_call(model, batch)
    last = valid_steps(batch.lengths, len(batch), output.shape[1], output.device).sum(1) - 1
    return output[torch.arange(len(batch), device=output.device), last].unflatten(1, (positions, -1))


def _written(model: nn.Module, change: Change) -> nn.Module:
    other = copy.deepcopy(model)
    change.apply(other)
    return other


def _built(like: Callable[..., GatedRNN | None], **how: Any) -> nn.Module:
    other = like(**how)
    assert other is not None  # it had a like before
    return other
