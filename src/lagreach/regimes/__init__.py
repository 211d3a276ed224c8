"""Shapes of decay: which law an envelope follows, its time scales, and how the window then grows."""

from lagreach.regimes.fits import LawFit, Regimes, fit_regimes
from lagreach.regimes.laws import WindowGrowth, window_growth
from lagreach.regimes.lemmas import (
    GrowthCheck,
    MonotoneCheck,
    SandwichCheck,
    check_growth,
    check_monotone,
    check_sandwich,
)
from lagreach.regimes.spectrum import Spectrum, TimeScales, spectrum_summary, timescales

__all__ = [
    "GrowthCheck",
    "LawFit",
    "MonotoneCheck",
    "Regimes",
    "SandwichCheck",
    "Spectrum",
    "TimeScales",
    "WindowGrowth",
    "check_growth",
    "check_monotone",
    "check_sandwich",
    "fit_regimes",
    "spectrum_summary",
    "timescales",
    "window_growth",
]
