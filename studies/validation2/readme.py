"""Three lines about what the forecast is worth, for a README: ``python -m studies.validation2.readme``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SUMMARY = Path(__file__).parents[2] / "results" / "validation2" / "summary.json"


def interval(estimated: dict[str, float | None]) -> str:
    """A number with its interval.

    >>> interval({"value": 0.712, "low": 0.5, "high": 0.8349})
    '0.71 [0.50, 0.83]'
    """
    if estimated["value"] is None:
        return "not measurable"
    if estimated["low"] is None or estimated["high"] is None:
        return f"{estimated['value']:.2f}"
    return f"{estimated['value']:.2f} [{estimated['low']:.2f}, {estimated['high']:.2f}]"


def lines(summary: dict[str, Any]) -> list[str]:
    """Three lines, every number of which stands in ``summary.json``."""
    auroc, window, best = summary["auroc"], summary["window"], summary["best_simple"]
    error, needed = summary["median_share_error"]["after_5_percent"], summary["sequences_needed"]["n_forecast"]
    within = needed["after_5_percent"]["within_factor_3"]["value"] or 0.0
    met = sum(goal["met"] for goal in summary["goals"])
    ranks = (
        f"AUROC {interval(auroc['before'])} before training, {interval(auroc['after_5_percent'])} after 5 % of it and "
        f"{interval(auroc['after_20_percent'])} after 20 %"
    )
    others = " and ".join(interval(window[stage]) for stage in ("before", "after_5_percent"))
    return [
        f"Held against {summary['trainings']:,} trainings on {len(summary['tasks'])} tasks with known dependencies, by a "
        f"protocol that was written first, the forecast tells lags that will be learned from others with {ranks}; the window "
        f"N(l) has {others}, the best guess without a network {interval(best['before']['auroc'])}.",
        f"The share it names after 5 % is off by {interval(error)} in the median, and its number of sequences is within a factor "
        f"of 3 for {100 * within:.0f} % of the lags that samples limit: an order, not yet a count; {met} of "
        f"{len(summary['goals'])} goals were met.",
        _third(summary),
    ]


def _third(summary: dict[str, Any]) -> str:
    """Where it fails and where not; the part about linear dependencies says so, as far as it was run."""
    fails = (
        "It fails for products of inputs (parity), and does not order the lags of a real series, of which hardly any were "
        "learned."
    )
    if "linear_dependencies" not in summary:
        return fails
    linear = summary["linear_dependencies"]
    auroc, window = linear["auroc"], linear["window"]
    return (
        f"{fails} For linear dependencies on other inputs, {linear['trainings']:,} more trainings on fresh conditions gave "
        f"{interval(auroc['before'])} before training, {interval(auroc['after_noise_free_pilot'])} after a short pilot on the "
        f"dependency alone and {interval(auroc['after_5_percent'])} after 5 %; the window {interval(window['before'])} and "
        f"{interval(window['after_5_percent'])}."
    )


def main() -> None:
    """Print the lines."""
    print("\n".join(lines(json.loads(SUMMARY.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
