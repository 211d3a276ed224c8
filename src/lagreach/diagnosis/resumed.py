"""Long measurements of whole models that go on where they stopped: finished blocks are kept in a folder.

    lagreach.diagnose(model, data, measure=Resumed("folder"))

After an interrupt, a crash or a machine that was taken away, the same call reads what is there and does the rest. Files are
found by what they were measured of: the data, the weights, the loss, the lags and the settings. Anything else is left alone.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach._util.disk import make_folder, write_whole
from lagreach._util.progress import Progress, ticks
from lagreach.data.sequences import fingerprint
from lagreach.diagnosis.assemble import MeasuredWindow
from lagreach.diagnosis.measure import interruptible_window
from lagreach.diagnosis.passes import Statistics
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.errors import UnsupportedError
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.gradients.noise import NoiseValues
from lagreach.gradients.partial_inputs import InputMoments as PartialMoments
from lagreach.whole_model.exchange import ExchangePart
from lagreach.whole_model.factors import Factors
from lagreach.whole_model.input_moments import InputMoments
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.signals import SignalPart
from lagreach.whole_model.spread import FEWEST, Spread, Work, until_interrupted

KEPT = (SignalPart, ExchangePart, NoiseValues, PartialMoments, Factors, InputMoments)
FORMAT = 3  # of the files; others are not read


class Resumed:
    """A way of measuring that keeps finished blocks in a folder, and takes those that are there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def spread(self, settings: MeasureSettings) -> Spread:
        """The way for lags of a whole model."""
        make_folder(self.folder)
        return _Kept(self.folder, settings)

    def __call__(
        self, plan: MeasurementPlan, settings: MeasureSettings, progress: Progress | None, statistics: Statistics
    ) -> MeasuredWindow:
        """Recurrent layers are measured within minutes, and kept nowhere."""
        return interruptible_window(plan, settings, progress, statistics)


@dataclass(frozen=True)
class _Kept(Spread):
    """Eight blocks after eight, in this process; an interrupt keeps them too."""

    folder: Path
    settings: MeasureSettings

    def parts(self, plan: WholeModelPlan, work: Work, progress: Progress | None) -> Iterator[Any]:
        """Results of the work, read or made."""
        measured = digest((FORMAT, described(plan), self.settings, work))
        tick = ticks(progress, work.stage, plan.block_plan.sequences)
        count = plan.block_plan.count

        def read_or_made(blocks: tuple[int, ...]) -> Any:
            path = self.folder / f"{work.stage.replace(' ', '-')}-{measured}-{blocks[0]}.pt"
            part = read(path)
            if part is None:
                part = work(plan, blocks, tick)
                write(path, part)
            elif tick is not None:
                tick(2 * int(np.isin(plan.block_plan.blocks, blocks).sum()))
            return part

        groups = [tuple(range(start, min(start + FEWEST, count))) for start in range(0, count, FEWEST)]
        return until_interrupted(groups, read_or_made)


def described(plan: WholeModelPlan) -> tuple[Any, ...]:
    """All that decides what a piece of work gives: model, data, loss, lags, anchors and pairs."""
    if callable(plan.loss):
        raise UnsupportedError(
            "a loss function of your own cannot be recognised when a measurement is resumed",
            got=getattr(plan.loss, "__name__", type(plan.loss).__name__),
            expected='"mse" or "cross_entropy"',
            fix="measure without resuming",
        )
    weights = [weight.detach().double() for weight in plan.model.module.state_dict().values()]
    sums = [torch.stack((weight.sum(), weight.square().sum())).cpu() for weight in weights]
    called = _written(getattr(plan.model.call, "__code__", None))
    return (
        fingerprint(plan.sequences), sums, repr(plan.model.module), called, plan.loss, plan.bands.edges,
        plan.anchors, plan.source.name, plan.outputs, plan.signal, plan.seed, plan.output,
        plan.block_plan.pairs, plan.block_plan.blocks, plan.block_plan.members, repr(plan.steps), plan.weighting,
    )  # fmt: skip


def _written(code: Any) -> Any:
    """A function's code as text, without the places in memory that its own text has."""
    if not isinstance(code, CodeType):
        return repr(code)
    return code.co_name, code.co_code.hex(), [_written(part) for part in code.co_consts]


def write(path: Path, part: Any) -> None:
    """Write a part: numbers, texts and tensors alone."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "part": plain(part)}, buffer)
    write_whole(path, buffer.getvalue())


def read(path: Path) -> Any:
    """Read a part; None if there is none, or not a whole one."""
    if not path.exists():
        return None
    try:
        held = torch.load(path, weights_only=True, map_location="cpu")
        return rebuilt(held["part"]) if held["format"] == FORMAT else None
    except Exception:  # half a file, or somebody else's: measured again and written over
        return None


def plain(value: Any) -> Any:
    """A record as dicts, lists, numbers, texts and tensors."""
    if isinstance(value, np.ndarray):
        return {"array": torch.from_numpy(np.array(value))}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__ if type(value) in (tuple, list) else "tuple": [plain(part) for part in value]}
    if isinstance(value, (Factors, InputMoments)):
        state = value.__getstate__() if isinstance(value, Factors) else vars(value)
        return {_name(type(value)): {name: plain(part) for name, part in state.items()}}
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value) if not field.name.startswith("_")}
        return {_name(type(value)): {name: plain(part) for name, part in named.items()}}
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return value
    return {"text": str(value)}


def rebuilt(value: Any) -> Any:
    """The record again."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "array":
        return held.numpy()
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(rebuilt(part) for part in held)
    cls = next(cls for cls in KEPT if _name(cls) == kind)
    record = cls.__new__(cls)
    for name, part in held.items():
        object.__setattr__(record, name, rebuilt(part))  # of frozen records too
    return record


def _name(cls: type) -> str:
    return "PartialMoments" if cls is PartialMoments else cls.__name__


def digest(value: Any) -> str:
    """A short name for a record, by its contents."""
    state = hashlib.blake2b(digest_size=12)

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for name, inner in part.items():
                state.update(f"{name}:".encode())
                add(inner)
        elif isinstance(part, list):
            state.update(f"[{len(part)}]".encode())
            for inner in part:
                add(inner)
        elif isinstance(part, Tensor):
            values = part.detach().cpu().contiguous()
            values = values.float() if values.dtype == torch.bfloat16 else values
            state.update(f"{values.dtype}{tuple(values.shape)}".encode() + values.numpy().tobytes())
        else:
            state.update(repr(part).encode())

    add(plain(value))
    return state.hexdigest()
