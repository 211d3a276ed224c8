"""How a window is measured: the choices, and which of them cannot work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lagreach._util.seeds import check_seed
from lagreach.errors import InputError
from lagreach.gradients.contrast import SIGNALS
from lagreach.gradients.lag_gradients import TRANSPORTS
from lagreach.gradients.noise import DIRECTIONS, NOISES, UNITS


@dataclass(frozen=True)
class MeasureSettings:
    """How a window is measured; signal and noise are those of docs/theory/detection.md."""

    signal: str = "dependence"
    direction: str = "matched"
    noise: str = "gradient"
    unit: str = "sequence"
    transport: str = "exact"
    strength: float = 0.05
    error: float = 0.05
    blocks: int = 32
    probes: int = 4
    flips: int = 1999
    seed: int = 0


def check_settings(settings: MeasureSettings) -> None:
    """Refuse what cannot work before anything is computed."""
    choices = {"signal": SIGNALS, "direction": DIRECTIONS, "noise": NOISES, "unit": UNITS, "transport": TRANSPORTS}
    for name, allowed in choices.items():
        if getattr(settings, name) not in allowed:
            raise InputError(f"unknown {name}", got=repr(getattr(settings, name)), expected=" or ".join(allowed))
    if not 0 < settings.error < 0.5:
        raise InputError("error is a probability below one half", got=settings.error)
    if not 0 < settings.strength <= 1:
        raise InputError("strength is a share of the target's variance", got=settings.strength, expected="0 < s <= 1")
    check_seed(settings.seed)
    rare = 1 / settings.error  # flips, and blocks' patterns of signs, must allow a p-value as small as the error
    least = {"flips": math.ceil(rare) - 1, "blocks": max(4, math.ceil(1 + math.log2(rare))), "probes": 1}
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise InputError(f"{name} is too small", got=getattr(settings, name), expected=f"at least {bound}")
