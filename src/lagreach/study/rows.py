"""Rows of numbers, kept as Parquet tables that are rewritten whole: at most a few thousand rows each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lagreach._util.disk import is_file, write_atomically
from lagreach.errors import InputError, TooLargeError

Row = dict[str, Any]
MOST_ROWS = 10**7
MENDED = "run the study again with --resume: it makes anew what is missing or damaged"


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with write_atomically(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows)), temporary)


def read_rows(path: Path, columns: Sequence[str] = ()) -> list[Row]:
    """Read a table back as rows; a damaged one, or one without these columns, is refused."""
    import pyarrow.parquet as pq

    if not is_file(path):
        raise InputError("this table cannot be read: there is no such file", got=str(path), fix=MENDED)
    try:
        with pq.ParquetFile(path) as file:
            rows, missing = file.metadata.num_rows, set(columns) - set(file.schema_arrow.names)
            # repeated values take no room in a file, so its size says nothing about the table's
            found = file.read().to_pylist() if rows <= MOST_ROWS and not missing else []
    except Exception as error:  # a library that reads damaged files raises anything, and all of it means the same here
        raise InputError("this table cannot be read", got=f"{path.name}: {error}", fix=MENDED) from error
    if rows > MOST_ROWS:
        raise TooLargeError("this table is too large for a study", got=f"{rows} rows", expected=f"at most {MOST_ROWS}")
    if missing:
        raise InputError(
            "this table cannot be read: columns are missing",
            got=f"{path.name} without {', '.join(sorted(missing))}",
            fix=MENDED,
        )
    return found
