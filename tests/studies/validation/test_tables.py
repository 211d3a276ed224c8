"""Tables come back as they were written, and nothing else is taken for one."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lagreach.errors import InputError
from studies.validation.tables import ADDED, OUTCOMES, PREDICTIONS, as_table, load_tables, save_tables

EXAMPLES = {"string": "a", "bool": True, "int64": 3, "float64": 0.5}


def row(columns, **changes):
    return {name: EXAMPLES[kind] for name, kind in columns.items()} | changes


def test_tables_come_back_as_they_were(tmp_path):
    outcomes = [row(OUTCOMES), row(OUTCOMES, seed=4, floor=math.nan)]
    predictors = [row(PREDICTIONS, value=math.inf)]
    save_tables(tmp_path / "new", outcomes, predictors)
    loaded = load_tables(tmp_path / "new")
    assert repr(loaded[0].to_pylist()) == repr(outcomes)
    assert loaded[1].to_pylist() == predictors
    save_tables(tmp_path, *loaded)  # tables are taken as well as rows
    assert load_tables(tmp_path)[1].equals(loaded[1])


def test_missing_and_unknown_columns_are_named(tmp_path):
    wrong = row(OUTCOMES)
    wrong["scor"] = wrong.pop("score")
    with pytest.raises(InputError, match=r"missing \['score'\], unknown \['scor'\]"):
        save_tables(tmp_path, [wrong], [])


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(InputError, match="no tables"):
        load_tables(tmp_path)
    for name in ("outcomes", "predictors"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(InputError, match="no tables"):
        load_tables(tmp_path)


def test_tables_from_before_a_column_was_added_are_read(tmp_path):
    older = {name: kind for name, kind in OUTCOMES.items() if name not in ADDED}
    pq.write_table(pa.Table.from_pylist([row(older)]), tmp_path / "outcomes.parquet")
    pq.write_table(as_table([row(PREDICTIONS)], PREDICTIONS), tmp_path / "predictors.parquet")
    (loaded,) = load_tables(tmp_path)[0].to_pylist()
    assert list(loaded) == list(OUTCOMES)
    assert all(math.isnan(loaded.pop(name)) for name in ADDED)
    assert loaded == row(older)
