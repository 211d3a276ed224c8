"""How a window is measured: every choice once. The command line, the YAML of studies and the documentation read them here."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

from lagreach._util.seeds import check_seed
from lagreach.errors import InputError
from lagreach.types import DIRECTIONS, NOISES, SIGNALS, TRANSPORTS, UNITS


def _choice(default: Any, meaning: str, *, among: tuple[str, ...] = ()) -> Any:
    return dataclasses.field(default=default, metadata={"meaning": meaning, "among": among})


@dataclass(frozen=True)
class MeasureSettings:
    """How a window is measured; signal and noise are those of docs/theory/detection.md."""

    signal: str = _choice(
        "dependence", "dependence (what the data say of a lag) or gradient (the mean gradient)", among=SIGNALS
    )
    direction: str = _choice("matched", "matched (a lag's own mean gradient) or random", among=DIRECTIONS)
    noise: str = _choice("gradient", "gradient (of the whole gradient) or lag (of the lag's own term)", among=NOISES)
    unit: str = _choice("sequence", "sequence or step: what counts as independent", among=UNITS)
    transport: str = _choice("exact", "exact or first-order", among=TRANSPORTS)
    strength: float = _choice(0.05, "share of the target's variance that a dependency should explain")
    error: float = _choice(0.05, "error of the test at every lag, each way")
    blocks: int = _choice(32, "blocks of sequences, at most, within which targets are exchanged together")
    probes: int = _choice(4, "planted dependencies that N is averaged over")
    flips: int = _choice(1999, "patterns of signs in the test")
    seed: int = _choice(0, "seed of pairs, probes and flips")


def with_arguments(settings: MeasureSettings, **arguments: Any) -> MeasureSettings:
    """Put arguments of a call into the settings, but for those that are None; what both say must agree."""
    if not isinstance(settings, MeasureSettings):
        raise InputError(
            "these are no settings",
            got=repr(settings),
            expected="MeasureSettings(...)",
            fix="leave them out, for the usual ones",
        )
    asked = {name: value for name, value in arguments.items() if value is not None}
    usual = MeasureSettings()
    lost = [name for name in asked if getattr(settings, name) not in (getattr(usual, name), asked[name])]
    if lost:
        raise InputError(
            "settings and an argument disagree",
            got=", ".join(f"settings.{name}={getattr(settings, name)!r} and {name}={asked[name]!r}" for name in lost),
            fix=f"say {', '.join(lost)} in one place",
        )
    return replace(settings, **asked)


def meaning(name: str) -> str:
    """What a setting is, in a few words.

    >>> meaning("blocks")
    'blocks of sequences, at most, within which targets are exchanged together'
    """
    return next(field.metadata["meaning"] for field in dataclasses.fields(MeasureSettings) if field.name == name)


def default(name: str) -> Any:
    """Value of a setting that nobody sets."""
    return getattr(MeasureSettings(), name)


def check_settings(settings: MeasureSettings) -> None:
    """Refuse what cannot work before anything is computed."""
    for field in dataclasses.fields(settings):
        value, among = getattr(settings, field.name), field.metadata["among"]
        if among and value not in among:
            raise InputError(f"unknown {field.name}", got=repr(value), expected=" or ".join(among))
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
