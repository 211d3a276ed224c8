"""Metrics as Parquet tables, rewritten whole: at most a few thousand rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lagreach.errors import InputError
from lagreach.io import write_atomically
from lagreach.study.store import disk_errors

Row = dict[str, Any]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with disk_errors(path.parent), write_atomically(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows)), temporary)


def read_rows(path: Path) -> list[Row]:
    """Read a table back as rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError("this table cannot be read", got=f"{path.name}: {error}") from error
