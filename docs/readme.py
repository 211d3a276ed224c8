"""The README's own numbers: ``python -m docs.readme`` runs its code and rewrites what it prints and how far to trust it.

It also writes what makes a forecast surer into docs/forecast.md. Trust is told from the stored results: of the second validation
study where there is one (results/validation2/summary.json), else of the first, and of the advice study.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from lagreach.forecasting.track_record import counts, in_a_row, rates

ROOT = Path(__file__).parent.parent
README, FORECAST = ROOT / "README.md", ROOT / "docs" / "forecast.md"
RESULTS = ROOT / "results"
TRUST = "<!-- trust: python -m docs.readme -->", "<!-- end of trust -->"
STAGES = ("before", "after_5_percent")
WAYS = ("without_optimiser", "with_optimiser_and_steps")  # of what `lagreach.forecast` returns
EXAMPLE = re.compile(r"(```python\n)(.*?)(```\n\n```text\n)(.*?)(```)", re.S)


def printed(code: str) -> str:
    """Run code and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    return out.getvalue()


def interval(estimate: dict[str, Any]) -> str:
    """A number with its interval."""
    value, low, high = (
        f"{round(estimate[name], 2) + 0.0:.2f}" for name in ("value", "low", "high")
    )  # zero has no sign
    return f"{value} [{low}, {high}]"


def trust(results: Path = RESULTS) -> str:
    """Three lines with numbers."""
    second = results / "validation2"
    summaries = [second / name for name in ("summary.json", "first_definition.json")]
    made = all(summary.exists() for summary in summaries)
    lines = _of_forecast(*(json.loads(s.read_text()) for s in summaries)) if made else _of_window(results)
    advice = json.loads((results / "advice" / "analysis.json").read_text())["overall"]
    cases = advice["cases"]
    lines.append(
        f"Advice: in {advice['situations']} situations that training again does not mend ({advice['again']} of "
        f"{cases} cases), following it "
        f"recovered the lag in **{advice['advised']} of {cases}** ({100 * advice['advised'] / cases:.0f} %), a "
        "random change of the same size in "
        f"{advice['random']} ([study](docs/advice/results.md))."
    )
    return "\n".join(f"- {line}" for line in lines)


def _of_forecast(summary: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """What `lagreach.forecast` returns, in the study as it is now and by the definition of a share that it was run with.

    The goals are those of the protocol, which scored another combination.
    """
    linear = summary["linear_dependencies"]
    met, met_first = (sum(goal["met"] for goal in some["goals"]) for some in (summary, first))
    plain, told = WAYS
    as_run = in_a_row([f"{first['returned'][way]['auroc'][stage]['value']:.2f}" for way in WAYS for stage in STAGES])
    return [
        f"Forecast, held against {summary['trainings']:,} trainings with known dependencies: of two lags, it puts the one that "
        f"will be learned first with a probability of {_aurocs(summary, plain, ' before training', ' after 5 % of it')} "
        f"(0.50 is a coin); told the optimiser and the steps, {_aurocs(summary, told)}. In {linear['trainings']:,} more on "
        f"linear dependencies: {_aurocs(linear, plain)}; told them, {_aurocs(linear, told)}. It fails for "
        "products of inputs and for inputs that follow from each other ([study](docs/validation/second.md)).",
        "Share: of lags forecast at half or more, a tenth to half, and less, "
        f"{in_a_row(rates('unlimited', 'before'))} were learned where the forecast came before training, "
        f"{in_a_row(rates('budgeted', 'after_5_percent'))} where it came after 5 % of it and was told the optimiser. "
        f"After 5 % the share it names is off by {_error(summary, plain)} in the median, told the optimiser by "
        f"{_error(summary, told)}: use it to compare and to find what stands in the way, not as a promise. Of "
        f"{len(summary['goals'])} goals set beforehand for another combination of these shares {met} was met. The share of "
        "inputs that follow from each other was defined anew after this study was known; as it was run, the first four numbers "
        f"were {as_run}, and {met_first} goals were met.",
    ]


def _aurocs(numbers: dict[str, Any], way: str, *words: str) -> str:
    auroc = [interval(numbers["returned"][way]["auroc"][stage]) for stage in STAGES]
    return " and ".join(number + word for number, word in zip(auroc, words or ("", ""), strict=True))


def _error(numbers: dict[str, Any], way: str) -> str:
    return interval(numbers["returned"][way]["median_share_error"]["after_5_percent"])


def surer(results: Path = RESULTS) -> str:
    """A table of what telling a forecast the optimiser and the steps changes."""
    numbers = json.loads((results / "validation2" / "summary.json").read_text(encoding="utf-8"))
    learned = counts()["learned_of"]
    lines = [
        "| a forecast | told nothing of the optimiser | told `optimiser` and `steps` | difference |",
        "|---|---|---|---|",
    ]
    for stage, words in zip(STAGES, ("before training", "after 5 %"), strict=True):
        high = (learned[kind][stage][-1] for kind in ("unlimited", "budgeted"))
        cells = " | ".join(f"{yes} of {of} ({100 * yes / of:.0f} %)" for yes, of in high)
        lines.append(f"| {words}: learned, of lags forecast at half or more | {cells} | |")
    for part, found in (("", numbers), (", linear dependencies", numbers["linear_dependencies"])):
        for stage, words in zip(STAGES, ("before training", "after 5 %"), strict=True):
            cells = " | ".join(interval(found["returned"][way]["auroc"][stage]) for way in WAYS)
            gain = interval(found["returned"]["auroc_with_less_without"][stage])
            lines.append(f"| {words}{part}: order of lags (AUROC) | {cells} | {gain} |")
    return "\n".join(lines)


def _of_window(results: Path) -> list[str]:
    analysis = json.loads((results / "validation" / "analysis.json").read_text())
    scores = {(score["predictor"], score["stage"]): score["auroc"] for score in analysis["scores"]}
    stages = list(dict.fromkeys(score["stage"] for score in analysis["scores"]))
    first, last = (scores["n_probe", stage] for stage in (stages[0], stages[-1]))
    return [
        f"Reach, held against {analysis['counts']['trainings']:,} trainings with known lags: of two lags, it puts "
        "the one that will be learned first with "
        f"a probability of {interval(first)} before training and {interval(last)} after it (0.50 is a coin; "
        "[study](docs/validation/index.md)).",
        "Use it to compare networks and to find what stands in the way, not as a count of sequences to rely on.",
    ]


def readme(text: str, results: Path = RESULTS) -> str:
    """The README with what its code prints, and with the numbers of the studies."""
    text = EXAMPLE.sub(lambda match: "".join((*match.group(1, 2, 3), printed(match[2]), match[5])), text)
    return marked(text, trust(results))


def marked(text: str, numbers: str) -> str:
    """The text with other numbers between its marks."""
    head, rest = text.split(TRUST[0])
    return f"{head}{TRUST[0]}\n{numbers}\n{TRUST[1]}{rest.split(TRUST[1])[1]}"


if __name__ == "__main__":
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    FORECAST.write_text(marked(FORECAST.read_text(encoding="utf-8"), surer()), encoding="utf-8")
