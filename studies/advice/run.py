"""Run the study in a folder: advice for every situation, then all trainings; what is there already is not made again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from lagreach._util.disk import make_folder, write_text
from lagreach.advice.advise import advise
from lagreach.advice.changes import CELL, KINDS, NOTHING, SEQUENCES
from lagreach.data.batch import Batch
from lagreach.errors import RunError
from lagreach.study.tables import Row, read_rows, write_rows
from studies.advice.changes import ARMS, run_of
from studies.advice.situations import ENOUGH, NOISY, Situation, situations, tiny
from studies.advice.trainings import HELD_OUT, GroupTraining, cut, groups, pool, train_groups

SEEDS = 5
SIDE_BY_SIDE = {"cuda": 12, "cpu": 1}
KEPT, BEFORE = "+kept", "+before"  # how else advice is asked for, see `advice_for`
ADVICE, OUTCOMES = "advice.json", "outcomes.parquet"

Say = Callable[[str], None]


def run_study(
    out: Path,
    *,
    device: str = "cpu",
    seeds: int = SEEDS,
    workers: int | None = None,
    smoke: bool = False,
    earlier: Path | None = None,
    say: Say = print,
) -> None:
    """Make what is missing of the study, and put it into two files: advice.json and outcomes.parquet.

    `earlier` is the folder of a finished run: its situations are taken from there.
    """
    started = time.perf_counter()
    every = tiny(situations()) if smoke else situations()
    held: dict[str, Any] = {"situations": [], "advice": {}}
    rows: list[Row] = []
    if earlier is not None:
        held, rows = json.loads((earlier / ADVICE).read_text()), read_rows(earlier / OUTCOMES)
    known = {situation["name"] for situation in held["situations"]}
    chosen = [situation for situation in every if situation.name not in known]
    make_folder(out / "pieces")
    workers = workers or max(1, (os.cpu_count() or 2) - 1)
    advice = _advise_all(out, chosen, workers, say) | held["advice"]
    unasked = [situation for situation in every if situation.name + BEFORE not in advice]
    advice |= _advise(out, [(situation, BEFORE) for situation in unasked], workers, say)
    say(f"{time.perf_counter() - started:.0f} s: {len(advice)} pieces of advice")
    rows += _train_all(out, chosen, advice, seeds, device, say, started)
    write_rows(out / OUTCOMES, sorted(rows, key=lambda row: (row["situation"], ARMS.index(row["arm"]), row["seed"])))
    minutes = (time.perf_counter() - started) / 60
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about: dict[str, Any] = {
        "device": where,
        "torch": torch.__version__,
        "seeds": seeds,
        "minutes": round(minutes, 1),
        "smoke": smoke,
    }
    if (out / ADVICE).exists():  # what an earlier call had made, on whatever machine
        about["earlier"] = json.loads((out / ADVICE).read_text())["run"]
    elif earlier is not None:
        about["earlier"] = held["run"]
    everything = {"run": about, "situations": [asdict(situation) for situation in every], "advice": advice}
    write_text(out / ADVICE, json.dumps(everything, indent=1, sort_keys=True) + "\n")
    say(f"{len(rows)} trainings in {minutes:.1f} minutes; python -m studies.advice analyse {out}")


def _advise_all(out: Path, chosen: Sequence[Situation], workers: int, say: Say) -> dict[str, dict[str, Any]]:
    """First advice of every situation by its name, and the one with the cell kept by the name and KEPT."""
    first_advice = _advise(out, [(situation, "") for situation in chosen if situation.group != ENOUGH], workers, say)
    advised_away = [name for name, advice in first_advice.items() if advice["kind"] == CELL]
    other = [(situation, KEPT) for situation in chosen if situation.name in advised_away]
    return first_advice | _advise(out, other, workers, say)


def _advise(out: Path, wanted: Sequence[tuple[Situation, str]], workers: int, say: Say) -> dict[str, dict[str, Any]]:
    paths = {_key(*asked): out / "pieces" / f"{_key(*asked)}.json" for asked in wanted}
    left = [asked for asked in wanted if not paths[_key(*asked)].exists()]
    with _processes(workers if len(left) > 1 else 1) as together:
        for asked, made in zip(left, together(advice_for, left), strict=True):
            write_text(paths[_key(*asked)], json.dumps(made))
            say(
                f"{_key(*asked)}: {made['kind']} x {made['factor']:g}, expected {made['expected']:.2f} "
                f"({made['why']}, {made['share']:.2f} before)"
            )
    return {key: json.loads(path.read_text()) for key, path in paths.items()}


def _key(situation: Situation, asked: str) -> str:
    return situation.name + asked


@contextmanager
def _processes(workers: int) -> Iterator[Any]:
    if workers == 1:
        yield map
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as processes:
        yield processes.map


def advice_for(wanted: tuple[Situation, str]) -> dict[str, Any]:
    """First advice for the network of seed 0: it sees held-out sequences, in pieces as they are trained on, and no outcome.

    Asked after a training that failed, with the cell kept (KEPT), or before any training (BEFORE).
    """
    situation, asked = wanted
    x, y = (cut(part, situation.piece) for part in pool(situation.task_name, 0, "held out", HELD_OUT))
    mask = situation.task.mask()
    data = Batch(x, y, None if mask is None else mask.expand(len(x), -1))
    model = situation.model(0)
    pieces = 1 if situation.piece is None else situation.task.length // situation.piece
    advice = advise(
        model, data, situation.lag, sequences=situation.sequences * pieces, optimiser=situation.torch_optimiser(model),
        steps=situation.steps, learned=None if asked == BEFORE else 0.0, kinds=_open(situation, asked),
    )  # fmt: skip
    first = advice.first
    return {
        "kind": first.kind, "factor": first.factor, "cell": first.cell, "expected": first.expected, "low": first.low,
        "high": first.high, "share": advice.share, "why": advice.why, "says": first.says, "code": first.code,
    }  # fmt: skip


def _open(situation: Situation, asked: str) -> list[str]:
    """Kinds of changes that are asked for."""
    if asked == BEFORE:
        return [NOTHING]
    return [SEQUENCES] if situation.group == NOISY else [kind for kind in KINDS if asked != KEPT or kind != CELL]


def _followed(situation: Situation, arm: str) -> str:
    return situation.name + (KEPT if arm.startswith("kept") else "")


def _train_all(
    out: Path,
    chosen: Sequence[Situation],
    advice: dict[str, dict[str, Any]],
    seeds: int,
    device: str,
    say: Say,
    started: float,
) -> list[Row]:
    runs = [
        run_of(situation, arm, seed, advice.get(_followed(situation, arm), {}))
        for situation in chosen
        for arm in (ARMS if situation.group != ENOUGH else ("first",))
        if arm == "first" or _followed(situation, arm) in advice
        for seed in range(seeds)
    ]
    together = groups(runs)
    done = {name: out / "pieces" / f"{name}.parquet" for name in together}
    left = [name for name in together if not done[name].exists()]
    # trainings of one length run side by side, so that none waits for a longer one
    left.sort(key=lambda name: (together[name][0].setting.steps, together[name][0].setting.task.length))
    side = SIDE_BY_SIDE.get(device, 1)
    for start in range(0, len(left), side):
        names = left[start : start + side]
        try:
            parts = [GroupTraining(name, together[name], device) for name in names]
            train_groups(parts)
            for part in parts:
                write_rows(done[part.name], part.rows())
        except RuntimeError as error:  # of the device; the other groups go on, and another call makes what is missing
            say(f"not trained: {', '.join(names)}: {error}")
        say(
            f"{time.perf_counter() - started:.0f} s: {start + len(names)} of {len(left)} groups trained, "
            f"{together[names[-1]][0].setting.steps} steps"
        )
    missing = [name for name, path in done.items() if not path.exists()]
    if missing:
        raise RunError(
            f"{len(missing)} of {len(done)} groups could not be trained",
            got=f"see the messages above: {', '.join(missing[:4])}",
            expected="a result of every group",
            fix="run the same command again: it makes what is missing",
        )
    return [row for path in done.values() for row in read_rows(path)]
