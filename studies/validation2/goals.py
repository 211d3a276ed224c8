"""The goals of the protocol, each held against the numbers of its own predictor."""

from __future__ import annotations

from dataclasses import dataclass

from studies.validation.bootstrap import Estimate
from studies.validation.words import label as first_label
from studies.validation.words import percent, shown
from studies.validation2.analysis import FACTOR, PRIMARY, Analysis
from studies.validation2.returned import UNLIMITED, WITHIN_STEPS

BEFORE, PILOT, FIVE = "init", "pilot", "early_5"
LABELS = {
    UNLIMITED: "**forecast**",
    WITHIN_STEPS: "**forecast, told optimiser and steps**",
    PRIMARY: "protocol's combination",
    "readable": "readable share",
    "reachable": "reachable share",
    "budgeted": "share within the budget of steps",
    "readable_data": "readable share of the data's own targets",
    "reachable_data": "reachable share of the data's own targets",
    "share_now": "share that the output has already",
    "n_readable": "sequences for half by the readout",
    "n_reachable": "sequences for half by all weights",
    "n_forecast": "sequences for half of the protocol's combination",
}


def label(predictor: str) -> str:
    """Name of a predictor in words."""
    return LABELS.get(predictor, first_label(predictor))


def plain_label(predictor: str) -> str:
    """Name of a predictor without Markdown."""
    return label(predictor).replace("`", "").replace("*", "")


@dataclass(frozen=True)
class Goal:
    """What was wanted, what was obtained, and whether that is enough."""

    name: str
    wanted: str
    obtained: str
    met: bool


def goals(analysis: Analysis) -> tuple[Goal, ...]:
    """All goals, in the order of the protocol."""
    before, five = (analysis.score(PRIMARY, stage) for stage in (BEFORE, FIVE))
    error, needed = analysis.errors[PRIMARY, FIVE], analysis.needed_at("n_forecast", FIVE)
    return (
        _auroc("AUROC before training", before.auroc, 0.85, 0.75),
        _auroc("AUROC after 5 %", five.auroc, 0.93, 0.85),
        _better(analysis, BEFORE, "better than every simple number and guess before training"),
        _better(analysis, FIVE, "better than every simple number and guess after 5 %"),
        Goal(
            "AUROC between networks at the same task, lag and N, after 5 %",
            "at least 0.90",
            shown(five.networks),
            five.networks.value >= 0.9,
        ),
        Goal("median error of the forecast share after 5 %", "at most 0.05", shown(error), error.value <= 0.05),
        Goal(
            "sequences needed after 5 %, where samples bind",
            f"within a factor of {FACTOR:g} in the median",
            f"within it for {percent(needed.within.value)} of {needed.curves} curves; said to be never for {needed.never}",
            needed.within.value >= 0.5,
        ),
    )


def is_linear(analysis: Analysis) -> bool:
    """Whether this is the part about linear dependencies, which has claims of its own."""
    return not {"parity", "series"} & set(analysis.rows["task"].tolist())


def judged(analysis: Analysis) -> tuple[Goal, ...]:
    """The goals of the study, or the claims of its part about linear dependencies."""
    return linear_claims(analysis) if is_linear(analysis) else goals(analysis)


def linear_claims(analysis: Analysis) -> tuple[Goal, ...]:
    """What the part about linear dependencies was to show, as the protocol has it."""
    before, five = (analysis.score(PRIMARY, stage).auroc for stage in (BEFORE, FIVE))
    gain = analysis.differences[PRIMARY, PRIMARY, PILOT]
    budgeted, forecast = (analysis.errors[name, FIVE] for name in ("budgeted", PRIMARY))
    return (
        Goal(
            "the forecast ranks linear dependencies",
            "lower ends of AUROC at least 0.70 before training and 0.75 after 5 %",
            f"{shown(before)} and {shown(five)}",
            before.measured and five.measured and before.low >= 0.70 and five.low >= 0.75,
        ),
        Goal(
            "a noise-free pilot helps before training",
            "interval of the difference of AUROC above 0",
            f"{shown(analysis.score(PRIMARY, PILOT).auroc)}, difference {shown(gain)}",
            gain.above(0),
        ),
        Goal(
            "the budgeted share is the better number",
            "median error after 5 % at most 0.05, and below that of the forecast",
            f"{shown(budgeted)}, against {shown(forecast)}",
            budgeted.value <= 0.05 and budgeted.value < forecast.value,
        ),
    )


def _auroc(name: str, estimated: Estimate, least: float, lower: float) -> Goal:
    met = estimated.measured and estimated.value >= least and estimated.low >= lower
    return Goal(name, f"at least {least:g}, lower end at least {lower:g}", shown(estimated), met)


def not_beaten(analysis: Analysis, stage: str) -> list[str]:
    """Simple predictors that the protocol's combination is not shown to be better than."""
    return [o for o in analysis.simple(stage) if not analysis.differences[PRIMARY, o, stage].above(0)]


def _better(analysis: Analysis, stage: str, name: str) -> Goal:
    open_ones, count = not_beaten(analysis, stage), len(analysis.simple(stage))
    best = analysis.best_simple(stage)
    gain = analysis.differences[PRIMARY, best, stage]
    outcome = f"of {count}, better than {count - len(open_ones)}; against the best of them ({plain_label(best)}) {shown(gain)}"
    return Goal(name, "intervals of all differences above 0", outcome, not open_ones)
