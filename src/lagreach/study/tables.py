"""Rows of numbers, kept as Parquet tables that are rewritten whole: at most a few thousand rows each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagreach._util.disk import Read, Write, read_whole, write_whole
from lagreach._util.seals import SEALED, is_sealed, seal
from lagreach.errors import InputError, TooLargeError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Row = dict[str, Any]
MOST_ROWS = 10**7
MENDED = "run the study again with --resume: it makes anew what is missing or damaged"


def write_rows(path: Path, rows: Sequence[Row], write: Write = write_whole) -> None:
    """Write rows as a table."""
    import pyarrow as pa

    write(path, table_bytes(pa.Table.from_pylist(list(rows))))


def table_bytes(table: pa.Table, **options: Any) -> bytes:
    """Content of a table's file, with its checksum; `options` are those of `pyarrow.parquet.write_table`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = pa.BufferOutputStream()
    words = (table.schema.metadata or {}) | {SEALED: "by a line before the footer"}
    pq.write_table(table.replace_schema_metadata(words), made, **options)
    content = bytes(made.getvalue())
    # with its size and magic number; nothing else in a Parquet file has a fixed place
    footer = int.from_bytes(content[-8:-4], "little") + 8
    return seal(content, len(content) - footer)


def open_table(content: bytes, name: str) -> pq.ParquetFile:
    """Open a table's file; a damaged one is refused before, one of version 0.1.0 (without a checksum) is not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_sealed(content, name)
    return pq.ParquetFile(pa.BufferReader(content))


def read_rows(path: Path, columns: Sequence[str] = (), read: Read = read_whole) -> list[Row]:
    """Read a table back as rows; a damaged one, or one without these columns, is refused."""
    content = read(path)
    try:
        with open_table(content, path.name) as file:
            rows, missing = file.metadata.num_rows, set(columns) - set(file.schema_arrow.names)
            # repeated values take no room in a file, so its size says nothing about the table's
            rows_read = file.read().to_pylist() if rows <= MOST_ROWS and not missing else []
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
    return rows_read
