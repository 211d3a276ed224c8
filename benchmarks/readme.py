"""The speed table of the README, drawn from the stored results: ``python -m benchmarks.readme`` rewrites it."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import RESULTS, ROOT

START, END = "<!-- speed: python -m benchmarks.readme -->", "<!-- end of speed -->"
CELLS = ("const_gate", "shared_gate", "diag_gate", "gru", "lstm")


def stored(op: str) -> dict[str, Any]:
    """Read the stored results of an op."""
    return json.loads((RESULTS / f"{op}.json").read_text(encoding="utf-8"))


def medians(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median seconds by case and implementation."""
    return {case["name"]: {k: v["median"] for k, v in case["seconds"].items()} for case in result["cases"]}


def text() -> str:
    """Lay out the table: ratios within one run, so that the machine matters little."""
    found = stored("training_step")
    times = medians(found)
    lines = [
        "| one training step, one thread | " + " | ".join(CELLS) + " |",
        "|---|" + "---|" * len(CELLS),
    ]
    rows = [
        ("W1: milliseconds", "W1", lambda t: f"{1e3 * t['lagreach']:.1f}"),
        ("W1: times faster than an eager torch loop", "W1", lambda t: f"{t['eager'] / t['lagreach']:.1f}"),
        ("W1: times the machine's floor", "W1", lambda t: f"{t['lagreach'] / t['floor']:.2f}"),
        ("W2: times faster than an eager torch loop", "W2", lambda t: f"{t['eager'] / t['lagreach']:.1f}"),
        ("W2: times the machine's floor", "W2", lambda t: f"{t['lagreach'] / t['floor']:.2f}"),
    ]
    for place, name, label in ((2, "author", "the paper author's loop"), (3, "jax.scan", "JAX's `lax.scan`")):
        if all(name in times[f"W1 {cell}"] for cell in CELLS):
            rows.insert(
                place, (f"W1: times faster than {label}", "W1", lambda t, name=name: f"{t[name] / t['lagreach']:.1f}")
            )
    for label, workload, show in rows:
        lines.append(f"| {label} | " + " | ".join(show(times[f"{workload} {cell}"]) for cell in CELLS) + " |")
    machine = found["machine"]["cpu"]
    lines += [
        "",
        f"W1: 16 sequences of 1,024 steps, 16 inputs, 64 units; W2: 512 sequences, 128 units. The floor is the time of the "
        f"products and nonlinearities alone, measured in the same run ({machine}, torch {found['versions']['torch']}).",
    ]
    if all("author" in times[f"W1 {cell}"] for cell in CELLS):
        limits = ", ".join(f"{times[f'W1 {cell}']['author'] / times[f'W1 {cell}']['floor']:.0f}" for cell in CELLS)
        lines[-1] += f" At W1 the floor itself is {limits} times faster than the author's loop: nothing can be more."
    lines += ["", diagnosis()]
    gpu = stored("gpu")
    on_gpu = {(c["cell"], c["workload"], c["replicas"]): c["ms"] for c in gpu["cases"] if "ms" in c}
    one, many = (", ".join(f"{on_gpu[cell, 'W1', n]:.1f}" for cell in CELLS) for n in (1, 132))
    lines += [
        "",
        f"On an {gpu['machine']['gpu']} the same W1 steps take {one} ms for one model and {many} ms for 132 models together "
        "(forward and backward pass, `python -m benchmarks.gpu`).",
    ]
    return "\n".join(lines)


def diagnosis() -> str:
    """Say how long the first-order diagnosis takes, beside the author's scripts where they were timed."""
    found = stored("first_order")
    times, shape = medians(found), found["cases"][0]["shape"]
    one = times["W1 diag_gate"]["lagreach"]
    said = (
        f"A first-order diagnosis of a diag_gate network at W1 (effective learning rates, envelope and matched statistic of "
        f"{shape['sequences']} sequences at {shape['lags']} lags) takes {1e3 * one:.0f} ms"
    )
    timed = {name: t["author"] / t["lagreach"] for name, t in times.items() if "author" in t}
    if not timed:
        return said + "."
    shapes = {case["name"]: case["shape"] for case in found["cases"]}
    listed = ", ".join(
        f"{ratio:.0f} ({name.split()[0].rstrip(',')} {shapes[name]['cell']}, {shapes[name]['sequences']} sequences)"
        for name, ratio in timed.items()
    )
    return f"{said}. Times faster than the paper author's scripts: {listed}."


def readme_with_table(readme: str) -> str:
    """Put the table between its marks."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{text()}\n{END}{after}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(readme_with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
