"""Tables of the stored benchmarks: times, and how they compare with what one would use instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(0.0123456), duration(3.1e-8), duration(12.3456)
    ('12.3 ms', '31 ns', '12.3 s')
    """
    size, unit = next((one for one in UNITS if seconds >= one[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def times_as_long(ratio: float) -> str:
    """Two or three digits, written out.

    >>> times_as_long(24.23), times_as_long(17500.0), times_as_long(0.00836)
    ('24.2x', '17,500x', '0.0084x')
    """
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x" if ratio >= 1 else f"{ratio:.2g}x"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def times(record: dict[str, Any]) -> list[str]:
    """One row a case: the time of lagreach, and the others with how many times as long they take."""
    cases = record["cases"]
    others = list(dict.fromkeys(name for case in cases for name in case["seconds"] if name != "lagreach"))
    rows = []
    for case in cases:
        medians = {name: timing["median"] for name, timing in case["seconds"].items()}
        of_lagreach = medians.get("lagreach")
        row = [case["name"]] + ([duration(of_lagreach)] if of_lagreach is not None else [])
        for name in others:
            factor = f" ({times_as_long(medians[name] / of_lagreach)})" if of_lagreach and name in medians else ""
            row.append(duration(medians[name]) + factor if name in medians else "")
        rows.append(row)
    of_lagreach = ["lagreach"] if any("lagreach" in case["seconds"] for case in cases) else []
    return table(["case", *of_lagreach, *(name.replace("_", " ") for name in others)], rows)


def derived(record: dict[str, Any]) -> list[str]:
    """What the timings of a case say together, such as exponents of growth."""
    rows = [[case["name"], name, f"{value:.3g}"] for case in record["cases"] for name, value in case["derived"].items()]
    return table(["case", "quantity", "value"], rows)


def on_gpu(record: dict[str, Any]) -> list[str]:
    """Milliseconds of a training step by cell, workload and number of models trained together."""
    cases = [case for case in record["cases"] if "ms" in case]
    sizes = list(dict.fromkeys((case["workload"], case["replicas"]) for case in cases))
    cells = list(dict.fromkeys(case["cell"] for case in cases))
    by = {(case["cell"], case["workload"], case["replicas"]): f"{case['ms']:.3g} ms" for case in cases}
    header = ["cell", *(f"{workload}, {n} model{'s' if n > 1 else ''}" for workload, n in sizes)]
    return table(header, [[cell, *(by.get((cell, *size), "") for size in sizes)] for cell in cells])


def beside_others(record: dict[str, Any]) -> list[str]:
    """One model of each size: what one would use instead, and what memory, products or the chain of steps alone take."""
    cases = [case for case in record["cases"] if case.get("rivals_ms")]
    names = list(dict.fromkeys(name for case in cases for name in case["rivals_ms"]))
    floors = {"memory": "memory alone", "products": "products alone", "latency": "chain of steps"}
    rows = []
    for case in cases:
        shown = [f"{case['cell']}, {case['workload']}", duration(case["ms"] / 1e3)]
        for ms in map(case["rivals_ms"].get, names):
            shown.append("" if ms is None else f"{duration(ms / 1e3)} ({times_as_long(ms / case['ms'])})")
        rows.append([*shown, *(duration(case["floors_ms"][what] / 1e3) for what in floors)])
    return table(["one model", "lagreach", *names, *floors.values()], rows)


def where_time_goes(record: dict[str, Any]) -> list[str]:
    """The profile of a step of many models: the kernels of lagreach, and the rest."""
    kernels = ("forward", "backward", "sums")
    rows = []
    for case in record["cases"]:
        if case["replicas"] > 1:
            of_kernels = [case["kernels"].get(name, 0.0) for name in kernels]
            times = [f"{ms:.2f} ms" if ms else "" for ms in (*of_kernels, case["ms"] - sum(of_kernels))]
            rows.append([f"{case['cell']}, {case['workload']}, {case['replicas']} models", *times])
    return table(["profile", "forward", "backward", "gradients of the weights", "the rest, in torch"], rows)


def origin(record: dict[str, Any]) -> str:
    """When, where and behind which tests it was measured."""
    machine, versions = record["machine"], record.get("versions", record["machine"])
    place = machine.get("gpu") or f"{machine['cpu']}, {record['threads']} thread"
    words = f"*{record['date'][:10]}, {place}, torch {versions['torch']}"
    if "clock" in record:
        words += f"; {record['clock']}"
    if "guards" in record:
        words += f"; tests run first: {record['guards']['outcome']}"
    load = max(machine.get("load_before", 0), machine.get("load_after", 0))
    if load > machine.get("cores", 2):
        words += f"; the machine was busy (load {load:.1f}), so look at the ratios"
    return words + ".*"


def section(record: dict[str, Any], machine: str = "") -> str:
    """One benchmark; `machine` where it is not the one of the others."""
    where = f" ({machine})" if machine else ""
    lines = [f"## {record['op'].replace('_', ' ')}{where}", "", f"{record['about'][:1].upper()}{record['about'][1:]}."]
    if "unit" in record:
        lines[-1] += f" Time of one {record['unit']}."
    cases = record["cases"]
    if "clock" in record:
        grown = any(case.get("derived") for case in cases)
        tables = [times(record)] if not grown or any(case.get("ratios") for case in cases) else []
        tables += [derived(record)] if grown else []
    else:
        tables = [on_gpu(record), beside_others(record), where_time_goes(record)]
    notes = [f"Note: {note}." for note in dict.fromkeys(case.get("note", "") for case in cases) if note]
    return "\n".join([*lines, *(line for one in tables for line in ["", *one]), "", *notes, "", origin(record), ""])


def text() -> str:
    """All stored benchmarks; those of another machine lie in a folder with its name."""
    sections = []
    for path in sorted(RESULTS.rglob("*.json"), key=lambda path: (path.name, path)):
        machine = path.relative_to(RESULTS).parent.name
        sections.append(section(json.loads(path.read_text(encoding="utf-8")), machine.capitalize()))
    return "\n".join(sections)
