"""Would another default predict better? Variants of a predictor against the predictor itself, and a rule to decide."""

from __future__ import annotations

from dataclasses import dataclass

from lagreach.diagnosis.measure import MeasureSettings
from studies.validation.bootstrap import Estimate
from studies.validation.matching import base_name
from studies.validation.predictor_scores import ScoredRows, difference

WORTH_CHANGING = 0.02  # of AUROC; and the interval must exclude 0
COUNTS_ELSE = ("unit",)  # choices that change what N counts: they answer another question, and cannot replace a default


@dataclass(frozen=True)
class Ablation:
    """AUROC of a variant less that of the default, on the rows that both have.

    The default is what the study measures, or what lagreach takes by itself where the study measured that too (`against`).
    """

    predictor: str
    factor: str
    level: str
    against: str
    stage: str
    rows: int
    gain: Estimate

    @property
    def verdict(self) -> str:
        """What the rule of the protocol says."""
        if not self.gain.measured:
            return "not measurable"
        if self.gain.above(0) and self.gain.value >= WORTH_CHANGING:
            return "better"
        if self.gain.below(0) and self.gain.value <= -WORTH_CHANGING:
            return "worse"
        return "no difference"

    def __str__(self) -> str:
        return f"{self.predictor} {self.factor}={self.level} at {self.stage}: {self.gain}, {self.verdict}"


def ablate(scored: ScoredRows) -> tuple[Ablation, ...]:
    """Every variant at every stage against its default."""
    ablations = []
    for stage in scored.rows.stages:
        for name in scored.rows.predictors(stage, variants=True):
            base = base_name(name)
            factor, _, level = name.split("|")[1].partition("=")
            usual = f"{base}|{factor}={getattr(MeasureSettings(), factor, None)}"
            default = usual if (stage, usual) in scored.rows.values and usual != name else base
            if (stage, default) in scored.rows.values:
                compared = difference(scored, name, default, stage)
                against = default.partition("=")[2] or "the study's"
                ablations.append(Ablation(base, factor, level, against, stage, compared.rows, compared.auroc))
    return tuple(ablations)


def better_variants(ablations: tuple[Ablation, ...]) -> list[Ablation]:
    """Variants that predict better at some stage, and worse at none."""
    worse = {(a.predictor, a.factor, a.level) for a in ablations if a.verdict == "worse"}
    return [a for a in ablations if a.verdict == "better" and (a.predictor, a.factor, a.level) not in worse]
