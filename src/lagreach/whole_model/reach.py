"""How far back gradients of a whole model get at all: a cut in the graph, or a model that looks no further."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from lagreach.data.bands import make_bands
from lagreach.whole_model.measure import GAIN_SEQUENCES, measure_gain
from lagreach.whole_model.measurement_plan import WholeModelPlan, subsample
from lagreach.whole_model.running import at_rest

REACH = (
    "training gets lags 0 to {} only: gradients from further back are exactly zero. Either they are cut off on the way (detach, "
    "no_grad), or the model does not look further back, or what would arrive is too small for its type of numbers"
)


def reach_note(plan: WholeModelPlan, log10_gain: Float[np.ndarray, "lag"]) -> str | None:
    """Say up to which lag gradients arrive, if none arrives from any of the lags beyond; None if some do from the last."""
    lags = np.array(plan.bands.lags)
    arrives, silent = lags[np.isfinite(log10_gain)], lags[np.isneginf(log10_gain)]
    if not len(arrives) or not len(silent) or silent.max() < arrives.max():
        return None
    nearest, farthest = int(arrives.max()), int(silent[silent > arrives.max()].min())
    if farthest > nearest + 1:  # lags in between were not asked for
        few = subsample(plan, GAIN_SEQUENCES)
        between = range(nearest, farthest + 1)
        with at_rest(plan.model.module):
            gain = measure_gain(replace(few, bands=make_bands(between, plan.time)))
        nearest = max(lag for lag, value in zip(between, gain, strict=True) if np.isfinite(value) or lag == nearest)
    return REACH.format(nearest)
