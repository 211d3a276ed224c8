"""Records of benchmarks as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def show(record: Mapping[str, Any], console: Any) -> None:
    """Print one record as a table."""
    from rich.table import Table

    where = f"{record['machine']['cpu']}, median {record['clock']}, one thread, torch {record['versions']['torch']}"
    table = Table(title=f"{record['op']}: {record['about']}", caption=where)
    table.add_column("case", overflow="fold")
    table.add_column("implementation", overflow="fold")
    for header in (f"per {record['unit']}", f"x {record['baseline']}", "quartiles"):
        table.add_column(header, justify="right", no_wrap=True)
    for case in record["cases"]:
        for i, (name, timing) in enumerate(case["seconds"].items()):
            ratio = case["ratios"].get(name)
            times = (
                [f"{ratio['median']:.3g}", "{:.3g} - {:.3g}".format(*ratio["quartiles"])]
                if ratio
                else ["1" if name == record["baseline"] else "", ""]
            )
            table.add_row(case["name"] if i == 0 else "", name, in_words(timing["median"]), *times)
        table.add_section()
    console.print(table)
    for case in record["cases"]:
        for what, value in case.get("derived", {}).items():
            console.print(f"  {case['name']}: {what} {value:.3g}")
    for note in dict.fromkeys(case["note"] for case in record["cases"] if case["note"]):
        console.print(f"  {note}")


def in_words(seconds: float) -> str:
    """Seconds with three digits and a unit.

    >>> in_words(0.01234), in_words(2.5e-8)
    ('12.3 ms', '0.025 us')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
