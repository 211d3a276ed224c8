"""How often lags were learned, by the share that was forecast for them: what every forecast says of its kind.

``python -m studies.validation2 record`` counts it in both parts of the study and writes it into the package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lagreach._util.disk import write_text
from lagreach.forecasting import track_record
from studies.validation.matching import Matched, match
from studies.validation2.analysis import SHARE_LEARNED
from studies.validation2.returned import UNLIMITED, WITHIN_STEPS, returned
from studies.validation2.summary import linear_folder
from studies.validation2.tables import load_tables

EDGES = (0.1, SHARE_LEARNED)  # between shares that are told apart
KINDS = {"unlimited": UNLIMITED, "budgeted": WITHIN_STEPS}
STAGES = {"init": "before", "early_5": "after_5_percent"}
FILE = Path(track_record.__file__).with_suffix(".json")


def counted(parts: Sequence[Matched]) -> dict[str, Any]:
    """Lags that were learned, and all lags, from the lowest shares to the highest."""
    counts: dict[str, dict[str, list[list[int]]]] = {}
    for stage, name in STAGES.items():
        found = [(returned(rows, stage), rows.recovered("share") >= SHARE_LEARNED) for rows in parts]
        learned = np.concatenate([answer for _, answer in found])
        for kind, predictor in KINDS.items():
            share = np.concatenate([shares[predictor] for shares, _ in found])
            place = np.where(np.isnan(share), -1, np.digitize(share, EDGES))
            inside = [place == i for i in range(len(EDGES) + 1)]
            counts.setdefault(kind, {})[name] = [[int(learned[here].sum()), int(here.sum())] for here in inside]
    trainings = sum(len(np.unique(rows["training"])) for rows in parts)
    return {"trainings": trainings, "edges": list(EDGES), "learned_of": counts}


def of_results(folder: Path) -> dict[str, Any]:
    """The record of a folder of results and of that beside it with linear dependencies."""
    return counted([match(*load_tables(part)) for part in (folder, linear_folder(folder))])


def write_record(folder: Path) -> None:
    """Write what the package quotes."""
    write_text(FILE, json.dumps(of_results(folder)) + "\n")
