"""A diagnosis in plain words."""

from __future__ import annotations

import math

from lagreach.diagnosis import Diagnosis, LayerDiagnosis
from lagreach.types import Status
from lagreach.window import WindowAt


def count(number: float) -> str:
    """Write a number of sequences for people: 8, 1,200, 3.4e+07, or "no number of".

    >>> count(8.3), count(1234.5), count(3.4e7), count(math.inf)
    ('9', '1,235', '3.4e+07', 'no number of')
    """
    if math.isnan(number):
        return "an unknown number of"
    if math.isinf(number):
        return "no number of"
    return f"{math.ceil(number):,}" if number < 1e6 else f"{number:.2g}"


def answer(diagnosis: Diagnosis) -> str:
    """Put the result into one sentence."""
    at = diagnosis.window()
    share = f"{100 * at.strength:g} %"
    if at.lag is None:
        return (
            f"With {count(at.sequences)} sequences this model would not notice a dependency explaining {share} of the target "
            "at any lag that was examined."
        )
    low, high = ("none" if end is None else str(end) for end in at.interval)
    reach = "the longest lag examined" if at.status is Status.WINDOW_CENSORED else "steps back"
    where = f"{at.lag} {reach}" if at.status is not Status.WINDOW_CENSORED else f"lag {at.lag}, {reach}"
    return (
        f"With {count(at.sequences)} sequences this model would notice a dependency explaining {share} of the target up to "
        f"{where} ({low} to {high})."
    )


def describe(diagnosis: Diagnosis) -> str:
    """Reach, dependences, N at the lags, limits, fidelity, tails and warnings."""
    lines = [answer(diagnosis)]
    for layer in diagnosis.layers:
        lines += ["", *_layer(diagnosis, layer)]
    lines += [f"! {warning}" for warning in diagnosis.warnings]
    lines += ["", diagnosis.layers[0].window.definition]
    lines.append(
        "Use held-out data: on its own training data a model has memorised which target belongs to which input, and the test "
        "for dependence is no longer exact."
    )
    return "\n".join(lines)


def _layer(diagnosis: Diagnosis, layer: LayerDiagnosis) -> list[str]:
    window = layer.window
    at = window.at(diagnosis.sequences)
    scope = "lags within this layer" if layer.local else "lags of the whole model"
    lines = [f"{layer.name} ({scope}): {_dependences(layer, at)}"]
    probe = window.required_if_present()
    lines.append(f"{'lags':>9} {'N if present':>22} {'N in the data':>22}  limit")
    for i, lag in enumerate(window.lags.tolist()):
        first = int(window.required.first[i])
        name = str(lag) if first == lag else f"{first}-{lag}"
        planted = f"{probe.sequences[i]:.3g} ({probe.low[i]:.2g}..{probe.high[i]:.2g})"
        seen = window.required
        data = f"{seen.sequences[i]:.3g} ({seen.low[i]:.2g}..{seen.high[i]:.2g})"
        if math.isinf(seen.sequences[i]):
            data = f"none found (> {seen.low[i]:.2g})"
        lines.append(f"{name:>9} {planted:>22} {data:>22}  {short(window.limit(lag, diagnosis.sequences))}")
    lines.append(f"first order against exact: {layer.fidelity.verdict}")
    lines.append(f"shape of the exact gain: {_shape(layer)}")
    lines.append(f"gradient noise: kappa = {window.concentration.exponent:.3g} ({window.concentration.status})")
    supported = {True: "supported", False: "not supported", None: "not checked"}[layer.tail.stable_supported]
    lines.append(f"stable fit of the noise: alpha = {layer.tail.alpha:.2f}, stable model {supported}")
    lines.append(
        f"linear memory in use: {window.memory.total:.1f} of at most {window.memory.bound}"
        + ("" if window.memory.independent_inputs else " (inputs are correlated in time, so the bound does not apply)")
    )
    lines.append(f"design effect: a sequence counts as its steps divided by {window.design_effect:.2g}")
    return lines + [f"! {warning}" for warning in window.warnings]


def _dependences(layer: LayerDiagnosis, at: WindowAt) -> str:
    found = layer.window.dependences
    if not found:
        return "no dependence of the target on any lag was found"
    visible = [lag for lag in found if lag in at.detectable]
    hidden = [lag for lag in found if lag not in at.detectable]
    words = f"the data depend on lag{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
    if hidden:
        words += f"; {', '.join(map(str, hidden))} need{'s' if len(hidden) == 1 else ''} more sequences"
    return words if visible or hidden else words + "; none within reach"


def _shape(layer: LayerDiagnosis) -> str:
    best = layer.regimes.best
    return str(layer.regimes.status) if best is None else f"{best.law}, weight {best.weight:.2f}, r^2 {best.r2:.3f}"


def short(limit: Status) -> str:
    """Name a limit in a word or two."""
    return limit.name.removeprefix("LIMIT_").lower().replace("_", " ")
