"""Columns of the input on very different scales: weights that read a small one get small gradients."""

from __future__ import annotations

import torch

from lagreach.data.batch import known_lengths
from lagreach.data.sequences import Sequences
from lagreach.transport.objective import valid_steps

LOOKED_AT = 64  # sequences
UNLIKE = 5.0  # times as large, from which on it is worth a word
SAID = (
    "columns of the input differ in scale (column {small} varies {times:.2g} times less than column {large}): a weight's "
    "gradient is as large as what it reads, so a dependence on a small column alone may be missed, and N is not for it; "
    "standardise the inputs"
)


def unlike_columns(sequences: Sequences) -> tuple[str, ...]:
    """Say how far apart the scales of the columns are, where they are far; columns that do not vary are another matter.

    >>> from lagreach.data.sequences import as_sequences
    >>> x = torch.randn(8, 20, 2, generator=torch.Generator().manual_seed(0))
    >>> len(unlike_columns(as_sequences((x, x)))), len(unlike_columns(as_sequences((x * torch.tensor([1.0, 0.01]), x))))
    (0, 1)
    """
    batch = sequences.read(range(min(LOOKED_AT, len(sequences))))
    x = batch.x
    if not x.is_floating_point() or x.ndim != 3:
        return ()
    spread = x[valid_steps(known_lengths(batch), len(x), x.shape[1], x.device)].double().std(0)
    moving = spread.isfinite() & (spread > 0)
    if int(moving.sum()) < 2:
        return ()
    small = int(torch.where(moving, spread, torch.inf).argmin())
    large = int(torch.where(moving, spread, 0.0).argmax())
    times = float(spread[large] / spread[small])
    return (SAID.format(small=small, times=times, large=large),) if times > UNLIKE else ()
