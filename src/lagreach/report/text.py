"""A diagnosis on the terminal: the same story as the page, in colour where there is a terminal, plain elsewhere."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.settings_of_torch import pythons_random_state
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.diagnosis.window import Window
from lagreach.report.lag_table import in_unit
from lagreach.report.words import (
    A_TRACE,
    IN_DOUBT,
    LIGHTS,
    NO_FORECAST,
    advice,
    answer,
    brief,
    in_doubt,
    nothing_found,
    retained,
    short,
    span,
    unreached,
)
from lagreach.statistics import LagCurve
from lagreach.statistics.memory import Memory
from lagreach.types import Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 118
ROWS = 21  # of the table; of more lags some are shown
COLOURS = {"good": "green", "fair": "yellow", "bad": "red", "plain": "default"}
BARS = "▁▂▃▄▅▆▇█"
HELD_OUT = (
    "Use held-out data: on its own training data a model has memorised which target belongs to which input, and the test "
    "for dependence is no longer exact."
)


def sparkline(values: Sequence[float]) -> str:
    """Draw numbers as a line of bars, from the smallest to the largest; what is not finite is a blank.

    >>> sparkline([0.0, 1.0, 2.0, math.nan, 7.0])
    '▁▂▃ █'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, height = min(finite), (max(finite) - min(finite)) or 1.0
    top = len(BARS) - 1
    return "".join(BARS[round(top * (v - low) / height)] if math.isfinite(v) else " " for v in values)


@pythons_random_state()
def describe(diagnosis: Diagnosis) -> str:
    """Everything in plain text: reach, dependences, N at the lags, limits, fidelity, tails and warnings."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, color_system=None, force_terminal=False, width=WIDTH, legacy_windows=False)
    for part in renderables(diagnosis):
        console.print(part, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


@pythons_random_state()
def show(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print a diagnosis: coloured and fitted to the window of a terminal, as plain text into files and pipes."""
    from rich.console import Console

    out = console or Console()
    if not out.is_terminal:
        out.file.write(describe(diagnosis) + "\n")
        return
    for part in renderables(diagnosis):
        out.print(part, highlight=False)


