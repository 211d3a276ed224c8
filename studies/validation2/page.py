"""The page of the second study and its RESULTS.md: prose from templates, numbers from an `Analysis`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lagreach._util.disk import write_text
from lagreach.study.results import table
from studies.validation.bootstrap import Estimate
from studies.validation.matching import BASELINES
from studies.validation.words import STAGE_WORDS, compared, how_well, shown
from studies.validation2 import figures
from studies.validation2.analysis import GAIN, PRIMARY, READINGS, SHARE_PREDICTORS, Analysis
from studies.validation2.goals import BEFORE, FIVE, judged, label
from studies.validation2.growth_analysis import WAYS, Grown
from studies.validation2.record import KINDS, STAGES, counted
from studies.validation2.returned import RETURNED, UNLIMITED, WITHIN_STEPS
from studies.validation2.summary import interval

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "results" / "validation2" / "first_definition.json"
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


def returned_table(parts: Mapping[str, Analysis]) -> str:
    """What a forecast returns, and the protocol's combination, in each part of the study."""
    rows = []
    for part, analysis in parts.items():
        learned = counted([analysis.rows])["learned_of"]
        of_kind = {KINDS[kind]: learned[kind] for kind in KINDS}
        for name in (*RETURNED, PRIMARY):
            aurocs = [shown(analysis.score(name, stage).auroc) for stage in (BEFORE, FIVE, "early_20")]
            high = [of_kind[name][key][-1] for key in STAGES.values()] if name in of_kind else []
            rates = [f"{yes} of {of}" for yes, of in high] or ["", ""]
            rows.append((label(name), part, *aurocs, shown(analysis.errors[name, FIVE]), *rates))
    headers = (
        "", "trainings", "AUROC before", "after 5 %", "after 20 %", "median error of the share after 5 %",
        "learned of those at half or more, before", "after 5 %",
    )  # fmt: skip
    return "\n".join(table(headers, rows))


def family_table(analysis: Analysis) -> str:
    """AUROC of the combination in each family, that of forecasts after 5 %, and the share learned by number of sequences."""
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
                (UNLIMITED, FIVE),
                (WITHIN_STEPS, FIVE),
                ("n_probe", FIVE),
            )
        ]
        made.append((str(family), *learned, *aurocs))
    ways = ("before", "pilot", "5 %", "20 %", "forecast, 5 %", "told steps, 5 %", "window, 5 %")
    headers = ("family", *(f"learned, N = {n:,}" for n in budgets), *ways)
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
        "combination before",
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


def growth_table(of_parts: Mapping[str, Sequence[Grown]]) -> str:
    """Every way of growth, in each part of the study."""
    rows = [
        (WAYS[g.way], part, shown(g.auroc), shown(g.over_before), shown(g.over_pilot), shown(g.error))
        for way in WAYS
        for part, judged_ways in of_parts.items()
        for g in judged_ways
        if g.way == way
    ]
    return "\n".join(
        table(("growth by", "part", "AUROC", "less before training", "less after the pilot", "median error"), rows)
    )


def render(
    analysis: Analysis,
    template: str,
    linear: Analysis | None = None,
    grown: Mapping[str, Sequence[Grown]] | None = None,
) -> str:
    """Fill a template in; `grown` are the ways of growth in each part of the study."""
    grown = {part: ways for part, ways in (grown or {}).items() if ways}
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
        first=json.loads(FIRST.read_text(encoding="utf-8")) if FIRST.is_file() else None,
        interval=interval,
        series=_series(analysis),
        grown=grown,
        kept=[WAYS[w] for w in WAYS if grown and all(g.helps for ways in grown.values() for g in ways if g.way == w)],
        growth_table=growth_table(grown),
        returned_table=returned_table({"all tasks": analysis} | ({"linear": linear} if linear else {})),
        plain_forecast=UNLIMITED,
        told=WITHIN_STEPS,
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
        order=order,
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


def order(gain: Estimate) -> str:
    """What a difference of AUROC means for the order of lags, in words."""
    if gain.above(0):
        return "becomes better"
    return "becomes worse" if gain.below(0) else "does not become better, as far as can be told"


def _series(analysis: Analysis) -> dict[str, float]:
    """What was said of the real series after 5 %, and what training recovered."""
    rows, scored = analysis.rows, analysis.scored
    of_series = (rows["task"] == "series") & np.isfinite(scored.recovered)
    said = rows.values[FIVE, PRIMARY][of_series] if (FIVE, PRIMARY) in rows.values else np.full(of_series.sum(), np.nan)
    recovered = np.clip(scored.recovered[of_series], 0, 1)
    return {
        "lags": int(of_series.sum()),
        "learned": int(scored.learned[of_series].sum()),
        "said": float(said.mean()) if len(said) else float("nan"),
        "recovered": float(recovered.mean()) if len(recovered) else float("nan"),
    }


def write_results(analysis: Analysis, folder: Path) -> None:
    """Write RESULTS.md into the folder of the tables."""
    write_text(folder / "RESULTS.md", render(analysis, "results.md.j2"))


def write_page(
    analysis: Analysis, linear: Analysis | None, page: Path = PAGE, grown: Mapping[str, Sequence[Grown]] | None = None
) -> None:
    """Write the page, and its figures beside it; `linear` is the part about linear dependencies."""
    figures.draw_all(analysis, page.parent / "figures")
    write_text(page, render(analysis, "second.md.j2", linear, grown))
