"""What a budget of steps does not count, though it can be told beforehand: steps that overshoot, and weight decay.

Shares within a budget are those of a descent in steps that are small enough. On a square of curvature s, in units of the step
size d that `step_sizes` gives, steps with a momentum m are steady where ``d s < 2 (1 + m) / (1 - m)``: those of SGD where
``lr s < 2``, heavy balls where ``lr s < 2 (1 + m)``, and Adam's, of averaged gradients, with m = beta1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagreach.gradients.optimiser_geometry import groups_of
from lagreach.statistics.linear_share import ShareMoments

DECAYED = 0.1  # share of a weight that decay takes, from which on it is spoken of
OVERSHOOTS = (
    "steps of this optimiser overshoot near the checkpoint: step size times largest curvature is {:.2g}, and steps are steady "
    "below {:.2g}; training may run away or settle elsewhere, which shares within the steps do not know: take a learning rate at "
    "least {:.2g} times smaller"
)
DECAYS = (
    "the optimiser's weight decay is not counted: learning rate times decay times steps is {:.2g}, so that it pulls weights back "
    "and shares may be smaller"
)


def steady_below(optimiser: Any) -> float:
    """Step size times curvature up to which steps are steady; of several groups of weights, the largest.

    >>> layer = torch.nn.Linear(1, 1)
    >>> steady_below(torch.optim.SGD(layer.parameters())), round(steady_below(torch.optim.Adam(layer.parameters())), 6)
    (2.0, 38.0)
    """
    return max(_steady_below(group) for group in groups_of(optimiser))


def _steady_below(group: Mapping[str, Any]) -> float:
    momentum = float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))
    ahead = 1 + 2 * momentum if group.get("nesterov") else 1.0  # it looks at the gradient after the step
    return 2 * (1 + momentum) / (1 - momentum) / ahead


def largest_square(
    moments: ShareMoments, scale: Tensor | None = None, constant: float = 0.0, directions: int = 0
) -> float:
    """Largest eigenvalue of the features' mean square, with a constant of this size beside them on every row.

    Of random `directions` of very many weights, each has a part of all small eigenvalues, which is taken off.
    """
    count = moments.sequences.sum()
    squares, means = moments.squares.sum(0) / count, moments.means.sum(0) / count
    if scale is not None:
        squares, means = squares * scale.to(squares)[:, None] * scale.to(squares), means * scale.to(means)
    rows = len(means)
    corner = constant**2 * torch.eye(rows, dtype=squares.dtype, device=squares.device)
    whole = torch.cat((torch.cat((squares, constant * means.T), 1), torch.cat((constant * means, corner), 1)))
    top = float(torch.linalg.eigvalsh(whole.cpu())[-1])
    return top if not directions else max(0.0, top - (float(whole.trace()) - top) / directions)


def constant_of(scale: Mapping[str, Tensor], readout: tuple[str, ...]) -> float:
    """Root of the step size of the readout's bias; zero where none is moved."""
    return max((float(scale[name].mean()) ** 0.5 for name in readout if scale[name].ndim == 1), default=0.0)


def overshoot_note(optimiser: Any, product: float) -> str | None:
    """Say that steps overshoot, if step size times largest curvature, the `product`, is too large."""
    limit = steady_below(optimiser)
    return OVERSHOOTS.format(product, limit, product / limit) if product > limit else None


def decay_note(optimiser: Any, steps: int) -> str | None:
    """Say that decay is not counted, if it is large enough to matter."""
    decayed = steps * max(
        float(group["lr"]) * float(group.get("weight_decay", 0.0)) / (1 - float(group.get("momentum", 0.0)))
        for group in groups_of(optimiser)
    )
    return DECAYS.format(decayed) if decayed > DECAYED else None
