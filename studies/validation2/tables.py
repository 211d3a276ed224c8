"""The two tables of the second study: those of the first, with share and loss gained at the best checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.disk import Write, make_folder, write_whole
from lagreach.study.tables import Row, table_bytes
from studies.validation import tables
from studies.validation.tables import OUTCOMES, PREDICTIONS, as_table

if TYPE_CHECKING:
    import pyarrow as pa

ANSWERS = {"share": "float64", "gain": "float64"}  # see `studies.validation2.responses`
COLUMNS = {
    "outcomes": OUTCOMES | ANSWERS,
    "predictors": {name: kind for name, kind in PREDICTIONS.items() if name not in ("low", "high")},
}
DIGITS = 4  # that are kept of predictions, so that files stay small


def save_tables(folder: Path, outcomes: Sequence[Row], predictors: Sequence[Row], write: Write = write_whole) -> None:
    """Write ``outcomes.parquet`` and ``predictors.parquet``."""
    make_folder(folder)
    for name, rows in (("outcomes", outcomes), ("predictors", predictors)):
        columns = COLUMNS[name]
        kept: list[Row] = [{key: row[key] for key in columns} for row in rows]
        for row in kept if name == "predictors" else ():
            row["value"] = _rounded(float(row["value"]))
        content = table_bytes(as_table(kept, columns), compression="zstd", compression_level=9)
        write(folder / f"{name}.parquet", content)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else value


def load_tables(folder: str | Path) -> tuple[pa.Table, pa.Table]:
    """Read outcomes and predictors back."""
    return tables.load_tables(folder, COLUMNS, "the second study")
