"""The page of the validation study: prose from a template, numbers and verdicts from an `Analysis` by fixed rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lagreach._util.disk import write_text
from lagreach.study.results import table
from studies.validation import ablations, figures, words
from studies.validation.analysis import (
    THRESHOLD,
    WINDOW,
    Analysis,
    analyse,
    save_analysis,
)
from studies.validation.bootstrap import NOT_MEASURABLE
from studies.validation.matching import BASELINES
from studies.validation.predictor_scores import GROUPS, LIMITS, NO_CAPACITY_LIMIT
from studies.validation.tails import CLOSE_SHIFT, NEAR, NEAREST
from studies.validation.verdicts import (
    GUESS,
    ablation_sentence,
    best_simple,
    stage_sentences,
    tail_sentences,
    uses,
    warnings,
)
from studies.validation.words import label, number, percent, shown

LISTS = {"good": "What it is good for", "poor": "What it is not good for", "open": "What this study leaves open"}


def score_table(analysis: Analysis, stage: str) -> list[str]:
    """Scores of all predictors at one stage, in a fixed order."""
    first = analysis.scored.rows.stages[0]
    scores = [s for s in analysis.scores if s.stage == stage and (stage == first or s.predictor not in BASELINES)]
    headers = (
        "predictor",
        "AUROC",
        "lags of one network",
        "networks, same lag",
        "Brier",
        "at its word",
        "rank",
        "never / refused / none",
    )
    return table(
        headers,
        [
            (
                label(s.predictor),
                shown(s.auroc),
                shown(s.auroc_lags),
                shown(s.auroc_networks),
                shown(s.brier),
                "" if np.isnan(s.brier_claimed.value) else shown(s.brier_claimed),
                shown(s.spearman),
                f"{s.never} / {s.refused} / {s.absent}",
            )
            for s in scores
        ],
    )


def by_task_table(analysis: Analysis) -> list[str]:
    """AUROC of the windows and the guess in each task, before training and after."""
    stages = analysis.scored.rows.stages
    picked = [(p, s) for s in dict.fromkeys((stages[0], stages[-1])) for p in WINDOW] + [(GUESS, stages[0])]
    scores = [score for p, s in picked if (score := analysis.score(p, s)) is not None]
    tasks = list(analysis.counts.learned_by_task)
    rows = [
        (
            label(s.predictor),
            "" if s.predictor in BASELINES else words.STAGE_WORDS[s.stage],
            *(shown(s.by_task.get(task, NOT_MEASURABLE)) for task in tasks),
        )
        for s in scores
    ]
    learned = ("share learned", "", *(percent(analysis.counts.learned_by_task[task]) for task in tasks))
    return table(("predictor", "stage", *tasks), [*rows, learned])


def calibration_table(analysis: Analysis) -> list[str]:
    """Line and offset of every predictor in sequences before training, and of the windows later on."""
    first = analysis.scored.rows.stages[0]
    headers = ("predictor", "stage", "curves (within, below, above)", "never", "slope", "intercept", "N found / N said")
    rows = [
        (
            label(c.predictor),
            words.STAGE_WORDS[c.stage],
            f"{c.curves} ({c.seen}, {c.below}, {c.above})",
            f"{c.never}" + (f", {percent(c.never_but_learned.value)} learned" if c.never else ""),
            shown(c.slope),
            shown(c.intercept),
            words.factor(c.offset),
        )
        for c in analysis.calibrations
        if c.group == NO_CAPACITY_LIMIT and (c.stage == first or c.predictor in WINDOW)
    ]
    return table(headers, rows)


def limit_table(analysis: Analysis) -> list[str]:
    """The windows before training, split by which limit binds."""
    stage = analysis.scored.rows.stages[0]
    rows = []
    for predictor in WINDOW:
        score = analysis.score(predictor, stage)
        for group in GROUPS:
            c = analysis.calibration(predictor, stage, group)
            if c is None or score is None:
                continue
            within = score.auroc if group == "all" else score.by_limit[group]
            rows.append(
                (
                    label(predictor),
                    words.LIMIT_WORDS[group],
                    str(c.curves),
                    percent(c.promised.value),
                    shown(c.kept),
                    shown(within),
                    shown(c.slope),
                    words.factor(c.offset),
                )
            )
    headers = ("predictor", "limit", "curves", "promised", "kept", "AUROC", "slope", "N found / N said")
    return table(headers, rows)


def tail_table(analysis: Analysis) -> list[str]:
    """Shifts and exponents by tail index, for plain and clipped training."""
    headers = (
        "training",
        "alpha",
        "trainings",
        "learned",
        "exponent",
        "predicted",
        "",
        "shift",
        "predicted",
        "",
        "far lag",
    )
    rows = [
        (
            "clipped" if e.clipped else "plain",
            f"{e.alpha:g}",
            str(e.trainings),
            percent(e.learned),
            shown(e.exponent),
            number(e.predicted_exponent),
            e.verdict,
            *(("reference", "", "") if e.alpha == 2 else (shown(e.shift), number(e.predicted_shift), e.shift_verdict)),
            f"{shown(e.far)} (predicted {number(e.predicted_far)})",
        )
        for e in analysis.tails
    ]
    return table(headers, rows)


def ablation_table(analysis: Analysis) -> list[str]:
    """Gain of every variant at every stage, and what the rule says."""
    rows = [
        (
            a.predictor,
            f"{a.factor} = {a.level}",
            a.against,
            words.STAGE_WORDS[a.stage],
            str(a.rows),
            shown(a.gain),
            a.verdict,
        )
        for a in analysis.ablations
    ]
    return table(("predictor", "variant", "against", "stage", "rows", "difference of AUROC", "verdict"), rows)


def robustness_table(analysis: Analysis) -> list[str]:
    """AUROC of the windows under other readings of "learned", at the first and the last stage."""
    stages = analysis.scored.rows.stages
    ends = [(p, s) for p in WINDOW for s in dict.fromkeys((stages[0], stages[-1]))]
    aurocs = {(r.reading, r.predictor, r.stage): r.auroc for r in analysis.robustness}
    rows = [
        (reading, *(shown(aurocs.get((reading, *end), NOT_MEASURABLE)) for end in ends))
        for reading in dict.fromkeys(r.reading for r in analysis.robustness)
    ]
    return table(("learned means", *(f"`{p}` {words.STAGE_WORDS[s]}" for p, s in ends)), rows)


def page_text(analysis: Analysis) -> str:
    """The whole page in Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("studies.validation"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML
    )
    stages = analysis.scored.rows.stages
    made = uses(analysis)
    text = environment.get_template("index.md.j2").render(
        analysis=analysis,
        counts=analysis.counts,
        stages=stages,
        first=stages[0],
        windows=[s for p in WINDOW if (s := analysis.score(p, stages[0])) is not None],
        guess=analysis.score(GUESS, stages[0]),
        lists={title: [u.sentence for u in made if u.judgement == key] for key, title in LISTS.items()},
        pictures=figures.drawn(analysis),
        caption=figures.caption,
        words=words,
        limits=LIMITS,
        threshold=THRESHOLD,
        near=NEAR,
        nearest=NEAREST,
        close_shift=CLOSE_SHIFT,
        worth=ablations.WORTH_CHANGING,
        tables=_tables(analysis),
        tail_sentences=tail_sentences(analysis),
        stage_sentences=stage_sentences(analysis),
        ablation_sentence=ablation_sentence(analysis),
        warnings=warnings(analysis),
        simple=best_simple(analysis, stages[0]),
    )
    return text.rstrip() + "\n"


def _tables(analysis: Analysis) -> dict[str, Any]:
    made = {
        "by_task": by_task_table(analysis),
        "calibration": calibration_table(analysis),
        "limits": limit_table(analysis),
        "tails": tail_table(analysis),
        "ablations": ablation_table(analysis),
        "robustness": robustness_table(analysis),
    }
    joined: dict[str, Any] = {name: "\n".join(lines) for name, lines in made.items()}
    joined["scores"] = {s: "\n".join(score_table(analysis, s)) for s in analysis.scored.rows.stages}
    return joined


def summarise(
    folder: str | Path, page: str | Path | None = None, seed: int = 0, tails: str | Path | None = None
) -> Analysis:
    """Analyse a folder, with the part about `tails`; write analysis.json into it, and the page with its figures.

    Without `page`, page and figures go into the folder too.
    """
    folder = Path(folder)
    analysis = analyse(folder, seed, tails)
    save_analysis(analysis, folder / "analysis.json")
    target = folder / "index.md" if page is None else Path(page)
    figures.draw_all(analysis, target.parent / "figures")
    write_text(target, page_text(analysis))
    return analysis
