"""Shapes of decay: which law an envelope follows, its time scales, and how the window then grows."""

import warnings
from importlib import import_module
from typing import Any

from lagreach.regimes.fits import LawFit, Regimes, fit_regimes
from lagreach.regimes.laws import WindowGrowth, window_growth
from lagreach.regimes.spectrum import Spectrum, TimeScales, spectrum_summary, timescales

__all__ = [
    "LawFit",
    "Regimes",
    "Spectrum",
    "TimeScales",
    "WindowGrowth",
    "fit_regimes",
    "spectrum_summary",
    "timescales",
    "window_growth",
]

_MOVED = {"GrowthCheck", "MonotoneCheck", "SandwichCheck", "check_growth", "check_monotone", "check_sandwich"}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module 'lagreach.regimes' has no attribute {name!r}; it has {', '.join(__all__)}")
    warnings.warn(f"{name} is now in lagreach.papers.livi.lemmas", DeprecationWarning, stacklevel=2)
    return getattr(import_module("lagreach.papers.livi.lemmas"), name)
