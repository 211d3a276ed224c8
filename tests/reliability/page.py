"""docs/reliability.md, written from results.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent.parent / "docs" / "reliability.md"

TITLES = {
    "files": "Damaged and hostile files",
    "code": "Files that try to run code",
    "commands": "The command line",
    "attack": "What was once found broken",
    "nulls": "Dependences that are not there",
    "passed_on": "Lags that only other inputs pass on",
    "kappa": "How fast means concentrate",
    "architectures": "Random architectures",
    "limits": "Time and memory",
    "faults": "Studies under fault",
    "soak": "Soak",
    "determinism": "Determinism",
    "messages": "Error messages",
}
INTRODUCTIONS = {
    "files": """\
Files are cut, overwritten, swapped for garbage, or built to declare far more than they hold, and then read as the
commands read them. A trial goes well if the file is read or refused with one of lagreach's own errors, within a minute
and without filling the memory. Diagnoses, tables and all files of a run carry or have a checksum of their bytes, which is
compared before any library opens them; files of version 0.1.0 do not. Not covered are `log.txt` of a run, and damage that
also makes the checksum right.""",
    "code": """\
Pickles that would create a file when they are opened, through every option that takes a file.""",
    "commands": """\
Every command with random options and arguments. A trial goes well if it exits with 0 (done), 2 (refused, with a message)
or 3 (a required lag is out of reach), and never with a traceback. Studies are also run and exported into folders that hold
other people's files, beside those of a run or under their names.""",
    "attack": """\
An attack by strangers and a trial as a new user found what stands here (and deleted files, full disks and flipped bits, which
have tables of their own). Every reproduction is run again as it was reported, with ten seeds; the last rows reach the same faults
by other ways in: forecasts, whole models, shards, training that is watched.""",
    "nulls": """\
Targets that depend on nothing, in sequences that resemble each other (windows of one series, overlapping windows, copies), and
targets that depend on some lags, seen by networks fresh, half trained and trained: how often is a lag named that is not in the
data? The last rows of the first kind hold a dependence that must be found. Of networks, the worst lag counts. A situation is
drawn 400 times, and again, at most four times, while the interval still reaches beyond 8 %.""",
    "passed_on": """\
Inputs that follow from each other, but not alike in the course of their sequences: the targets depend on one lag or, being
those of other draws, on none. How often is a lag named that other inputs merely pass on?""",
    "kappa": """\
The exponent kappa of N is measured from samples of laws whose exponent is known: with a finite variance it is 2, however long the
tails of a sample look, and N follows from the standard deviation. Of the harsher laws the interval must hold the exponent, or
kappa be refused.""",
    "architectures": """\
Random cells, layers, widths, lengths, masks, losses and number types, from seeds. The lag gradients must add up to
autograd's gradient, each must agree with a loop that gives every step its own copy of the weights, and neither the order
of the sequences nor how they are batched may matter. One setting in ten makes no sense and must be refused.""",
    "limits": """\
Before a diagnosis, `lagreach.cost` says how long it will take and how much memory; a `budget` limits the time. What was said is
compared with what was used, in processes of their own: both in the processor's time, so that what else a machine does takes
nothing from it. Asked three times, before, between and after the work, the median counts. An estimate takes less than 2 % of the
work or the seconds that the table names, whichever is larger: the first pieces of a work of a few seconds take more.
Work below one second, budgets below half of three and memory below 150 MiB are not judged.""",
    "faults": """\
A small study is stopped by a fault, must say so in a sentence, and must end in the identical result when it is resumed:
the same weights, metrics and claims, and the numbers of the diagnoses. Disks are small real ones, if the checks may mount
them; what is done to one in a process of its own counts only if the process lives.""",
    "soak": """\
The same small diagnosis again and again in one process.""",
    "determinism": """\
The same diagnosis and training in fresh processes with other numbers of threads, other hash seeds and other states of
torch's global generator.""",
    "messages": """\
Every place in the source that raises one of lagreach's errors, read by a program: is it a plain sentence without internal
names, does it say what was got, and what was expected or what to do? All were also read by eye.""",
}


def page_text(results: dict[str, Any]) -> str:
    """Lay out the results as Markdown."""
    lines = [
        "# Reliability",
        "",
        "What was tried to break lagreach, how often, and what broke. Written by `make reliability`, which takes some two hours",
        "on two processors; a small version of every check is part of `make test-all`, of some of `make test-thorough`.",
        "",
    ]
    for name, title in TITLES.items():
        result = results.get(name)
        if result is None:
            continue
        lines += [f"## {title}", "", INTRODUCTIONS[name], ""]
        lines += ["| what | goes well if | tried | failed | how it ended |", "| --- | --- | ---: | ---: | --- |"]
        for count in result["counts"]:
            ended = ", ".join(f"{number:,} {word}" for word, number in sorted(count["outcomes"].items()))
            ended += "".join(f"; {word}: {value:.4g}" for word, value in count["measured"].items())
            tried = f"{count['tried']:,}" + (f" of {count['asked']:,}" if count["asked"] > count["tried"] else "")
            lines.append(f"| {count['what']} | {count['expected']} | {tried} | {count['failed']} | {ended} |")
        where = result["where"]
        lines += [
            "",
            f"{where['date']}, lagreach {where['lagreach']}, torch {where['torch']}, Python {where['python']}, "
            f"{where['machine']}, {result['seconds'] / 60:.1f} minutes.",
            "",
        ]
        failures = [failure for count in result["counts"] for failure in count["failures"]]
        if failures:
            lines += ["What failed:", "", *(f"- `{failure.splitlines()[0][:300]}`" for failure in failures), ""]
    return "\n".join(lines).rstrip() + "\n"


def read_results() -> dict[str, Any]:
    """Return what was measured last, by check."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write_results(results: dict[str, Any]) -> None:
    """Store the results and write the page from them."""
    RESULTS.write_text(json.dumps({name: results[name] for name in TITLES if name in results}, indent=1) + "\n")
    PAGE.write_text(page_text(results))
