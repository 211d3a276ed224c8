"""Targets on another scale than what the model puts out: training has to bridge that before it learns anything else."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.transport.objective import Objective

LARGE, SMALL = 1e3, 200.0  # times as large or as small, from which on it is said
FAR = 3.0  # times what targets and outputs vary by, from which on it is said that their means lie apart
UNEVEN = 10.0  # times what one output's targets vary by, that another's may
PAIRS = 16  # of sequences that tell, where sequences are looked at by pairs


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
    y, outputs = (values[counted].detach().double() for values in (objective.y, output))
    each, theirs = _spread(y), _spread(outputs)
    target, own = float(_size(each)), float(_size(theirs))
    if target == 0:
        return None
    if target * SMALL < own or target > LARGE * max(own, 1.0):
        said = f"the targets vary by about {target:.0e}, the model's outputs by {own:.0e}"
    else:
        distance = (y.mean(0) - outputs.mean(0)).abs()
        far = distance > FAR * (each + theirs)
        if not bool(far.any()):
            return _uneven(each)
        worst = int(torch.where(far, distance / (each + theirs), 0.0).argmax())
        said = f"the targets lie about {distance[worst]:.2g} from the model's outputs, and vary by {each[worst]:.1g}"
    return (
        f"{said}: training has to bridge that before it learns any lag, and what is said of learning does not count it; scale "
        "the targets to mean 0 and variance 1"
    )


def _uneven(each: Float[Tensor, "out"]) -> str | None:
    """Say that a squared error sees little of some outputs, and so do tests along mixtures of all of them.

    >>> _uneven(torch.tensor([1.0, 0.0, 3.0])), _uneven(torch.tensor([1.0, 30.0]))[:58]
    (None, 'the targets of one output vary by 30, those of another by ')
    """
    varying = each[each > 0]
    if len(varying) < 2 or float(varying.max()) <= UNEVEN * float(varying.min()):
        return None
    most, least = float(varying.max()), float(varying.min())
    return (
        f"the targets of one output vary by {most:.2g}, those of another by {least:.2g}: the squared "
        "error is that of the first, and a dependence of the second may be missed; scale each output's targets to mean 0 and "
        "variance 1, or look at one output at a time"
    )


def _spread(values: Float[Tensor, "row out"]) -> Float[Tensor, "out"]:
    """Root mean square distance from the mean of each column."""
    return _size(values - values.mean(0)) if len(values) else values.new_zeros(values.shape[1])


def _size(values: Float[Tensor, "row *out"]) -> Float[Tensor, "*out"]:
    """Root mean square of each column, of numbers as small or large as there are."""
    largest = values.abs().max()
    return largest * (values / largest).square().mean(0).sqrt() if largest > 0 else values.new_zeros(values.shape[1:])
