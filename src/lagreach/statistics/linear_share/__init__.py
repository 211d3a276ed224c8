"""What a linear fit on N sequences recovers of a lag, in closed form: sums over sequences, fits, and shares.

`Rows` are what a fit sees of some sequences, `ShareMoments` adds them up, `share_curves` evaluates the closed forms, and
`ShareCurves` answers for every lag, number of sequences and strength.
"""

from __future__ import annotations

from lagreach.statistics.linear_share.curves import AMPLE, HALF, ShareCurves, Shares, check_strength
from lagreach.statistics.linear_share.fit import rounding_floor, share_curves
from lagreach.statistics.linear_share.moments import Rows, ShareMoments
from lagreach.statistics.linear_share.observed import (
    ANCHORS,
    Observed,
    anchor_chance,
    at_anchors,
    choose_anchors,
    enough_anchors,
    joined,
)
from lagreach.statistics.linear_share.output_space import OutputSpace, output_space
from lagreach.statistics.linear_share.products import compiled_sums
from lagreach.statistics.linear_share.start import Start

__all__ = [
    "AMPLE", "ANCHORS", "HALF", "Observed", "OutputSpace", "Rows", "ShareCurves", "ShareMoments", "Shares", "Start",
    "anchor_chance", "at_anchors", "check_strength", "choose_anchors", "compiled_sums", "enough_anchors", "joined",
    "output_space", "rounding_floor", "share_curves",
]  # fmt: skip
