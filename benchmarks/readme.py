"""Tables of speed in docs, drawn from the stored results: ``python -m benchmarks.readme`` rewrites them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import PAPER_CELLS, RESULTS, ROOT

MANY = "W1 of 256"  # workload of exact transport
MARKS = ("<!-- {}: python -m benchmarks.readme -->", "<!-- end of {} -->")


def stored(op: str) -> dict[str, Any]:
    """Read the stored results of an op."""
    return json.loads((RESULTS / f"{op}.json").read_text(encoding="utf-8"))


def medians(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median seconds by case and implementation."""
    return {case["name"]: {k: v["median"] for k, v in case["seconds"].items()} for case in result["cases"]}


def text() -> str:
    """Lay out the table: ratios within one run, so that the machine matters little. The rest is on the benchmarks page."""
    record, other = stored("training_step"), stored("xeon/training_step")
    here, there = record["machine"]["cpu"], other["machine"]["cpu"]
    times, elsewhere = medians(record), medians(other)

    def row(label: str, times: dict[str, dict[str, float]], ratio: str, digits: int = 2, workload: str = "W1") -> str:
        over, under = ratio.split(" / ")
        chosen = [times[f"{workload} {cell}"] for cell in PAPER_CELLS]
        return f"| {label} | " + " | ".join(f"{t[over] / t[under]:.{digits}f}" for t in chosen) + " |"

    beside, floor = "author / lagreach", "lagreach / floor"
    gpu = stored("gpu")
    on_gpu = {(c["cell"], c["workload"], c["replicas"]): c["ms"] for c in gpu["cases"] if "ms" in c}
    one, many = (", ".join(f"{on_gpu[cell, 'W1', n]:.1f}" for cell in PAPER_CELLS) for n in (1, 132))
    rows = [
        row(f"W1: times the floor, {here}", times, floor),
        row(f"the same, {there}", elsewhere, floor),
        row(f"W2: times the floor, {here}", times, floor, workload="W2"),
    ]
    limits = ""
    if all("author" in times[f"W1 {cell}"] for cell in PAPER_CELLS):  # for those who timed it
        rows[:0] = [
            row(f"W1: times faster than the paper author's loop, {here}", times, beside, 1),
            row(f"the same, {there}", elsewhere, beside, 1),
        ]
        ratios = ", ".join(
            f"{times[f'W1 {cell}']['author'] / times[f'W1 {cell}']['floor']:.0f}" for cell in PAPER_CELLS
        )
        limits = f"; on the {here} it is itself {ratios} times faster than the author's loop"
    milliseconds = " | ".join(f"{1e3 * times[f'W1 {cell}']['lagreach']:.1f}" for cell in PAPER_CELLS)
    return "\n".join(
        [
            "| one training step, one thread | " + " | ".join(PAPER_CELLS) + " |",
            "|---|" + "---|" * len(PAPER_CELLS),
            f"| W1: milliseconds, {here} | {milliseconds} |",
            *rows,
            "",
            "W1: 16 sequences of 1,024 steps, 16 inputs, 64 units; W2: 512 sequences, 128 units. The floor is the time of "
            f"the products and nonlinearities alone, measured in the same run{limits} (torch "
            f"{record['versions']['torch']}; Xeon: {other['machine']['instructions']}, torch {other['versions']['torch']}). "
            f"{diagnosis()} {exact_transport()} On an {gpu['machine']['gpu']} the same W1 steps take {one} ms for one model "
            f"and {many} ms for 132 models together (`python -m benchmarks.gpu`).",
        ]
    )


def diagnosis() -> str:
    """Say how long the first-order diagnosis takes, beside the author's scripts where they were timed."""
    record = stored("first_order")
    times, shape = medians(record), record["cases"][0]["shape"]
    said = (
        f"A first-order diagnosis at W1 ({shape['sequences']} sequences, {shape['lags']} lags, diag_gate) takes "
        f"{1e3 * times['W1 diag_gate']['lagreach']:.0f} ms"
    )
    ratios = [t["author"] / t["lagreach"] for t in times.values() if "author" in t]
    if not ratios:
        return f"{said}."
    return f"{said}; such diagnoses are {min(ratios):.0f} to {max(ratios):.0f} times faster than the author's scripts."


def exact_transport() -> str:
    """Say how long exact transport takes beside its products."""
    said = []
    for record in (stored("transport"), stored("xeon/transport")):
        times = medians(record)
        chosen = [times[f"{MANY} {cell}"] for cell in PAPER_CELLS]
        ratios = ", ".join(f"{t['lagreach'] / t['gemms']:.2f}" for t in chosen)
        said.append(f"{ratios} times as long ({record['machine']['cpu']})")
    (shape,) = (case["shape"] for case in record["cases"] if case["name"] == f"{MANY} {PAPER_CELLS[0]}")
    return (
        f"Exact transport of {shape['sequences']} sequences over {shape['lags']} lags takes {' and '.join(said)} as its "
        "matrix products made by torch alone."
    )


def forecast_cost() -> str:
    """Lay out what a forecast costs in forward passes of the same model."""
    record = stored("forecast")
    shape, machine = record["cases"][0]["shape"], record["machine"]
    alone = [case for case in record["cases"] if "threads" not in case["shape"]]
    on_cores = [case for case in record["cases"] if "threads" in case["shape"]]
    readable, reachable = (
        f"forward passes {what}" for what in ("of the readout", f"of {shape['directions']} directions")
    )
    wanted = [("*readable*", alone, readable), ("*reachable*", alone, reachable)]
    if on_cores:
        wanted.insert(1, (f"*readable*, on {on_cores[0]['shape']['threads']} cores", on_cores, readable))
    names = [case["name"] for case in alone]
    rows = [
        f"| {share} | " + " | ".join(f"{case['derived'][what]:.3g}" for case in cases) + " |"
        for share, cases, what in wanted
    ]
    shares = [case["seconds"]["shares"]["median"] for case in alone]
    return "\n".join(
        [
            "| sums, in forward passes | " + " | ".join(names) + " |",
            "|---|" + "---|" * len(names),
            *rows,
            "",
            f"`lagreach bench forecast`: {shape['sequences']} sequences of {shape['time']:,} steps, {shape['input']} inputs, "
            f"{shape['hidden']} units, K = {shape['directions']}, medians of CPU time on one thread of an {machine['cpu']}, "
            f"beside forward passes of {shape['batch']} sequences in the same run, and by the clock on all cores, as `forecast` "
            "runs (so few sequences of one pass have work for one core); "
            f"the machine was at work on other things too "
            f"(load {machine['load_before']:.0f} on {machine['cores']} cores). Shares follow from the sums of a readout in "
            f"{min(shares):.2f} to {max(shares):.2f} seconds, whatever the number of sequences.",
        ]
    )


PAGES = {"benchmarks.md": ("speed", text), "forecast.md": ("cost", forecast_cost)}


def with_table(page: str, name: str) -> str:
    """Put the table of a page between its marks."""
    about, make = PAGES[name]
    start, end = (mark.format(about) for mark in MARKS)
    before, rest = page.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{make()}\n{end}{after}"


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / "docs" / name
        path.write_text(with_table(path.read_text(encoding="utf-8"), name), encoding="utf-8")
