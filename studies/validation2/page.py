"""The page of the second study and its RESULTS.md: prose from templates, numbers from an `Analysis`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lagreach._util.disk import write_text
from lagreach.study.results import table
from studies.validation.matching import BASELINES
from studies.validation.words import STAGE_WORDS, compared, how_well, shown
from studies.validation2 import figures
from studies.validation2.analysis import GAIN, PRIMARY, READINGS, SHARE_PREDICTORS, Analysis
from studies.validation2.goals import BEFORE, FIVE, judged, label

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "validation2", ROOT / "docs" / "validation" / "second.md"


def goal_table(analysis: Analysis) -> str:
    """Goals, what was found, and whether they are met."""
    rows = [(goal.name, goal.wanted, goal.obtained, "met" if goal.met else "**missed**") for goal in judged(analysis)]
    return "\n".join(table(("goal", "wanted", "found", ""), rows))


def score_table(analysis: Analysis, stage: str) -> str:
    """All predictors at one stage."""
    first = analysis.rows.stages[0]
    scores = [s for s in analysis.scores if s.stage == stage and (stage == first or s.predictor not in BASELINES)]
    rows = []
    for s in scores:
        error = analysis.errors.get((s.predictor, stage))
        numbers = (shown(s.auroc), shown(s.networks), shown(s.lags), "" if error is None else shown(error))
        rows.append((label(s.predictor), *numbers, f"{s.never} / {s.refused}"))
    headers = ("predictor", "AUROC", "networks, same lag", "lags of one network", "median error", "never / refused")
    return "\n".join(table(headers, rows))


def family_table(analysis: Analysis) -> str:
    """AUROC in each family, and the share learned there by number of sequences."""
    rows, scored = analysis.rows, analysis.scored
    budgets = np.unique(rows["sequences"])
    made = []
    for family in np.unique(rows["task"]):
        of_family = rows["task"] == family
        learned = [
            f"{np.average(scored.learned[of_family & (rows['sequences'] == n)]):.0%}".replace("%", " %")
            for n in budgets
        ]
        aurocs = [
            f"{analysis.by_family[p, s, str(family)].value:.2f}"
            for p, s in (
                (PRIMARY, BEFORE),
                (PRIMARY, "pilot"),
                (PRIMARY, FIVE),
                (PRIMARY, "early_20"),
                ("n_probe", FIVE),
            )
        ]
        made.append((str(family), *learned, *aurocs))
    headers = ("family", *(f"learned, N = {n:,}" for n in budgets), "before", "pilot", "5 %", "20 %", "window, 5 %")
    return "\n".join(table(headers, made))


def reading_table(analysis: Analysis) -> str:
    """AUROC under other readings."""
    rows = []
    for reading in READINGS:
        aurocs = [analysis.readings[reading, PRIMARY, stage] for stage in (BEFORE, "pilot", FIVE, "early_20")]
        window = analysis.readings[reading, "n_probe", BEFORE]
        when = "in the protocol" if reading == GAIN else "after the run"
        rows.append((reading, when, *(shown(e) for e in aurocs), shown(window)))
    headers = (
        "learned means",
        "thought of",
        "forecast before",
        "after the pilot",
        "after 5 %",
        "after 20 %",
        "window before",
    )
    return "\n".join(table(headers, rows))


def needed_table(analysis: Analysis) -> str:
    """Sequences found against sequences said."""
    rows = [
        (
            label(n.predictor),
            STAGE_WORDS[n.stage],
            f"{n.never} of {n.curves}",
            shown(n.within),
            "infinite" if np.isinf(n.distance.value) else shown(n.distance),
        )
        for n in analysis.needed
        if n.stage in (BEFORE, "pilot", FIVE)
    ]
    return "\n".join(
        table(("predictor", "stage", "said to be never", "within a factor of 3", "median distance, decades"), rows)
    )


def render(analysis: Analysis, template: str, linear: Analysis | None = None) -> str:
    """Fill a template in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("studies.validation2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML
    )
    rows = analysis.rows
    text = environment.get_template(template).render(
        analysis=analysis,
        goals=judged(analysis),
        linear=linear,
        linear_table="" if linear is None else goal_table(linear),
        linear_families="" if linear is None else family_table(linear),
        count=lambda shown_rows, name: len(np.unique(shown_rows[name])),
        tasks=len(np.unique(rows["task_name"])),
        primary=PRIMARY,
        before=BEFORE,
        five=FIVE,
        trainings=len(np.unique(rows["training"])),
        conditions=len(np.unique(rows["condition"])),
        learned=float(np.average(analysis.scored.learned, weights=analysis.scored.weights)),
        stages=rows.stages,
        stage_words=STAGE_WORDS,
        label=label,
        shown=shown,
        compared=compared,
        how_well=how_well,
        goal_table=goal_table(analysis),
        family_table=family_table(analysis),
        reading_table=reading_table(analysis),
        needed_table=needed_table(analysis),
        score_tables={stage: score_table(analysis, stage) for stage in rows.stages},
        caption=figures.caption,
        error=analysis.errors,
        shares=SHARE_PREDICTORS,
        split="without parity and series",
    )
    return text.rstrip() + "\n"


def write_results(analysis: Analysis, folder: Path) -> None:
    """Write RESULTS.md into the folder of the tables."""
    write_text(folder / "RESULTS.md", render(analysis, "results.md.j2"))


def write_page(analysis: Analysis, linear: Analysis | None, page: Path = PAGE) -> None:
    """Write the page, and its figures beside it; `linear` is the part about linear dependencies."""
    figures.draw_all(analysis, page.parent / "figures")
    write_text(page, render(analysis, "second.md.j2", linear))
