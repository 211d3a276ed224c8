"""Seeds of random numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from lagreach.errors import InputError

if TYPE_CHECKING:
    import torch

LARGEST = 2**63 - 1


def check_seed(seed: object) -> int:
    """Return a seed as an int; refuse what no generator takes.

    >>> check_seed(7)
    7
    """
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= LARGEST:
        raise InputError("seed is a whole number", got=repr(seed), expected="0 to 2**63 - 1", fix="leave it out for 0")
    return number


def seeded(seed: int | torch.Generator) -> torch.Generator:
    """Return a generator with this seed, or the generator itself."""
    import torch

    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(check_seed(seed))
