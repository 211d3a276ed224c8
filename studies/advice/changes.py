"""Each arm of the study: what is trained in a situation with a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lagreach.advice.changes import CELL, GATES, LENGTH, ORTHOGONAL, RATE, SEQUENCES, STEPS, UNITS, tensor_change
from lagreach.advice.gates import spread_biases
from lagreach.advice.starts import orthogonal_weights, write
from lagreach.models.gated_rnn import GatedRNN
from lagreach.study.data import generator_for
from studies.advice.situations import CELLS, Situation

ARMS = ("first", "again", "advised", "random", "kept", "kept random")  # the last two where the cell is advised away
NUMBERS = (UNITS, SEQUENCES, STEPS, RATE, LENGTH)
MOST = {"units": 256, "sequences": 20_000, "steps": 8_000}


@dataclass(frozen=True)
class Run:
    """One training: `setting` is the situation after the change, `start_seed` the seed of its weights and their order.

    `seed` is that of its sequences.
    """

    situation: str
    arm: str
    seed: int
    start_seed: int
    setting: Situation
    model: GatedRNN
    change: str


def run_of(situation: Situation, arm: str, seed: int, advice: dict[str, Any]) -> Run:
    """What is trained in this arm; `advice` is the one that the arm follows."""
    if arm == "first":
        return Run(situation.name, arm, seed, seed, situation, situation.model(seed), "none")
    if arm == "again" or (arm in ("advised", "kept") and advice["kind"] == "nothing"):
        start_seed = seed + (100 if arm == "again" else 200)
        return Run(situation.name, arm, seed, start_seed, situation, situation.model(start_seed), "none")
    kind, factor = str(advice["kind"]), float(advice["factor"])
    if arm in ("advised", "kept"):
        setting, model = advised(situation, kind, factor, advice.get("cell"), seed)
        return Run(situation.name, arm, seed, seed, setting, model, kind)
    setting, model, name = at_random(situation, kind, factor, advice.get("cell"), seed)
    return Run(situation.name, arm, seed, seed, setting, model, name)


def advised(situation: Situation, kind: str, factor: float, cell: str | None, seed: int) -> tuple[Situation, GatedRNN]:
    """The change that was advised."""
    if kind in (GATES, ORTHOGONAL):
        model = situation.model(seed)
        write(model, _start(model, kind, situation.lag, seed))
        return situation, model
    if kind == CELL:
        assert cell is not None
        setting = multiplied(replace(situation, cell=cell, start={}), UNITS, factor)
        model = setting.model(seed)
        write(model, spread_biases(model, situation.lag))
        return setting, model
    setting = multiplied(situation, kind, factor)
    return setting, setting.model(seed)


def _start(model: GatedRNN, kind: str, lag: int, seed: int) -> dict[str, torch.Tensor]:
    return spread_biases(model, lag) if kind == GATES else orthogonal_weights(model, seed)


def at_random(
    situation: Situation, kind: str, factor: float, cell: str | None, seed: int
) -> tuple[Situation, GatedRNN, str]:
    """A change of the same size, and its name."""
    generator = generator_for("random change", situation.name, seed)
    if kind in (GATES, ORTHOGONAL):
        model = situation.model(seed)
        values = _start(model, kind, situation.lag, seed)
        size = tensor_change(values, model).norm()
        held = dict(model.named_parameters())
        moves = {name: torch.randn(value.shape, generator=generator) for name, value in values.items()}
        whole = torch.cat([move.flatten() for move in moves.values()]).norm()
        write(model, {name: held[name].detach() + move * (size / whole) for name, move in moves.items()})
        return situation, model, f"{kind} at random"
    if kind == CELL:
        others = [name for name in CELLS if name not in (situation.cell, cell)]
        drawn = others[int(torch.randint(len(others), (), generator=generator))]
        setting = multiplied(replace(situation, cell=drawn, start={}), UNITS, factor)
        return setting, setting.model(seed), drawn
    others = [name for name in NUMBERS if name != kind and (name != LENGTH or situation.piece is not None)]
    drawn = others[int(torch.randint(len(others), (), generator=generator))]
    down = drawn == RATE and bool(torch.rand((), generator=generator) < 0.5)
    setting = multiplied(situation, drawn, 1 / factor if down else factor)
    return setting, setting.model(seed), f"{drawn} {'/' if down else 'x'} {factor:g}"


def multiplied(situation: Situation, kind: str, factor: float) -> Situation:
    """One number of a situation, multiplied; cut where it could not be trained."""
    if kind == RATE:
        return replace(situation, lr=situation.lr * factor)
    if kind == LENGTH:
        assert situation.piece is not None
        longer = round(situation.piece * factor)
        return replace(situation, piece=None if longer >= situation.task.length else longer)
    name = {UNITS: "units", SEQUENCES: "sequences", STEPS: "steps"}[kind]
    now = int(getattr(situation, name))
    changed: dict[str, Any] = {name: max(1, min(round(now * factor), MOST[name]))}
    return replace(situation, **changed)