def renderables(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Give the parts of the description, for rich."""
    from rich.text import Text

    yield Text(answer(diagnosis), style="bold")
    yield Text(NO_FORECAST)
    for layer in diagnosis.layers:
        scope = "lags within this layer" if layer.local else "lags of the whole model"
        yield Text(f"\n{layer.name} ({scope}): {_dependences(layer, diagnosis)}")
        yield _table(diagnosis, layer)
        for line in [*_advice(diagnosis, layer), *_facts(layer)]:
            yield Text(line)
        for warning in layer.window.warnings:
            yield Text(f"! {warning}", style="yellow")
    if diagnosis.convergence is not None:
        yield Text("\nConvergence of gradient descent for this diagonal network (worst cases):")
        yield Text(str(diagnosis.convergence["text"]))
    for warning in diagnosis.warnings:
        yield Text(f"! {warning}", style="yellow")
    yield Text(f"\n{diagnosis.layers[0].window.definition}", style="dim")
    yield Text(HELD_OUT, style="dim")


def _table(diagnosis: Diagnosis, layer: LayerDiagnosis) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    window = layer.window
    curves = [curve for curve in window.curves.values() if curve.column]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("lags", *(curve.column for curve in curves)):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for i in _shown(window):
        lag = int(window.lags[i])
        limit = window.limit(lag, diagnosis.sequences)
        table.add_row(
            span(int(window.required.first[i]), lag),
            *(_number(curve, lag) for curve in curves),
            Text(short(limit), style=COLOURS[LIGHTS[limit]]),
        )
    return table


def _shown(window: Window) -> list[int]:
    """Rows of the table: all lags if they are few, else those that the data depend on and some of the others."""
    count = len(window.lags)
    if count <= ROWS:
        return list(range(count))
    kept = [i for i, (first, last) in enumerate(zip(window.required.first, window.lags, strict=True))
             if any(first <= lag <= last for lag in window.dependences)]  # fmt: skip
    even = np.unique(np.geomspace(1, count, ROWS).round().astype(int) - 1).tolist()
    return sorted({*kept, *even, *(min(i + 1, count - 1) for i in kept[:ROWS])})


def _number(curve: LagCurve, lag: int) -> str:
    """A value with its interval, in the words of its unit; nothing where the curve has no such lag."""
    if lag not in curve.lags:
        return ""
    i = curve.lags.tolist().index(lag)
    value, low, high = (float(numbers[i]) for numbers in (curve.value, curve.low, curve.high))
    if curve.status[i] is Status.NOT_SIGNIFICANT:
        return "none found" + ("" if math.isnan(low) else f" (> {brief(low)})")
    if math.isnan(value):
        return "unknown"
    written, percent = in_unit(curve, value), " %" if curve.unit == "share" else ""
    return f"{written}{percent}" + ("" if math.isnan(low) else f" ({in_unit(curve, low)}..{in_unit(curve, high)})")


def _advice(diagnosis: Diagnosis, layer: LayerDiagnosis) -> list[str]:
    """What to do about the dependences found and not learned, and about the first lag out of reach."""
    window = layer.window
    limits = {lag: window.limit(lag, diagnosis.sequences) for lag in window.lags.tolist()}
    asked = [lag for lag in window.dependences if window.limit(lag, diagnosis.sequences) is not Status.LIMIT_LEARNED]
    asked += [lag for lag, limit in limits.items() if limit is Status.LIMIT_OUT_OF_REACH][:1]
    lines = [f"to do about lag {lag}: {advice(diagnosis, layer, lag)}" for lag in sorted(set(asked))]
    return [*lines, retained(layer)] if any("gate bias" in line for line in lines) else lines


def _missed(window: Window) -> list[str]:
    """What the test for dependence may have missed, where that is more than the strength that was asked for."""
    if window.noticeable is None:
        return []
    shares = window.noticeable[(window.adjusted_p > window.error) & (window.noticeable > window.strength)]
    if not len(shares):
        return []
    if shares.min() >= 1:
        return ["where none was found, a dependency of any strength may have been missed"]
    ends = [f"{share:.0%}" if share < 1 else "all" for share in (shares.min(), shares.max())]
    of = ends[0] if ends[0] == ends[1] else " to ".join(ends)
    return [f"where none was found, a dependency that explains less than {of} of the target may have been missed"]


def _facts(layer: LayerDiagnosis) -> list[str]:
    window = layer.window
    gain = layer.fidelity.log10_exact.tolist()
    finite = [value for value in gain if math.isfinite(value)]
    powers = [round(end(finite), 1) + 0.0 for end in (max, min) if finite]  # 0.0, never -0.0
    ends = " to ".join(f"1e{power:.1f}" for power in powers) or "nothing arrives"
    supported = {True: "supported", False: "not supported", None: "not checked"}[layer.tail.stable_supported]
    return [
        *_whose_lags(layer),
        *_explained(window),
        *_missed(window),
        f"gain of the loss gradient by lag: {sparkline(gain)} ({ends}, logarithmic)",
        f"shape of the exact gain: {_shape(layer)}",
        f"first order against exact: {layer.fidelity.verdict}",
        f"gradient noise: kappa = {window.concentration.exponent:.3g} ({window.concentration.status})",
        f"stable fit of the noise: alpha = {layer.tail.alpha:.2f}, stable model {supported}",
        *_memory(window.memory),
        f"design effect: a sequence counts as its steps divided by {window.design_effect:.2g}",
    ]


def _explained(window: Window) -> list[str]:
    """How much of the target the model has, and how much of each lag that the data depend on."""
    explained = window.reliance.explained
    if explained < A_TRACE:
        return ["the model as it stands is no better than a constant: nothing is learned yet"]
    shares = [(lag, window.learned(lag)) for lag in window.reliance.lags]
    learned = ", ".join(f"{share:.0%} of lag {lag}" for lag, share in shares if not math.isnan(share))
    of_target = "" if math.isnan(explained) else f"explains {explained:.0%} of the target"
    parts = [part for part in (of_target, f"has learned {learned}" if learned else "") if part]
    return [f"the model as it stands {' and '.join(parts)}"] if parts else []


def _memory(memory: Memory) -> list[str]:
    if memory.bound == 0:  # not measured: a whole model has no state of one size
        return []
    within = "" if memory.independent_inputs else " (inputs are correlated in time, so the bound does not apply)"
    return [f"linear memory in use: {memory.total:.1f} of at most {memory.bound}{within}"]


def _whose_lags(layer: LayerDiagnosis) -> list[str]:
    """Say why lags are those of the whole model, and how they were measured."""
    chosen = layer.window.settings
    if chosen.get("lags_of") != "model":
        return []
    anchors = chosen["anchors_per_sequence"]
    return [
        f"lags of the whole model: {chosen['lags_of_why']}",
        f"input read by {chosen['input_module']}: {chosen['input_module_why']}; {anchors} "
        f"output{'s' if anchors > 1 else ''} of each sequence carried back",
    ]


def _dependences(layer: LayerDiagnosis, diagnosis: Diagnosis) -> str:
    lags = layer.window.dependences
    if not lags:
        return nothing_found(layer.window)
    beyond, unknown = unreached(layer, diagnosis)
    words = f"the data depend on lag{'s' if len(lags) > 1 else ''} {', '.join(map(str, lags))}"
    if in_doubt(layer.window):
        words += f" ({IN_DOUBT})"
    if beyond:
        words += f"; {', '.join(map(str, beyond))} need{'s' if len(beyond) == 1 else ''} more sequences"
    if unknown:
        words += f"; what {', '.join(map(str, unknown))} need{'s' if len(unknown) == 1 else ''} cannot be said"
    return words


def _shape(layer: LayerDiagnosis) -> str:
    best = layer.regimes.best
    return str(layer.regimes.status) if best is None else f"{best.law}, weight {best.weight:.2f}, r^2 {best.r2:.3f}"
