"""What the page calls things, and the rules by which its sentences follow from numbers."""

from __future__ import annotations

import math

from studies.validation.bootstrap import Estimate

STAGE_WORDS = {
    "init": "before training",
    "pilot": "after a noise-free pilot",
    "early_1": "after 1 % of the training",
    "early_5": "after 5 % of the training",
    "early_20": "after 20 % of the training",
    "end": "after the training",
}
LABELS = {
    "n_probe": "window, planted dependency (`n_probe`)",
    "n_data": "window, dependency in the data (`n_data`)",
    "paper_window": "the paper's first-order recipe",
    "n_gradient": "window with the mean gradient as signal",
    "n_lag_noise": "window with the noise of the lag alone",
    "tau_max": "longest time scale / lag",
    "gradient_ratio": "gradient at the lag / at lag 1",
    "lyapunov": "growth rate x lag (Lyapunov)",
    "capacity": "number of units / lag",
    "half_life": "gate half-life / lag",
    "more_data": "guess: the more data the better",
    "short_lag": "guess: the shorter the lag the better",
    "data_per_lag": "guess: sequences / lag",
}
LIMIT_WORDS = {
    "all": "all curves",
    "no capacity limit": "samples or optimisation",
    "samples": "samples (learned with enough of them)",
    "optimisation": "optimisation (not learned at the largest N)",
    "capacity": "capacity (more lags than units can hold)",
}
GOOD, FAIR = 0.8, 0.7  # AUROC
CLOSE = 0.5  # decades
RELIABLE = 0.9  # share of promises kept


def label(predictor: str, plain: bool = False) -> str:
    """Name of a predictor in words; `plain` without Markdown."""
    name = LABELS.get(predictor, predictor)
    return name.replace("`", "") if plain else name


def number(value: float, digits: int = 2) -> str:
    """A number in words or digits; zero has no sign."""
    return "none" if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}"


def percent(value: float) -> str:
    """A share in percent."""
    return "none" if math.isnan(value) else f"{value:.0%}".replace("%", " %")


def shown(estimate: Estimate) -> str:
    """An estimate with its interval, as it stands in tables and sentences."""
    if math.isnan(estimate.value):
        return "not measurable"
    if not estimate.measured:
        return f"{number(estimate.value)} (no interval)"
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def factor(estimate: Estimate) -> str:
    """An offset in decades as a factor with its interval."""
    if math.isnan(estimate.value):
        return "not measurable"
    values = [f"{10**v:.2g}" for v in (estimate.value, estimate.low, estimate.high) if not math.isnan(v)]
    return values[0] if len(values) == 1 else f"{values[0]} [{values[1]}, {values[2]}]"


def how_well(estimate: Estimate) -> str:
    """An AUROC in words, by its whole interval."""
    if not estimate.measured:
        return "in a way that could not be measured"
    if estimate.low >= 0.9:
        return "very well"
    if estimate.low >= GOOD:
        return "well"
    if estimate.low >= FAIR:
        return "fairly well"
    if estimate.low > 0.5:
        return "better than chance, but not reliably"
    return "worse than chance" if estimate.high < 0.5 else "no better than chance, as far as can be told"


def compared(gain: Estimate) -> str:
    """A difference of AUROC in words."""
    if not gain.measured:
        return "could not be compared with"
    if gain.above(0):
        return "is better than"
    return "is worse than" if gain.below(0) else "cannot be told from"


def judgement(estimate: Estimate, border: float) -> str:
    """Which list a use belongs to: "good" or "poor" if the whole interval is on one side of a border, else "open"."""
    if estimate.above(border):
        return "good"
    return "poor" if estimate.below(border) else "open"


def calibration_judgement(offset: Estimate, spread: Estimate) -> str:
    """Whether numbers of sequences can be taken at face value: within half a decade, in mean and in spread."""
    if not (offset.measured and spread.measured):
        return "open"
    inside = offset.low >= -CLOSE and offset.high <= CLOSE and spread.high <= CLOSE
    outside = offset.above(CLOSE) or offset.below(-CLOSE) or spread.above(CLOSE)
    return "good" if inside else "poor" if outside else "open"
