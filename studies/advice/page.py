"""The page, the figure and the few numbers that other texts use: all by ``python -m studies.advice analyse``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lagreach._util.disk import save_figure, write_text
from lagreach.advice.changes import KINDS, NOTHING
from lagreach.errors import InputError
from studies.advice.analysis import GOAL, Analysis, Case, NothingToDo, Rate, analyse

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "advice" / "index.md"  # has a table of its own between marks
BEGIN, END = "<!-- worked: python -m studies.advice analyse --page docs/advice/results.md -->", "<!-- end of worked -->"
EVIDENCE = ROOT / "src" / "lagreach" / "advice" / "evidence.json"
WORDS = {
    "gates": "gate bias",
    "orthogonal": "orthogonal start",
    "units": "more units",
    "cell": "another cell",
    "sequences": "more sequences",
    "steps": "longer training",
    "rate": "learning rate",
    "length": "sequence length",
    "nothing": "nothing to do",
}
WHAT = {
    "gates": "`lagreach.advise_gates(model, x, lag).apply(model)`",
    "orthogonal": "`torch.nn.init.orthogonal_(rnn.weight_hh_l0)`",
    "units": "`hidden_size` times 4 or more",
    "cell": "`nn.RNN` with an orthogonal start, or `nn.LSTM` with open gates",
    "sequences": "a larger training set",
    "steps": "5 times as many steps or more",
    "rate": "`lr` times 10 or more",
    "length": "at least twice the lag",
    "nothing": "train",
}
COLOURS = {"again": "#9aa0a6", "random": "#e0a030", "advised": "#2f6db3"}
LABELS = {"again": "the same training again", "random": "a random change of the same size", "advised": "as advised"}


def summarise(folder: Path, page: Path | None = None) -> str:
    """Write analysis.json and RESULTS.md into the folder; with a page, also that, its figure, and the package's evidence."""
    analysis = analyse(folder)
    write_text(folder / "analysis.json", json.dumps(analysis.to_dict(), indent=1, default=str) + "\n")
    text = words(analysis)
    write_text(folder / "RESULTS.md", text + "\n")
    if page is not None:
        draw(analysis, page.parent / "worked.png")
        picture = "![In how many cases the lag was recovered](worked.png)"
        head, _, rest = text.partition("\n\n")
        write_text(page, f"{head}\n\n{picture}\n\n{rest}\n")
        write_text(EVIDENCE, json.dumps(evidence(analysis), indent=1) + "\n")
        write_guide(GUIDE, analysis)
    return text


