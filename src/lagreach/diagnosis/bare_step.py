"""`diagnose_step`: a bare step function with its weights, for those who have no module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lagreach.adapters.functional import functional_view
from lagreach.diagnosis.diagnose import diagnose
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError


def diagnose_step(
    step: Callable[..., Any],
    params: dict[str, Any],
    data: Any,
    *,
    readout: Any,
    state_size: int,
    input_params: Callable[[str], bool],
    **options: Any,
) -> Diagnosis:
    """Diagnose a bare step function ``step(x, s, params) -> s`` with its weights and a linear readout of the state.

    `readout` is (weight, bias) with weight (out, state). `input_params` says which weights read the input.
    """
    if "params" in options:
        raise InputError(
            "weights are selected by input_params here", got="params", fix="pass input_params=lambda name: ..."
        )
    view = functional_view(step, params, readout, state_size)
    return diagnose(view, data, params=input_params, **options)
