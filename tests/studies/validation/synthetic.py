"""Outcomes and predictions made up with known answers, in the columns of real ones."""

from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa

from lagreach.tails import stable
from studies.validation.tables import OUTCOMES, PREDICTIONS, as_table
from studies.validation.tails import median_error

BUDGETS = (100, 670, 4480, 30000)
TAIL_BUDGETS = (30, 170, 950, 5300, 30000)
CELLS = ("gru", "lstm", "elman", "diag_gate")
TASKS = ("recall", "adding", "sparse", "dense")


def outcome_row(condition, task, cell, n, seed, lag, score, **others):
    row = {
        "training": f"{condition}-n{n}-s{seed}",
        "condition": condition,
        "task": task,
        "task_name": f"{task}_0",
        "cell": cell,
        "gate_init": "0.2",
        "optimiser": "adamw",
        "clip": True,
        "noise_alpha": 2.0,
        "sequences": n,
        "seed": seed,
        "hidden": 64,
        "length": 128,
        "steps": 1000,
        "lag": lag,
        "score": score,
        "score_best": score,
        "loss": 1.0 - score,
        "loss_best": 1.0 - score,
        "floor": np.nan,
        "capacity_binds": task == "dense" and lag >= 64,
        "status": "OK",
        "ratio": np.nan,
        "batch": 32.0,
    }
    return row | others


def prediction_row(outcome, stage, predictor, value):
    shared = {name: outcome[name] for name in ("training", "condition", "seed", "lag")}
    return shared | {"stage": stage, "predictor": predictor, "value": value, "low": np.nan, "high": np.nan}


def study(
    generator,
    conditions=16,
    seeds=3,
    lags=(4, 16, 64),
    stages=("init", "end"),
    noise=0.0,
    bias=1.0,
    budgets=BUDGETS,
    variants=(),
):
    """A study in which a lag is half recovered at N = N_true exactly.

    n_probe is N_true off by `noise` decades, n_data is `bias` times N_true, paper_window knows nothing.
    """
    outcomes, predictions = [], []
    for c in range(conditions):
        task, cell = TASKS[c % 4], CELLS[(c // 4) % 4]
        level = generator.normal(2.0, 0.5)
        for seed in range(seeds):
            network_level = level + generator.normal(0, 0.2)
            for lag in lags:
                true = network_level + 0.8 * np.log10(lag) + generator.normal(0, 0.2)
                wrong = true + noise * generator.normal()
                useless = generator.normal(3, 1)
                for n in budgets:
                    score = float(1 / (1 + np.exp(-4 * (np.log10(n) - true))))
                    row = outcome_row(f"c{c}", task, cell, n, seed, lag, score, task_name=f"{task}_{c // 4 % 2}")
                    outcomes.append(row)
                    values = {
                        "n_probe": 10**wrong,
                        "n_data": bias * 10**true,
                        "paper_window": 10**useless,
                        "tau_max": 10 ** (3 - level) / lag,
                        "capacity": 64.0 / lag,
                    }
                    values |= {name: 10 ** (true + extra * generator.normal()) for name, extra in variants}
                    for stage in stages:
                        predictions += [prediction_row(row, stage, name, value) for name, value in values.items()]
    return outcomes, predictions


@cache
def unit_scale(alpha, law):
    """Scale of a stable law that has the median of the error from one term."""
    return median_error(alpha, 1.0) / float(stable.ppf(0.75, law))


def heavy_tails(
    generator, exponents=None, seeds=4, lags=(1, 2, 4), ratios=(4, 12, 36, 108), budgets=TAIL_BUDGETS, bias=0.0
):
    """Trainings whose recovered shares are off by errors that fall with N as those of plain and clipped training should.

    `exponents` by (clipped, alpha) put others in the place of kappa and 2; `bias` is what N does not help against.
    """
    outcomes, length, batch = [], 16, 64
    for clip, alpha, ratio, n, seed in product((False, True), (1.3, 1.6, 2.0), ratios, budgets, range(seeds)):
        exponent = (exponents or {}).get((clip, alpha), 2.0 if clip else alpha / (alpha - 1))
        law = 2.0 if clip else alpha  # of the sum; its median is that of the prediction
        common = 10 ** generator.normal(0, 0.0 if law == 2 else 0.2)  # the largest noise is shared by all lags
        drawn = stable.rvs(law, len(lags), generator)
        for lag, error in zip(lags, drawn.tolist(), strict=True):
            start = batch * (length - lag) if clip else 1.0
            scale = unit_scale(alpha, law) * start ** (1 / alpha - 1)
            fallen = ((length - lag) * n / start) ** (-1 / exponent)
            share = 1 + bias + ratio * scale * common * error * fallen
            options = {
                "clip": clip,
                "noise_alpha": alpha,
                "ratio": float(ratio),
                "batch": float(batch),
                "length": length,
            }
            outcomes.append(outcome_row(f"tails{clip}{alpha}{ratio}", "tails", "gru", n, seed, lag, share, **options))
    return outcomes


def tables(outcomes, predictions) -> tuple[pa.Table, pa.Table]:
    return as_table(outcomes, OUTCOMES), as_table(predictions, PREDICTIONS)
