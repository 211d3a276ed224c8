"""Outcomes and predictions brought together: one row for each lag of each training, one column for each predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from lagreach.errors import InputError
from studies.validation.bootstrap import cluster_weights
from studies.validation.statistics import NEEDED, UNITS
from studies.validation.tables import NEEDED_BY_FORECAST, STAGES

if TYPE_CHECKING:
    import pyarrow as pa

BASELINES = ("more_data", "short_lag", "data_per_lag")  # what anyone would guess without looking at the network


def base_name(predictor: str) -> str:
    """Name of a predictor without its variant.

    >>> base_name("n_probe|params=all")
    'n_probe'
    """
    return predictor.partition("|")[0]


@dataclass(frozen=True)
class Matched:
    """Columns of outcomes, and predictions in their order: NaN where refused, and where there is none.

    `offered` says where a predictor has a row, refused or not.
    """

    columns: Mapping[str, np.ndarray]
    values: Mapping[tuple[str, str], np.ndarray]  # by stage and predictor
    offered: Mapping[tuple[str, str], np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["lag"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def where(self, rows: Bool[np.ndarray, "row"]) -> Matched:
        """Some of the rows."""
        return Matched(
            {name: value[rows] for name, value in self.columns.items()},
            {key: value[rows] for key, value in self.values.items()},
            {key: value[rows] for key, value in self.offered.items()},
        )

    def predictors(self, stage: str, *, variants: bool = False) -> list[str]:
        """Names of the predictors at a stage, in the order in which they came; variants apart."""
        return [name for at, name in self.values if at == stage and ("|" in name) == variants]

    @property
    def stages(self) -> list[str]:
        """Stages that there are predictions for, from first to last."""
        return [stage for stage in STAGES if any(at == stage for at, _ in self.values)]

    @property
    def row_weights(self) -> Float[np.ndarray, "row"]:
        """Weights that let every training count the same, however many lags it is asked for."""
        _, training, lags = np.unique(self["training"], return_inverse=True, return_counts=True)
        return 1 / lags[training]

    def recovered(self, column: str = "score") -> Float[np.ndarray, "row"]:
        """Recovered scores; a training that diverged without leaving weights behind has recovered nothing."""
        return np.where((self["status"] == "DIVERGED") & np.isnan(self[column]), 0.0, self[column])

    def draws(self, replicates: int, seed: int, at: np.ndarray | None = None) -> Float[np.ndarray, "replica row"]:
        """Bootstrap draws of the rows (or of those `at` some places): tasks, then conditions with their seeds."""
        places = np.arange(len(self)) if at is None else at
        inner = [f"{c}/{s}" for c, s in zip(self["condition"][places], self["seed"][places], strict=True)]
        generator = np.random.default_rng(seed)
        return cluster_weights(self["task_name"][places].astype(str), np.array(inner, dtype=str), replicates, generator)

    def score(self, predictor: str, stage: str) -> Float[np.ndarray, "row"]:
        """A predictor as a number that is larger where the lag should rather be learned, in decades.

        Sequences needed become log10(N / needed), so that 0 is the border; "never" is -inf. NaN where there is no
        prediction.
        """
        lag, sequences = self["lag"].astype(float), self["sequences"].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            if predictor in BASELINES:
                return {
                    "more_data": np.log10(sequences),
                    "short_lag": -np.log10(lag),
                    "data_per_lag": np.log10(sequences) - np.log10(lag),
                }[predictor]
            name, value = base_name(predictor), self.values[stage, predictor]
            if name in (*NEEDED, *NEEDED_BY_FORECAST):
                return np.log10(sequences) - np.log10(value)
            unit = UNITS.get(name, "")
            if unit == "log":
                return value / np.log(10.0)
            return value if unit == "log10" else np.log10(value)


def match(outcomes: pa.Table, predictions: pa.Table) -> Matched:
    """Bring the two tables of a run together; two of the same are refused."""
    columns = {name: outcomes[name].to_numpy(zero_copy_only=False) for name in outcomes.column_names}
    place = {key: k for k, key in enumerate(zip(columns["training"].tolist(), columns["lag"].tolist(), strict=True))}
    if len(place) != len(columns["lag"]):
        raise InputError(
            "some outcomes are there twice",
            got=f"{len(columns['lag']) - len(place)} rows too many",
            expected="one row for every training",
        )
    keys = zip(predictions["training"].to_pylist(), predictions["lag"].to_pylist(), strict=True)
    row = np.array([place.get(key, -1) for key in keys], dtype=int)
    stages, names, value = (
        predictions[name].to_numpy(zero_copy_only=False) for name in ("stage", "predictor", "value")
    )
    values, offered = {}, {}
    for stage in (s for s in STAGES if (stages == s).any()):
        for name in dict.fromkeys(names[stages == stage].tolist()):
            of_predictor = np.flatnonzero((stages == stage) & (names == name))
            known = of_predictor[
                row[of_predictor] >= 0
            ]  # lag 1 and the like, which the task does not ask for, has no outcome
            if len(np.unique(row[known])) != len(known):
                raise InputError(
                    "some predictions are there twice",
                    got=f"{name} at stage {stage}",
                    expected="one row for every training and stage",
                )
            filled, there = np.full(len(columns["lag"]), np.nan), np.zeros(len(columns["lag"]), dtype=bool)
            filled[row[known]], there[row[known]] = value[known], True
            values[stage, name], offered[stage, name] = filled, there
    return Matched(columns, values, offered)
