"""The README's own numbers: ``python -m docs.readme`` runs its code and rewrites what it prints and how far to trust it.

Trust is told from the stored results: of the second validation study where there is one (results/validation2/summary.json), else
of the first, and of the advice study.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from lagreach.forecasting.track_record import in_a_row, rates

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "results"
TRUST = "<!-- trust: python -m docs.readme -->", "<!-- end of trust -->"
EXAMPLE = re.compile(r"(```python\n)(.*?)(```\n\n```text\n)(.*?)(```)", re.S)


def printed(code: str) -> str:
    """Run code and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    return out.getvalue()


def interval(estimate: dict[str, Any]) -> str:
    """A number with its interval."""
    return f"{estimate['value']:.2f} [{estimate['low']:.2f}, {estimate['high']:.2f}]"


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
    """The study as it is now, and by the definition of a share that it was run with."""
    auroc, linear = summary["auroc"], summary["linear_dependencies"]
    error = summary["median_share_error"]["after_5_percent"]
    met, met_first = (sum(goal["met"] for goal in some["goals"]) for some in (summary, first))
    return [
        f"Forecast, held against {summary['trainings']:,} trainings with known dependencies: of two lags, it puts the one that "
        f"will be learned first with a probability of {interval(auroc['before'])} before training and "
        f"{interval(auroc['after_5_percent'])} after 5 % of it (0.50 is a coin); in {linear['trainings']:,} more on linear "
        f"dependencies, {interval(linear['auroc']['before'])} and {interval(linear['auroc']['after_5_percent'])}. It fails for "
        "products of inputs and for inputs that follow from each other ([study](docs/validation/second.md)).",
        "Share: of lags forecast at half or more, a tenth to half, and less, "
        f"{in_a_row(rates('unlimited', 'before'))} were learned where the forecast came before training, "
        f"{in_a_row(rates('budgeted', 'after_5_percent'))} where it came after 5 % of it and knew the optimiser. "
        f"After 5 % the share it names is off by {interval(error)} in the median. {met} of "
        f"{len(summary['goals'])} goals that were set beforehand were met: use it to compare and to find what stands in the way, "
        "not as a promise. "
        "The share of inputs that follow from each other was defined anew after this study was known; as it was run, it had "
        f"{interval(first['auroc']['before'])} and {interval(first['auroc']['after_5_percent'])}, off by "
        f"{interval(first['median_share_error']['after_5_percent'])}, and met {met_first} goals.",
    ]


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
    head, rest = text.split(TRUST[0])
    return f"{head}{TRUST[0]}\n{trust(results)}\n{TRUST[1]}{rest.split(TRUST[1])[1]}"


if __name__ == "__main__":
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
