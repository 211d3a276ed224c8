"""Outcomes and predictions made up with known answers, in the columns of real ones."""

import numpy as np
import pyarrow as pa

from lagreach.study.validation.tables import OUTCOMES, PREDICTIONS, as_table

BUDGETS = (100, 670, 4480, 30000)
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
            own = level + generator.normal(0, 0.2)
            for lag in lags:
                true = own + 0.8 * np.log10(lag) + generator.normal(0, 0.2)
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


def heavy_tails(generator, seeds=5, lags=(2, 4, 8, 16), budgets=BUDGETS, level=0.6):
    """Trainings on heavy-tailed noise in which N moves as kappa for plain, and as 2 for clipped training."""
    outcomes, predictions = [], []
    for clip in (False, True):
        for alpha in (1.3, 1.6, 2.0):
            exponent = 2.0 if clip else alpha / (alpha - 1)
            for seed in range(seeds):
                for lag in lags:
                    ratio = level + 0.35 * np.log2(lag)  # log10 of noise over signal
                    true = exponent * ratio + generator.normal(0, 0.15)
                    for n in budgets:
                        score = float(1 / (1 + np.exp(-4 * (np.log10(n) - true))))
                        row = outcome_row(
                            f"tails{clip}{alpha}", "tails", "gru", n, seed, lag, score, clip=clip, noise_alpha=alpha
                        )
                        outcomes.append(row)
                        predictions.append(prediction_row(row, "init", "n_probe", 10 ** (2 * ratio)))
    return outcomes, predictions


def tables(outcomes, predictions) -> tuple[pa.Table, pa.Table]:
    return as_table(outcomes, OUTCOMES), as_table(predictions, PREDICTIONS)
