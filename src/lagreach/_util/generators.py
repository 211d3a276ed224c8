"""Generators of random numbers from seeds."""

from __future__ import annotations

import torch

from lagreach._util.seeds import check_seed


def seeded(seed: int | torch.Generator) -> torch.Generator:
    """Return a generator with this seed, or the generator itself."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(check_seed(seed))
