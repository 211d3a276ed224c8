"""Sentences of the page that depend on how the study came out, each chosen by a fixed rule from its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from studies.validation import ablations, words
from studies.validation.analysis import WINDOW, Analysis
from studies.validation.bootstrap import Estimate
from studies.validation.matching import BASELINES
from studies.validation.predictor_scores import LIMITS, NO_CAPACITY_LIMIT, PredictorScore
from studies.validation.statistics import RANKED
from studies.validation.tails import TailEffect
from studies.validation.words import label, number, shown

GUESS = "data_per_lag"  # what can be said without looking at a network
FAR = 1.0  # decades between N found and N said that call for a warning


@dataclass(frozen=True)
class Use:
    """One thing that a window might be used for, and which list it belongs to."""

    judgement: str
    sentence: str


def uses(analysis: Analysis) -> list[Use]:
    """Uses of the window before training, judged one by one."""
    stage = analysis.scored.rows.stages[0]
    judged: list[Use] = []
    for predictor in WINDOW:
        score = analysis.score(predictor, stage)
        if score is None:
            continue
        judged += _ranking_uses(analysis, score)
        judged += _number_uses(analysis, predictor, stage)
    return judged


def _ranking_uses(analysis: Analysis, score: PredictorScore) -> Iterable[Use]:
    name = label(score.predictor)
    questions = {
        "whether a lag will be learned from N sequences, over all tasks, networks and N": score.auroc,
        "which lags of one network will be learned": score.auroc_lags,
        "which of several networks will learn a given lag from the same N": score.auroc_networks,
    }
    for question, estimate in questions.items():
        yield Use(words.judgement(estimate, words.FAIR), f"Telling {question}: {name}, AUROC {shown(estimate)}.")
    gain = analysis.difference(score.predictor, GUESS, score.stage)
    yield Use(
        words.judgement(gain, 0.0),
        f"Saying more than a guess from sequences / lag alone: {name} {words.compared(gain)} the guess "
        f"(difference of AUROC {shown(gain)}).",
    )


def _number_uses(analysis: Analysis, predictor: str, stage: str) -> Iterable[Use]:
    name, free = label(predictor), analysis.calibration(predictor, stage, NO_CAPACITY_LIMIT)
    if free is None:
        return
    sentence = "too few curves cross the threshold within the range of N to tell"
    if not math.isnan(free.offset.value):
        sentence = (
            f"lags were learned at {words.factor(free.offset)} times the predicted N on average, scattered by "
            f"{shown(free.spread)} decades; slope {shown(free.slope)}"
        )
    yield Use(
        words.calibration_judgement(free.offset, free.spread),
        f"Taking its number of sequences at face value, where capacity is not the limit: {name}; {sentence}.",
    )
    yield Use(
        words.judgement(free.kept, words.RELIABLE),
        f"Promising that a lag will be learned, where capacity is not the limit: {name}; the share of its promises at the "
        f"largest N that were kept is {shown(free.kept)}.",
    )


def best_simple(analysis: Analysis, stage: str) -> str | None:
    """The simple predictor with the highest AUROC at a stage, in hindsight: a rank, or a guess without a network."""
    first = analysis.scored.rows.stages[0]
    simple = [s for s in analysis.scores if s.predictor in RANKED and s.stage == stage]
    simple += [s for s in analysis.scores if s.predictor in BASELINES and s.stage == first]
    simple = [s for s in simple if s.auroc.measured]
    return max(simple, key=lambda s: s.auroc.value).predictor if simple else None


def warnings(analysis: Analysis) -> list[str]:
    """What the protocol says must be warned of."""
    sentences = []
    for stage in analysis.scored.rows.stages[:-1] or analysis.scored.rows.stages:
        simple = best_simple(analysis, stage)
        for predictor in WINDOW if simple else ():
            gain = analysis.difference(predictor, simple or "", stage)
            if analysis.score(predictor, stage) and not gain.above(0):
                sentences.append(
                    f"{_capital(words.STAGE_WORDS[stage])}, {label(predictor)} {words.compared(gain)} the best simple "
                    f"predictor, {label(simple or '')} (difference of AUROC {shown(gain)})."
                )
    stage = analysis.scored.rows.stages[0]
    for predictor in WINDOW:
        for limit in LIMITS:
            line = analysis.calibration(predictor, stage, limit)
            if line is None or not abs(line.offset.value) > FAR:  # NaN is not far
                continue
            means = "so that N must not be read as enough" if line.offset.value > 0 else "far fewer than it asks for"
            sentences.append(
                f"Where the limit is {words.LIMIT_WORDS[limit]}, lags were learned at {words.factor(line.offset)} times "
                f"the N of {label(predictor)}: more than a factor of ten away, {means}."
            )
    if not analysis.tails:
        sentences.append("The exponents of heavy tails were not measured: what is said about them is theory.")
    elif not all(e.verdict == "as predicted" for e in analysis.tails):
        sentences.append("The exponents of heavy tails were not all shown: what is said about them is theory.")
    return sentences


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def tail_sentences(analysis: Analysis) -> list[str]:
    """What became of the prediction, for plain and for clipped training."""
    sentences = []
    for clipped, name, law in ((False, "Plain", "kappa"), (True, "Clipped", "2")):
        heavy = [e for e in analysis.tails if e.clipped == clipped and e.alpha != 2]
        if heavy:
            parts = [f"at alpha = {e.alpha:g} {_tail_words(e)}" for e in heavy]
            sentences.append(f"{name} training (exponent {law}): {'; '.join(parts)}.")
    return sentences


def _tail_words(effect: TailEffect) -> str:
    measured = f"the exponent is {shown(effect.exponent)}, {number(effect.predicted_exponent)} being predicted"
    words_of = {
        "as predicted": "as predicted",
        "not as predicted": "not as predicted",
        "not measurable": f"which cannot be told from {number(effect.rival)}",
    }
    if not effect.exponent.measured:
        return "the exponent could not be measured"
    return f"{measured}: {words_of[effect.verdict]}"


def ablation_sentence(analysis: Analysis) -> str:
    """What the rule says about defaults."""
    better = ablations.better_variants(analysis.ablations)
    changing = [a for a in better if a.factor not in ablations.COUNTS_ELSE]
    others = [a for a in better if a.factor in ablations.COUNTS_ELSE]

    def names(ablated: list[ablations.Ablation]) -> str:
        return ", ".join(dict.fromkeys(f"`{a.factor}={a.level}` for `{a.predictor}`" for a in ablated))

    text = "By this rule no default changes."
    if changing:
        text = f"By this rule these variants predict better than the default: {names(changing)}."
    if others:
        text += (
            f" {names(others)} ranks better, but then N counts steps instead of sequences. That is another question, so "
            "the default stays."
        )
    return text


def stage_sentences(analysis: Analysis) -> list[str]:
    """Whether looking again during training helps."""
    first, *later = analysis.scored.rows.stages
    sentences = []
    for predictor in WINDOW:
        gains = {stage: analysis.difference(predictor, predictor, stage) for stage in later}
        parts = [f"{words.STAGE_WORDS[s]} it {_changed(g)} ({shown(g)})" for s, g in gains.items()]
        if parts and analysis.score(predictor, first):
            sentences.append(
                f"{label(predictor)}, against its AUROC {words.STAGE_WORDS[first]}: " + "; ".join(parts) + "."
            )
    return sentences


def _changed(gain: Estimate) -> str:
    if not gain.measured:
        return "could not be compared"
    return "is better" if gain.above(0) else "is worse" if gain.below(0) else "is about the same"
