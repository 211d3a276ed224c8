"""The two tables of the second study: those of the first, with share and loss gained at the best checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lagreach._util.disk import Write, make_folder, read_whole, write_whole
from lagreach.study.tables import Row, open_table, table_bytes
from studies.validation import tables
from studies.validation.tables import OUTCOMES, PREDICTIONS, as_table

if TYPE_CHECKING:
    import pyarrow as pa

ANSWERS = {"share": "float64", "gain": "float64"}  # see `studies.validation2.responses`
COLUMNS = {
    "outcomes": OUTCOMES | ANSWERS,
    "predictors": {name: kind for name, kind in PREDICTIONS.items() if name not in ("low", "high")},
}
GROWTH = "growth.parquet"
DIGITS = 4  # that are kept of predictions, so that files stay small


def save_tables(folder: Path, outcomes: Sequence[Row], predictors: Sequence[Row], write: Write = write_whole) -> None:
    """Write ``outcomes.parquet`` and ``predictors.parquet``."""
    make_folder(folder)
    _save(folder / "outcomes.parquet", outcomes, COLUMNS["outcomes"], write)
    _save(folder / "predictors.parquet", _rounded_values(predictors), COLUMNS["predictors"], write)


def save_growth(folder: Path, predictors: Sequence[Row], write: Write = write_whole) -> None:
    """Write ``growth.parquet``: predictions of `studies.validation2.growth`."""
    _save(folder / GROWTH, _rounded_values(predictors), COLUMNS["predictors"], write)


def load_growth(folder: str | Path) -> pa.Table | None:
    """Read it back, if there is one."""
    path = Path(folder) / GROWTH
    if not path.is_file():
        return None
    with open_table(read_whole(path), path.name) as file:
        return as_table(file.read(), COLUMNS["predictors"])


def _save(path: Path, rows: Sequence[Row], columns: dict[str, str], write: Write) -> None:
    kept: list[Row] = [{key: row[key] for key in columns} for row in rows]
    write(path, table_bytes(as_table(kept, columns), compression="zstd", compression_level=9))


def _rounded_values(rows: Sequence[Row]) -> list[Row]:
    return [row | {"value": _rounded(float(row["value"]))} for row in rows]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else value


def load_tables(folder: str | Path) -> tuple[pa.Table, pa.Table]:
    """Read outcomes and predictors back."""
    return tables.load_tables(folder, COLUMNS, "the second study")


def replace_conditions(of_some: Path, folder: Path) -> None:
    """Put the rows of some conditions in the place of those that the tables of a folder have."""
    new, old = load_tables(of_some), load_tables(folder)
    conditions = set(new[0]["condition"].to_pylist())
    kept = [[row for row in table.to_pylist() if row["condition"] not in conditions] for table in old]
    outcomes, predictors = (rows + table.to_pylist() for rows, table in zip(kept, new, strict=True))
    save_tables(folder, outcomes, predictors)
