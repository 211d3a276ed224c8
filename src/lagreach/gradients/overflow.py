"""Gradients that leave the range of numbers, or never come: what to say about it."""

from __future__ import annotations

import numpy as np

from lagreach.errors import InputError
from lagreach.gradients.measurement_plan import MeasurementPlan

ORDINARY = (1e-3, 1e3)  # sizes of inputs that explain nothing


def input_size(plan: MeasurementPlan) -> float:
    """Largest mean or standard deviation of a layer's inputs, along any direction."""
    spread = 1 / plan.probe.whitening.norm(dim=0).min()
    return float(max(plan.probe.mean.abs().max(), spread))


def check_gradients(plan: MeasurementPlan, what: str, values: np.ndarray) -> None:
    """Refuse gradients that are infinite or no numbers: tests would take them for anything."""
    if np.isfinite(values).all():
        return
    dtype = str(plan.view.template.dtype).removeprefix("torch.")
    raise InputError(
        f"{what} of {plan.view.name} overflow",
        got=f"values that are not finite, in {dtype}; inputs of this layer are of size {input_size(plan):.1g}",
        expected="finite gradients",
        fix="scale inputs and targets to a size of about one, or run the model in float64: model.double()",
    )


def vanished(plan: MeasurementPlan) -> str:
    """Say why gradients may be the same for every sequence, and most often zero."""
    size = input_size(plan)
    cause = (
        f"no gradient reaches the weights of {plan.view.name}: activations or gates are saturated or dead, "
        "or nothing reads them"
    )
    if ORDINARY[0] <= size <= ORDINARY[1]:
        return cause
    return f"{cause}; its inputs are of size {size:.1g}: scale them to about one"
