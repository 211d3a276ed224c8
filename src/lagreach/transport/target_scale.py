"""Targets on another scale than what the model puts out: training has to bridge that before it learns anything else."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lagreach.transport.objective import Objective

APART = 1e3  # times as large, from which on it is said


def scale_note(objective: Objective, output: Float[Tensor, "seq target out"]) -> str | None:
    """Say how far apart targets and outputs lie, if that is far; only squared errors know a scale.

    Outputs of a new model may be small for no other reason than that it is new, so that large targets are compared with one.

    >>> import torch
    >>> y, output = 1e6 * torch.randn(4, 9, 1), torch.randn(4, 9, 1)
    >>> print(scale_note(Objective("mse", y, torch.ones(4, 9)), output)[:29])
    the targets vary by about 1e+
    """
    if objective.loss != "mse":
        return None
    counted = objective.weights > 0
    target, own = (_spread(values[counted]) for values in (objective.y, output))
    if target == 0 or (target * APART >= own and target <= APART * max(own, 1.0)):
        return None
    return (
        f"the targets vary by about {target:.0e}, the model's outputs by {own:.0e}: training has to bridge that before it learns "
        "any lag, and what is said of learning does not count it; scale the targets to mean 0 and variance 1"
    )


def _spread(values: Tensor) -> float:
    """Root mean square distance from the mean of each column."""
    exact = values.detach().double()
    return float((exact - exact.mean(0)).square().mean().sqrt()) if len(exact) else 0.0
