"""What came out: in how many cases each kind of advice recovered the lag, beside training again and a random change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lagreach.advice.changes import NOTHING, SEQUENCES
from lagreach.errors import InputError
from lagreach.study.tables import read_rows
from studies.advice.run import ADVICE, BEFORE, KEPT, OUTCOMES
from studies.advice.situations import ENOUGH, NOISY

HALF = 0.5
SELDOM = 0.1  # of the trainings again: a situation that recovers its lag more often is not stuck
GOAL = 0.6
RESAMPLES = 4000
COMPARED = ("again", "advised", "random")


@dataclass(frozen=True)
class Rate:
    """Cases, and in how many of them each arm recovered the lag; the interval is of advised minus random, over situations."""

    situations: int
    cases: int
    again: int
    advised: int
    random: int
    share: tuple[float, float]
    gain: tuple[float, float]

    @property
    def worked(self) -> float:
        """Share of the cases in which the advice recovered the lag."""
        return self.advised / self.cases if self.cases else float("nan")

    @property
    def beats_random(self) -> bool:
        """Whether it recovers more than a random change, by the protocol's rule."""
        return self.gain[0] > 0


@dataclass(frozen=True)
class Case:
    """One situation: how often each arm recovered the lag, in the cases whose first training did not."""

    name: str
    group: str
    kind: str
    says: str
    expected: float
    stuck: bool
    cases: int
    recovered: Mapping[str, int]
    shares: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class NothingToDo:
    """First trainings where the advice, asked before them, was that nothing is to be done, and where it was not.

    `recovered` and `otherwise` are (trainings that recovered the lag, of how many); the interval is of the difference of the
    shares, over situations.
    """

    situations: int
    recovered: tuple[int, int]
    otherwise: tuple[int, int]
    gain: tuple[float, float]

    @property
    def beats_silence(self) -> bool:
        """Whether lags are recovered more often where it is said, by the protocol's rule."""
        return self.gain[0] > 0


