"""The few sentences about validation that another page carries, between two marks; the numbers are those of the page."""

from __future__ import annotations

from pathlib import Path

from lagreach._util.disk import write_text
from lagreach.errors import InputError
from studies.validation.analysis import Analysis
from studies.validation.predictor_scores import NO_CAPACITY_LIMIT
from studies.validation.tails import GAUSSIAN
from studies.validation.verdicts import GUESS
from studies.validation.words import CLOSE, STAGE_WORDS, calibration_judgement, compared, factor, how_well, shown

BEGIN = "<!-- validation: python -m studies.validation results/validation --readme docs/window.md -->"
END = "<!-- end of validation -->"


def readme_text(analysis: Analysis, predictor: str = "n_probe") -> str:
    """What the window was good for, in a short paragraph."""
    stages = analysis.scored.rows.stages
    first, last = analysis.score(predictor, stages[0]), analysis.score(predictor, stages[-1])
    line = analysis.calibration(predictor, stages[0], NO_CAPACITY_LIMIT)
    if first is None or last is None:
        return "This was not measured."
    parts = [
        f"Held against {analysis.counts.trainings:,} trainings on tasks with known lags: {STAGE_WORDS[stages[0]]}, N(l) for a "
        f"planted dependency tells the lags that will be learned from the others {how_well(first.auroc)} "
        f"(AUROC {shown(first.auroc)})",
    ]
    guess, gain = analysis.score(GUESS, stages[0]), analysis.difference(predictor, GUESS, stages[0])
    if guess is not None:
        parts[0] += f", which {compared(gain)} a guess from sequences / lag alone ({shown(guess.auroc)})"
    parts[0] += "."
    parts.append(
        f"{STAGE_WORDS[stages[-1]].capitalize()} it does so {how_well(last.auroc)} ({shown(last.auroc)}); between networks, at "
        f"the same lag, with {shown(first.auroc_networks)} before and {shown(last.auroc_networks)} after."
    )
    if line is not None:
        trusted = calibration_judgement(line.offset, line.spread) == "good"
        verdict = f"within a factor of {10**CLOSE:.1f}" if trusted else "so it is not a count to rely on"
        parts.append(f"Lags were learned at {factor(line.offset)} times the N predicted before training, {verdict}.")
    verdicts = [effect.verdict for effect in analysis.tails if effect.alpha != GAUSSIAN]
    if verdicts:
        counts = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts))
        parts.append(f"Under heavy-tailed noise, the exponent of N was, of {len(verdicts)} cases, {counts}.")
    return " ".join(parts)


def write_readme(path: Path, analysis: Analysis) -> None:
    """Put the paragraph between its marks."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InputError("this file has no place for the paragraph", got=str(path), expected=f"{BEGIN} ... {END}")
    head, rest = text.split(BEGIN)
    write_text(path, f"{head}{BEGIN}\n{readme_text(analysis)}\n{END}{rest.split(END)[1]}")
