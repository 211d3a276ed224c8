"""What stands in the way of each lag, in one word."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

READABLE, REACHABLE, BLENDED, UNSEEN = "readable", "reachable", "blended", "unseen"
FEW_SEQUENCES, FEW_STEPS, NONE_FOUND, UNKNOWN = "few sequences", "few steps", "none found", "unknown"
LIMITS = (READABLE, REACHABLE, BLENDED, UNSEEN, FEW_SEQUENCES, FEW_STEPS, NONE_FOUND, UNKNOWN)

MEANING = {
    READABLE: "the state holds it: training the readout is enough",
    REACHABLE: "weights nearby hold it: training gets there",
    BLENDED: "something of it arrives, but mixed up with its neighbours: more units, faster gates or more spread time scales "
    "help, not more data",
    UNSEEN: "neither the gradient nor the state shows it: slower gates, or another architecture",
    FEW_SEQUENCES: "can be learned, but from more sequences than these",
    FEW_STEPS: "can be learned, but not in so many steps of this optimiser: train longer, or with larger steps",
    NONE_FOUND: "the targets do not depend on this lag, as far as these sequences tell",
    UNKNOWN: "no target has an input that old, or these sequences, or the directions of the weights looked at, cannot tell",
}


def limits(
    readable: Float[np.ndarray, "lag"],
    reachable: Float[np.ndarray, "lag"] | None,
    ample: Float[np.ndarray, "lag"],
    budgeted: Float[np.ndarray, "lag"] | None,
    shown: Bool[np.ndarray, "lag"],
    rising: Float[np.ndarray, "lag"] | None = None,
    half: float = 0.5,
    budgeted_ample: Float[np.ndarray, "lag"] | None = None,
) -> list[str]:
    """What binds at each lag, from shares at the number of sequences one has.

    Parameters
    ----------
    readable, reachable
        Shares that the readout, and all weights, recover.
    ample
        The larger share with more sequences than anyone has.
    budgeted
        Share within so many steps; None where they are not limited.
    shown
        Whether the gradient of a dependency stands out of its noise, or the state tells at least a little of the old input.
    rising
        What all weights may recover beyond the directions of them that were looked at.
    budgeted_ample
        Share within so many steps with more sequences than anyone has: where it is small, steps bind whatever the sequences.

    Examples
    --------
    >>> one = np.ones(3)
    >>> limits(0.9 * one, None, one, None, one > 0)
    ['readable', 'readable', 'readable']
    >>> limits(np.array([0.1, 0.1, np.nan]), None, np.array([0.9, 0.2, np.nan]), None, one > 0)
    ['few sequences', 'blended', 'unknown']
    """
    words = []
    for i in range(len(readable)):
        best = readable[i] if reachable is None else np.fmax(readable[i], reachable[i])
        if np.isnan(best):
            words.append(UNKNOWN)
        elif best >= half and budgeted is not None and budgeted[i] < half:
            words.append(FEW_STEPS)
        elif readable[i] >= half:
            words.append(READABLE)
        elif best >= half:
            words.append(REACHABLE)
        elif ample[i] >= half:
            in_vain = budgeted_ample is not None and budgeted_ample[i] < half  # however many sequences there are
            words.append(FEW_STEPS if in_vain else FEW_SEQUENCES)
        elif rising is not None and ample[i] + rising[i] >= half:
            words.append(UNKNOWN)
        else:
            words.append(BLENDED if shown[i] else UNSEEN)
    return words