@dataclass(frozen=True)
class Analysis:
    """All answers of the protocol."""

    run: Mapping[str, Any]
    cases: tuple[Case, ...]
    kept: tuple[Case, ...]
    overall: Rate
    everywhere: Rate
    kinds: Mapping[str, Rate]
    kinds_promised: Mapping[str, Rate]
    groups: Mapping[str, Rate]
    promised: Rate
    doubted: Rate
    error: float
    same_side: float
    diverged: int
    nothing: NothingToDo | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def load(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Both files of a run."""
    if not (folder / ADVICE).exists() or not (folder / OUTCOMES).exists():
        raise InputError(
            "there is no finished run here",
            got=str(folder),
            expected=f"{ADVICE} and {OUTCOMES}",
            fix="run it first: python -m studies.advice run",
        )
    return json.loads((folder / ADVICE).read_text()), read_rows(folder / OUTCOMES)


def analyse(folder: Path) -> Analysis:
    """Read a run and answer the questions of its protocol."""
    about, rows = load(folder)
    shares: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        shares.setdefault(row["situation"], {}).setdefault(row["arm"], {})[row["seed"]] = row["share"]
    advice = about["advice"]
    cases = tuple(
        _case(situation, advice[situation["name"]], shares[situation["name"]])
        for situation in about["situations"]
        if situation["group"] != ENOUGH
    )
    kept = [
        _case(situation, advice[situation["name"] + KEPT], _with_kept(shares[situation["name"]]))
        for situation in about["situations"]
        if situation["name"] + KEPT in advice
    ]
    of_kinds = [case for case in (*cases, *kept) if case.stuck and case.cases]
    counted = [
        case for case in cases if case.stuck and case.cases and case.group != NOISY
    ]  # that group is asked for one kind
    known = [(case.expected, np.array(case.shares["advised"])) for case in counted if np.isfinite(case.expected)]
    errors = np.concatenate([np.abs(expected - got) for expected, got in known]) if known else np.array([np.nan])
    sides = (
        np.concatenate([(got >= HALF) == (expected >= HALF) for expected, got in known])
        if known
        else np.array([np.nan])
    )
    return Analysis(
        run=about["run"],
        cases=cases,
        overall=rate(counted),
        everywhere=rate([case for case in cases if case.cases and case.group != NOISY]),
        kept=tuple(kept),
        kinds={kind: rate([c for c in of_kinds if c.kind == kind]) for kind in _names(of_kinds, "kind")},
        kinds_promised={
            kind: rate([c for c in of_kinds if c.kind == kind and c.expected >= HALF])
            for kind in _names(of_kinds, "kind")
        },
        groups={
            group: rate([c for c in cases if c.stuck and c.cases and c.group == group])
            for group in sorted({c.group for c in cases if c.stuck and c.cases})
        },
        promised=rate([case for case in counted if case.expected >= HALF]),
        doubted=rate([case for case in counted if case.expected < HALF]),
        error=float(np.median(errors)),
        same_side=float(sides.mean()),
        diverged=sum(row["status"] != "OK" for row in rows),
        nothing=nothing_to_do(advice, {name: arms["first"] for name, arms in shares.items()}),
    )


def nothing_to_do(
    advice: Mapping[str, Any], first: Mapping[str, Mapping[int, float]], seed: int = 0
) -> NothingToDo | None:
    """How often a first training recovers the lag, by what was said before it; None where nobody asked."""
    asked = [name for name in first if name + BEFORE in advice]
    said = np.array([_promises(advice[name + BEFORE]) for name in asked], dtype=bool)
    if not said.any() or said.all():
        return None
    counts = np.array([[sum(s >= HALF for s in first[name].values()), len(first[name])] for name in asked])
    drawn = np.random.default_rng(seed).integers(len(asked), size=(RESAMPLES, len(asked)))
    sums = [(counts[drawn] * chosen[drawn][..., None]).sum(1) for chosen in (said, ~said)]
    with np.errstate(invalid="ignore"):
        shares = [part[:, 0] / part[:, 1] for part in sums]
    low, high = np.nanquantile(shares[0] - shares[1], [0.025, 0.975])
    recovered, otherwise = (tuple(int(n) for n in counts[chosen].sum(0)) for chosen in (said, ~said))
    return NothingToDo(int(said.sum()), recovered, otherwise, (float(low), float(high)))  # type: ignore[arg-type]


def _promises(asked_before: Mapping[str, Any]) -> bool:
    """Whether the answer before training was that nothing is to be done, rather than that no change is known."""
    return asked_before["kind"] == NOTHING and (asked_before["expected"] or 0.0) >= HALF


def _with_kept(arms: Mapping[str, Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
    """The arms of the advice that keeps the cell in the places of the first advice."""
    return {**arms, "advised": arms["kept"], "random": arms["kept random"]}


def _names(cases: Sequence[Case], field: str) -> list[str]:
    return sorted({getattr(case, field) for case in cases})


def _case(situation: Mapping[str, Any], advice: Mapping[str, Any], arms: Mapping[str, Mapping[int, float]]) -> Case:
    missed = [seed for seed, share in arms["first"].items() if not share >= HALF]
    expected = advice["expected"]
    return Case(
        name=situation["name"],
        group=situation["group"],
        kind=SEQUENCES if situation["group"] == NOISY else advice["kind"],
        says=advice["says"],
        expected=float("nan") if expected is None else float(expected),
        stuck=bool(np.mean([share >= HALF for share in arms["again"].values()]) <= SELDOM),
        cases=len(missed),
        recovered={arm: sum(arms[arm][seed] >= HALF for seed in missed) for arm in COMPARED},
        shares={arm: tuple(arms[arm][seed] for seed in missed) for arm in COMPARED},
    )


def rate(cases: Sequence[Case], seed: int = 0) -> Rate:
    """Counts over situations, with intervals from a bootstrap over these."""
    counts = np.array(
        [[case.cases, *(case.recovered[arm] for arm in COMPARED)] for case in cases], dtype=float
    ).reshape(-1, 4)
    total = counts.sum(0)
    if not len(counts):
        nowhere = (float("nan"), float("nan"))
        return Rate(0, 0, 0, 0, 0, nowhere, nowhere)
    drawn = np.random.default_rng(seed).integers(len(counts), size=(RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    worked, gain = sums[:, 2] / sums[:, 0], (sums[:, 2] - sums[:, 3]) / sums[:, 0]
    ends = [tuple(float(q) for q in np.quantile(values, [0.025, 0.975])) for values in (worked, gain)]
    return Rate(len(counts), int(total[0]), int(total[1]), int(total[2]), int(total[3]), ends[0], ends[1])  # type: ignore[arg-type]
