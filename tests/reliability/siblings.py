"""The faults of `attack`, reached by other ways in: forecasts, advice, whole models, shards, and training that is watched."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import lagreach
from lagreach.study.executors import LocalExecutor
from lagreach.study.shards import diagnose_sharded
from tests.reliability.attack import Outcome, Reads, delayed, diagnosed

SLOWER = 1.5  # times its budget that a forecast may take,
LEAST = 3.0  # of so many seconds


class Horizon(nn.Module):
    """All steps to come from the last state, with or without an axis for the one output."""

    def __init__(self, axis: bool) -> None:
        super().__init__()
        self.rnn, self.out, self.axis = nn.GRU(1, 12, batch_first=True), nn.Linear(12, 24), axis

    def forward(self, x: Tensor) -> Tensor:
        out = self.out(self.rnn(x)[0][:, -1])
        return out[:, None] if self.axis else out


class Chunked(nn.Module):
    """A layer of torch that is run four steps at a time, its state let go in between."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for part in x.split(4, dim=1):
            out, state = self.rnn(part, None if state is None else state.detach())
            outputs.append(out)
        return self.out(torch.cat(outputs, dim=1))


class Frozen(nn.Module):
    """A layer whose output the other one reads without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRU(2, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.out, self.frozen = nn.Linear(6, 1), True

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)[0]
        return self.out(self.b(first.detach() if self.frozen else first)[0])


def a_shared_column() -> Outcome:
    """A column that all sequences share tells nothing; a forecast must not name its lags."""
    x = torch.randn(1, 24, 2).repeat(256, 1, 1)
    x[..., 1] = torch.randn(256, 24)
    y = torch.randn(1, 24, 1) + 0.5 * torch.randn(256, 24, 1)
    made = lagreach.forecast(lagreach.GatedRNN("lstm", 2, 8, 1), (x, y), lags=[0, 1, 3, 8], progress=False)
    return "none" if not any(made.found) else ("named", f"{sum(made.found)} of 4 lags")


def a_forecast_of_a_horizon() -> Outcome:
    """A forecast of outputs that look like one a step."""
    plain, told = Horizon(axis=False), Horizon(axis=True)
    told.load_state_dict(plain.state_dict())
    x, y = torch.randn(256, 24, 1), torch.randn(256, 24)
    first = lagreach.forecast(plain, (x, y), lags=[0, 3, 6], progress=False)
    second = lagreach.forecast(told, (x, y[:, None]), lags=[0, 3, 6], progress=False)
    far = float(np.nanmax(np.abs(first.if_present.values - second.if_present.values)))
    return "the same" if far < 0.02 else ("differs", f"shares differ by {far:.2f}")


def a_layer_without_a_gradient() -> Outcome:
    """It is left out, and said; the other one is diagnosed."""
    diagnosis = diagnosed(Frozen(), (torch.randn(64, 16, 2), torch.randn(64, 16, 1)), [0, 2])
    names = [layer.name for layer in diagnosis.layers]
    told = any("a" in warning.split() or "a:" in warning for warning in diagnosis.warnings)
    return "the other one" if names == ["b"] and told else ("unsaid", f"{names}, {diagnosis.warnings}")


def watched_while_layers_are_frozen() -> Outcome:
    """Whatever becomes of a diagnosis, the training lives."""
    model = Frozen()
    model.frozen = False
    x, y = torch.randn(64, 16, 2), torch.randn(64, 16, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch = lagreach.watch(model, (x, y), every=1, lags=[0, 2])
        for step in range(3):
            model.frozen = step > 0
            watch.step()
        watch.close()
    return "the training lives"


def truncation_of_a_whole_model() -> Outcome:
    """Gradients that a model run in chunks never gets."""
    diagnosis = lagreach.diagnose(
        Chunked(), (torch.randn(64, 16, 2), torch.randn(64, 16, 1)), lags=[0, 2, 8], progress=False
    )
    needed = diagnosis.required_if_present.sel(lag=8).values
    return "said" if "lags 0 to 3 only" in str(diagnosis) and np.isinf(needed).all() else ("unsaid", f"N {needed}")


def seeds_of_a_whole_model() -> Outcome:
    """The verdict on a lag that is there does not hang on the seed."""
    model, data = Reads(nn.LSTM(1, 8, batch_first=True)), delayed(96, 24, 3, 2.0)
    named = []
    for seed in range(3):
        diagnosis = lagreach.diagnose(model, data, lags=[0, 3, 8], lags_of="model", seed=seed, progress=False)
        named.append(3 in diagnosis.layers[0].window.dependences)
    return "the same" if len(set(named)) == 1 else ("differs", f"lag 3 named: {named}")


def large_inputs() -> Outcome:
    """Inputs that saturate all units: a sentence or an answer, and never the wrong cause."""
    model, (x, y) = Reads(nn.LSTM(1, 8, batch_first=True)), delayed(64, 16, 3, 0.5)
    for size in (1e4, 1e5, 1e6):
        try:
            diagnosed(model, (size * x, y), [0, 3, 8])
        except lagreach.LagreachError as error:
            if "detach" in str(error):
                return "wrong cause", str(error)[:80]
    return "refused or right"


def near_copies() -> Outcome:
    """Sequences with a little noise added, and the same target, are no further sequences."""
    x, y = torch.randn(24, 16, 1), torch.randn(24, 1)
    copies = x.repeat(4, 1, 1) + 0.1 * torch.randn(96, 16, 1)
    diagnosis = diagnosed(Reads(nn.GRU(1, 8, batch_first=True), last="end"), (copies, y.repeat(4, 1)), [0, 1, 3, 8])
    said = any("cop" in warning for warning in diagnosis.warnings)
    lags = diagnosis.layers[0].window.dependences
    return "said" if said else ("unsaid", f"named {lags}")


def budget_of_a_forecast() -> Outcome:
    """Kept, or said to be too small."""
    model, data = Reads(nn.LSTM(8, 128, batch_first=True)), delayed(256, 64, 3, 0.5, 8)
    lagreach.forecast(
        model, (data[0][:32], data[1][:32]), lags=[0, 3], progress=False
    )  # what is compiled is compiled now
    began = time.process_time()
    made = lagreach.forecast(model, data, budget=LEAST, progress=False)
    took = time.process_time() - began
    kept = took < SLOWER * LEAST or any("budget" in warning for warning in made.warnings)
    return "kept or said" if kept else ("slower", f"{took:.1f} s of {LEAST:.0f}")


def _bf16_windows() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Reads(nn.GRU(1, 6, batch_first=True)).to(torch.bfloat16), tuple(v.bfloat16() for v in delayed(64, 16, 3))  # type: ignore[return-value]


def shards() -> Outcome:
    """A model in half precision, in shards as in one piece."""
    model, data = _bf16_windows()
    one = lagreach.diagnose(model, data, lags=[0, 3], progress=False)
    some = diagnose_sharded(_bf16_windows, LocalExecutor(1), shards=3, lags=[0, 3], progress=False)
    far = float(np.abs(np.log(one.required_if_present.values / some.required_if_present.values)).max())
    return "the same" if far < 1e-6 else ("differs", f"N differs by {far:.1e}")


SIBLINGS: dict[Callable[[], Outcome], tuple[str, str]] = {
    a_shared_column: ("a forecast of inputs of which all sequences share a column", "none of its lags is named"),
    a_forecast_of_a_horizon: ("a forecast for a horizon as long as the past", "shares are those of one output"),
    a_layer_without_a_gradient: ("a layer that training does not reach", "it is left out and said"),
    watched_while_layers_are_frozen: ("layers frozen while training is watched", "the training lives"),
    truncation_of_a_whole_model: ("a whole model that detaches its state", "it is said"),
    seeds_of_a_whole_model: ("other seeds for a whole model", "the verdict is the same"),
    large_inputs: ("inputs of 1e4 to 1e6", "no wrong cause is named"),
    near_copies: ("near copies with the same target", "they are said"),
    budget_of_a_forecast: ("the budget of a forecast", "kept within 1.5, or said to be too small"),
    shards: ("half precision in shards", "N is that in one piece"),
}
