"""The two tables of a validation run: what was learned, and what each predictor said about it beforehand.

They are the interface between running and analysing: `save_tables` checks the columns, `load_tables` reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagreach._util.disk import Write, make_folder, read_whole, write_whole
from lagreach.errors import InputError
from lagreach.study.tables import Row, open_table, table_bytes
from studies.validation.statistics import NEEDED, RANKED

if TYPE_CHECKING:
    import pyarrow as pa

# "pilot" and "early_20" belong to the second study: a network after a short piece of training on the planted dependency alone,
# and after a fifth of the training
STAGES = ("init", "pilot", "newton", "nudge", "early_1", "early_5", "early_20", "end")
FIRST_STUDY = ("init", "early_1", "early_5", "end")
FAMILIES = ("recall", "adding", "sparse", "dense", "tails", "selective", "parity", "series")
NEEDED_BY_FORECAST = ("n_readable", "n_reachable", "n_forecast")  # in sequences, of the second study
PREDICTORS = NEEDED + RANKED

# One row for each lag of each training.
OUTCOMES: dict[str, str] = {
    "training": "string",  # CONDITION-nSEQUENCES-sSEED
    "condition": "string",
    "task": "string",  # one of FAMILIES
    "task_name": "string",  # configuration of the task, such as recall_64
    "cell": "string",
    "gate_init": "string",  # "0.5" ... "0.01", "chrono", or "none" for a cell without gates
    "optimiser": "string",  # "sgd", "momentum" or "adamw"
    "clip": "bool",
    "noise_alpha": "float64",  # stability index of the noise of the targets; 2 is Gaussian
    "sequences": "int64",
    "seed": "int64",
    "hidden": "int64",
    "length": "int64",
    "steps": "int64",
    "lag": "int64",
    "score": "float64",  # recovered share of the lag on fresh sequences, after the last step
    "score_best": "float64",  # at the checkpoint with the lowest held-out loss
    "loss": "float64",  # on fresh sequences
    "loss_best": "float64",
    "floor": "float64",  # of the loss, NaN where it has no closed form
    "capacity_binds": "bool",
    "status": "string",  # "OK" or "DIVERGED"
    "ratio": "float64",  # scale of the noise over the lag's coefficient, NaN where a task has none
    "batch": "float64",  # sequences a step
}
ADDED = ("ratio", "batch")  # columns that older tables are without: NaN there

# One row for each training, stage, lag and predictor. At stage "init" the network depends on condition and seed only, and
# its rows are repeated for every number of sequences. Variants of a predictor are named like "n_probe|params=all".
PREDICTIONS: dict[str, str] = {
    "training": "string",
    "condition": "string",
    "seed": "int64",
    "stage": "string",  # one of STAGES
    "lag": "int64",
    "predictor": "string",
    "value": "float64",
    "low": "float64",  # 95 % interval, NaN where there is none
    "high": "float64",
}


def schema(columns: dict[str, str]) -> pa.Schema:
    """Arrow schema of a table."""
    import pyarrow as pa

    types = {"string": pa.string(), "bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def as_table(rows: pa.Table | Sequence[Row], columns: dict[str, str]) -> pa.Table:
    """Rows as a table with exactly these columns, in this order."""
    import pyarrow as pa

    wanted = schema(columns)
    if isinstance(rows, pa.Table):
        for name in ADDED:
            if name in columns and name not in rows.column_names:
                rows = rows.append_column(name, pa.array([float("nan")] * len(rows)))
    names = set(rows.column_names) if isinstance(rows, pa.Table) else {name for row in rows for name in row}
    if names and names != set(columns):
        raise InputError(
            "these columns do not make a table of a validation study",
            got=f"missing {sorted(set(columns) - names)}, unknown {sorted(names - set(columns))}",
            fix="write the tables with save_tables",
        )
    if isinstance(rows, pa.Table):
        return rows.select(list(columns)).cast(wanted)
    return pa.Table.from_pylist(list(rows), schema=wanted)


def save_tables(
    folder: str | Path,
    outcomes: pa.Table | Sequence[Row],
    predictors: pa.Table | Sequence[Row],
    write: Write = write_whole,
) -> tuple[Path, Path]:
    """Write ``outcomes.parquet`` and ``predictors.parquet``, compressed; return their paths."""
    made = []
    make_folder(Path(folder))
    for name, rows, columns in (("outcomes", outcomes, OUTCOMES), ("predictors", predictors, PREDICTIONS)):
        path = Path(folder) / f"{name}.parquet"
        write(path, table_bytes(as_table(rows, columns), compression="zstd", compression_level=9))
        made.append(path)
    return made[0], made[1]


def load_tables(
    folder: str | Path, columns: Mapping[str, Any] | None = None, study: str = "a validation study"
) -> tuple[pa.Table, pa.Table]:
    """Read outcomes and predictors of a run's folder, or of ``results/validation``; `columns` by name are those of this study.

    They are Arrow tables (``.to_pandas()``, ``.to_pylist()``, or a column as ``table["score"].to_numpy()``); missing
    numbers are NaN, never null.
    """
    import pyarrow as pa

    tables = []
    for name, wanted in (columns or {"outcomes": OUTCOMES, "predictors": PREDICTIONS}).items():
        path = Path(folder) / f"{name}.parquet"
        try:
            with open_table(read_whole(path), path.name) as file:
                tables.append(as_table(file.read(), wanted))
        except (pa.ArrowException, OSError, InputError) as error:
            raise InputError(
                f"this folder holds no tables of {study}", got=f"{path}: {error}", fix="run the study first"
            ) from error
    return tables[0], tables[1]