def write_guide(path: Path, analysis: Analysis) -> None:
    """Put what each kind of advice was worth between the marks of the page about advice."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InputError("this page has no place for the table", got=path.name, expected=f"{BEGIN} ... {END}")
    head, rest = text.split(BEGIN)
    counts = analysis.overall
    lines = [
        f"In {counts.situations} situations that training again does not mend, following the first advice recovered "
        "the lag in "
        f"{_part(counts.advised, counts)}; training again in {_part(counts.again, counts)}; a random change of the same size "
        f"in {_part(counts.random, counts)}.",
        "",
        "| advice | change | worked in | where half or more was expected | a random change in | given as |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        if kind == NOTHING and analysis.nothing is not None:
            lines.append(_nothing_row(analysis.nothing))
            continue
        rate = analysis.kinds.get(kind)
        worked = "not tested" if rate is None else f"{rate.advised} of {rate.cases}"
        promised = "-" if rate is None else _of(analysis.kinds_promised[kind])
        random = "-" if rate is None else f"{rate.random} of {rate.cases}"
        as_what = "advice" if rate is not None and rate.beats_random else "a fact"
        lines.append(f"| {WORDS[kind]} | {WHAT[kind]} | {worked} | {promised} | {random} | {as_what} |")
    if analysis.nothing is not None:
        lines += ["", f"*Nothing to do*: {_nothing_words(analysis.nothing)}"]
    write_text(path, f"{head}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.split(END)[1]}")


def evidence(analysis: Analysis) -> dict[str, Any]:
    """Kind of advice: cases in which it recovered the lag, of how many, and whether it beat a random change.

    For "nothing to do": trainings that recovered the lag where it was said, and whether they are more than where it was not.
    """
    said = {}
    if analysis.nothing is not None:
        worked, of = analysis.nothing.recovered
        counts = {"worked": worked, "of": of}
        said[NOTHING] = counts | {"supported": analysis.nothing.beats_silence, "promised": counts}
    return said | {
        kind: {
            "worked": counts.advised, "of": counts.cases, "random": counts.random, "supported": counts.beats_random,
            "promised": {"worked": analysis.kinds_promised[kind].advised, "of": analysis.kinds_promised[kind].cases},
        }
        for kind, counts in analysis.kinds.items()
    }  # fmt: skip


def words(analysis: Analysis) -> str:
    """The whole page."""
    counts = analysis.overall
    met = "met" if counts.worked >= GOAL else "missed"
    lines = [
        "# Does the advice work?",
        "",
        f"Networks that missed a lag were trained again as `lagreach.advise` said first. In {counts.situations} "
        "situations in which training again "
        f"from another seed does not help ({_part(counts.again, counts)}), the advice recovered the lag in "
        f"**{_part(counts.advised, counts)}** "
        f"(95 % interval {_percent(counts.share[0])} to {_percent(counts.share[1])}), a random change of the same size "
        f"in {_part(counts.random, counts)}. "
        f"The goal, at least {GOAL:.0%}, is {met}.",
        "",
        f"The share that the forecast of the changed network expected was off by {analysis.error:.2f} in the median; "
        "it lay on the right side of one "
        f"half in {analysis.same_side:.0%} of the cases. Where it expected at least half, the lag was recovered in "
        f"{_part(analysis.promised.advised, analysis.promised)}; where it "
        f"expected less, in {_part(analysis.doubted.advised, analysis.doubted)}.",
        "",
        "## By kind of advice",
        "",
        "| advice | situations | worked | training again | random change | advice minus random | stays | where "
        "half or more was expected |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        if kind in analysis.kinds:
            lines.append(
                f"| {WORDS[kind]} | {_row(analysis.kinds[kind])} | {_stays(analysis.kinds[kind])} | "
                f"{_of(analysis.kinds_promised[kind])} |"
            )
    if analysis.nothing is not None:
        lines += ["", f"*Nothing to do*, asked before any training: {_nothing_words(analysis.nothing)}"]
    lines += [
        "",
        "*Worked*: cases (a situation and a seed whose first training missed the lag) in which at least half of "
        "it was recovered. A kind "
        "stays advice where the interval of its gain over a random change lies above zero; the others are given "
        "as facts.",
        "",
        "## By what may have been in the way",
        "",
        "| group | situations | worked | training again | random change | advice minus random |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {group} | {_row(numbers)} |" for group, numbers in analysis.groups.items()]
    aside = [case for case in analysis.cases if not (case.stuck and case.cases)]
    lines += [
        "",
        "## Every situation",
        "",
        f"{len(aside)} of {len(analysis.cases)} situations recover their lag from some seed without any change; they "
        "stand below, "
        "marked with a star, and are not counted above.",
        "",
        "| situation | first advice | expected | share, advised | again | random |",
        "|---|---|---|---|---|---|",
        *(_line(case) for case in analysis.cases),
        *(_line(case, ", cell kept") for case in analysis.kept),
        "",
        f"Trained with {analysis.run['seeds']} seeds a situation and an arm, on {_machines(analysis.run)}; "
        f"{analysis.diverged} trainings diverged. `python -m studies.advice run --device cuda` repeats it, `python "
        "-m studies.advice analyse` makes "
        "these numbers. [The protocol](protocol.md) was written before the runs.",
    ]
    return "\n".join(lines)


def _nothing_row(nothing: NothingToDo) -> str:
    (right, of), (anyway, others) = nothing.recovered, nothing.otherwise
    elsewhere = f"{anyway} of {others} where it is not said"
    as_what = "advice" if nothing.beats_silence else "a fact"
    return f"| {WORDS[NOTHING]} | {WHAT[NOTHING]} | {right} of {of} | {right} of {of} | {elsewhere} | {as_what} |"


def _nothing_words(nothing: NothingToDo) -> str:
    (right, of), (anyway, others) = nothing.recovered, nothing.otherwise
    return (
        f"it was said in {nothing.situations} situations, and training recovered the lag in {right} of {of} cases there "
        f"({_percent(right / of)}); where it was not said, in {anyway} of {others} ({_percent(anyway / others)}). The difference "
        f"is {_percent(nothing.gain[0])} to {_percent(nothing.gain[1])}."
    )


def _machines(call: Mapping[str, Any]) -> str:
    """What each call of the run was made on, and how long it took."""
    told = f"{call['device']} ({call['minutes']} minutes)"
    return f"{_machines(call['earlier'])}, then on {told}" if "earlier" in call else told


def _of(counts: Rate) -> str:
    return f"{counts.advised} of {counts.cases}" if counts.cases else "-"


def _stays(counts: Rate) -> str:
    return "yes" if counts.beats_random else "no"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _part(count: int, counts: Rate) -> str:
    return f"{count} of {counts.cases} cases, {_percent(count / counts.cases)}" if counts.cases else "none of 0 cases"


def _row(counts: Rate) -> str:
    gain = f"{_percent(counts.gain[0])} to {_percent(counts.gain[1])}"
    arms = " | ".join(f"{count} of {counts.cases}" for count in (counts.advised, counts.again, counts.random))
    return f"{counts.situations} | {arms} | {gain}"


def _line(case: Case, note: str = "") -> str:
    def middle(arm: str) -> str:
        shares = sorted(case.shares[arm])
        return f"{shares[len(shares) // 2]:.2f}" if shares else "-"

    star = "" if case.stuck and case.cases else " *"
    expected = "-" if case.expected != case.expected else f"{case.expected:.2f}"
    shares = " | ".join(middle(arm) for arm in ("advised", "again", "random"))
    return f"| {case.name}{note}{star} | {WORDS[case.kind]} | {expected} | {shares} |"


def draw(analysis: Analysis, path: Path) -> None:
    """Bars by kind: recovered after the advice, after training again, after a random change."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if kind in analysis.kinds]
    figure = Figure(figsize=(8, 0.9 + 0.55 * (len(kinds) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = [("all", analysis.overall), *((WORDS[kind], analysis.kinds[kind]) for kind in kinds)]
    for place, (_, counts) in enumerate(rows):
        for shift, arm in enumerate(COLOURS):
            part = getattr(counts, arm) / counts.cases
            axes.barh(
                place + 0.26 * (shift - 1),
                part,
                height=0.24,
                color=COLOURS[arm],
                label=LABELS[arm] if place == 0 else None,
            )
    axes.set_yticks(range(len(rows)), [f"{name} ({counts.cases})" for name, counts in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.axvline(GOAL, color="black", linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_xlabel("cases in which the missed lag was recovered")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.9 / (len(rows) + 1)), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
