"""*Readable* share: what a readout fitted to the states recovers of a lag. One forward pass.

Features are what the readout reads. With the squared loss every output has weights of its own on the same features, so one
output stands for all. For classes, the loss is a square near the model's own probabilities p (Gauss-Newton), with the curvature
``diag(p) - p p'``; its mean over the classes, ``h_t = (1 - |p_t|^2) / classes``, says how much a step counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.statistics.linear_share import Observed, Rows, ShareMoments


def start(
    blocks: int,
    features: int,
    lags: Sequence[int],
    copies: Float[Tensor, "probe copy"],
    device: torch.device | str = "cpu",
) -> ShareMoments:
    """Sums of a readout; `copies` (probe, output) are the output directions of the probes."""
    return ShareMoments(blocks, features, 1, lags, (0,) * len(copies), copies, device)


def readable_rows(observed: Observed, features: Float[Tensor, "seq target feature"], lags: Sequence[int]) -> Rows:
    """Features of a readout as a linear fit sees them.

    `observed.towards` (one row, one group) is ``sqrt(h_t)``, and `observed.residual` the residual over it: one and the residual
    itself for the squared loss.
    """
    root = observed.towards[..., 0]
    weighted = (observed.shares[..., None] * root) * observed.residual
    gradient = (weighted.transpose(1, 2) @ features).double()
    scaled = observed.at_anchors(features) * observed.at_anchors(root)
    return observed.rows(scaled[:, :, None], gradient, lags)
