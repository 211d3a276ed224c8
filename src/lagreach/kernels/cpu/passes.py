"""Forward, backward and tangent passes over all replicas and rows, on as many threads as torch has.

Sequences do not depend on each other, so a block of rows goes through all of time before the next one starts: its state
and the weights stay in the cache. Which rows form a block depends on the shape alone, and gradients of blocks are added in
a fixed order, so the answer does not depend on the number of threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from lagreach._util.buffers import empty, zeros
from lagreach._util.progress import waiting
from lagreach._util.threads import Workers
from lagreach.cells import Cell, Params
from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import Gradients, Run, Weights
from lagreach.kernels.cpu.packing import Readout, gradients_like, pack, unpack
from lagreach.kernels.cpu.summed import STEPS as STEPS_SUMMED
from lagreach.kernels.entry import check_arrays, check_scan

ROWS = 32  # sequences in a block
MOST_SUMMED = 64  # of those whose states are summed as they come: what a step needs of the weights is read once for all
STEPS = 1024  # at least so many steps in a block, if there are so many
TERMS = (
    128  # rows times steps in one product of the gradients of weights; so many parts of rows stay in the first cache
)
SHARES = 16  # at most so many sums of gradients per replica
WORTH_THREADS = 2e7  # multiplications
MODULES = {"const_gate": "leaky", "elman": "leaky"}  # the other kernels are named like their cells


@dataclass(frozen=True)
class Forward:
    """A finished forward pass: its inputs, all with the replica axis first, and what it left behind."""

    cell: Cell
    x: np.ndarray  # (replica, time, seq, input)
    h0: np.ndarray  # (replica, seq, unit)
    c0: np.ndarray
    weights: list[Weights]
    run: Run

    def of(self, r: int) -> tuple[np.ndarray, Weights, np.ndarray, np.ndarray, Run]:
        """Return the part of one replica."""
        return self.x[r], self.weights[r], self.h0[r], self.c0[r], Run(*(a[r] for a in self.run))

    @property
    def work(self) -> float:
        """Multiplications of one product with the recurrent weights, over all of time."""
        return float(np.prod(self.x.shape[:3])) * self.weights[0].U.size


def forward(
    cell: Cell,
    x: torch.Tensor,
    s0: torch.Tensor,
    params: Params,
    *,
    keep: bool,
    readout: Readout | None = None,
    output_alone: bool = False,
) -> Forward:
    """Run the cell, and read its output at every step if there is a readout; `keep` what a backward or tangent pass needs.

    With `output_alone`, of the state's other block only the last two steps are kept.
    """
    check_scan(cell, x, s0, params)
    if readout is not None:
        outputs, units = readout.read.shape[1], cell.output(s0).shape[-1]
        shapes = {"read": (readout.read, (len(x), outputs, units)), "offset": (readout.offset, (len(x), outputs))}
        check_arrays(f"the readout of {cell.name}", shapes, dtype=x.dtype)
    inputs = _time_first(x.detach())
    h0, *rest = (np.ascontiguousarray(s.detach().numpy()) for s in cell.split(s0))
    replica, time, seq, _ = inputs.shape
    units, dtype = h0.shape[2], inputs.dtype
    c0 = rest[0] if rest else np.empty((replica, 0, 0), dtype)
    weights = pack(cell, params, readout)
    sizes = _sizes(cell, weights[0], (time, seq, units), kept=time if keep else 1)
    if output_alone and len(cell.blocks) > 1:
        sizes["c"] = (2, seq, units)
    run = Run(**{name: empty((replica, *size), dtype) for name, size in sizes.items()})
    done = Forward(cell, inputs, h0, c0, weights, run)
    kernel = _kernel(cell, "forward", dtype)
    _spread([partial(kernel, *done.of(r), *rows) for r in range(replica) for rows in _blocks(done)], done.work)
    return done


class Sums(NamedTuple):
    """What `summed` leaves of a forward pass, for each sequence."""

    read: np.ndarray  # (seq, time), the one output of a readout
    sums: np.ndarray  # (seq, unit), of what it misses times the states
    picked: np.ndarray  # (seq, pick, unit), states of some steps


def summed(
    cell: Cell,
    x: torch.Tensor,
    s0: torch.Tensor,
    params: Params,
    readout: Readout,
    target: torch.Tensor,
    share: torch.Tensor,
    index: torch.Tensor,
) -> Sums:
    """Run one network (replica axes of length one), read its one output, and sum ``share (target - output) h`` over time."""
    check_scan(cell, x, s0, params)
    (_, seq, time, width), units = x.shape, cell.output(s0).shape[-1]
    where, dtype = f"sums of the states of {cell.name}", x[0].detach().numpy().dtype
    check_arrays(where, {"inputs of one network": (x, (1, seq, time, width))})
    check_arrays(where, {"targets": (target, (seq, time)), "shares": (share, (seq, time))}, dtype=x.dtype)
    check_arrays(where, {"the readout": (readout.read, (1, 1, units))}, dtype=x.dtype)
    check_arrays(where, {"its offset": (readout.offset, (1, 1))}, dtype=x.dtype)
    check_arrays(where, {"the steps": (index, (seq, index.shape[1]))}, dtype=torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < time:
        raise InputError("these steps are not there", got=f"up to {int(index.max())}", expected=f"from 0 to {time - 1}")
    h0, *rest = (s[0].detach().numpy() for s in cell.split(s0))
    c0, weights = rest[0] if rest else np.empty((seq, 0), dtype), pack(cell, params, readout)[0]
    done = Sums(*(empty(shape, dtype) for shape in ((seq, time), (seq, units), (*index.shape, units))))
    done.sums[:] = 0
    before = [part.detach().contiguous().numpy() for part in (x[0], target, share, index)]
    kernel = _kernel(cell, "summed", dtype)

    def some(rows: slice) -> None:
        inputs, *others = (part[rows] for part in before)
        count = len(inputs)
        sizes = _sizes(cell, weights, (STEPS_SUMMED, count, units), kept=1)
        if len(cell.blocks) > 1:
            sizes["c"] = (2, count, units)
        run = Run(**{name: np.empty(size, dtype) for name, size in sizes.items()})
        room = np.empty((STEPS_SUMMED, count, width), dtype), np.empty((count, STEPS_SUMMED), dtype)
        near, state = np.empty((count, index.shape[1]), np.int64), (h0[rows].copy(), c0[rows].copy())
        kernel(inputs, weights, *state, run, *room, near, *others, *(part[rows] for part in done))

    rows = min(MOST_SUMMED, max(ROWS, -(-seq // torch.get_num_threads())))
    _spread([partial(some, slice(lo, lo + rows)) for lo in range(0, seq, rows)], float(seq * time * weights.U.size))
    return done


def _sizes(cell: Cell, weights: Weights, whole: tuple[int, int, int], kept: int) -> dict[str, tuple[int, ...]]:
    """Shape of each array of a `Run`, for one replica: `whole` are time, sequences and units."""
    time, seq, units = whole
    states, steps = (time, seq, units), (kept, seq, units)
    layernorm = weights.gain.size > 0
    return {
        "h": states,
        "c": states if len(cell.blocks) > 1 else (0, 0, 0),
        "act": (kept, seq, weights.b.size),
        "rh": steps if cell.name == "gru" else (0, 0, 0),
        "normal": steps if layernorm else (0, 0, 0),
        "inverse": (kept, seq) if layernorm else (0, 0),
        "read": (time, seq, len(weights.offset)) if weights.offset.size else (0, 0, 0),
    }


def _check_kept(done: Forward) -> None:
    """Compare what a forward pass has left behind with what the way back takes for granted."""
    replica, time, seq, _ = done.x.shape
    units = done.h0.shape[-1]
    sizes = _sizes(done.cell, done.weights[0], (time, seq, units), kept=time)
    del sizes["read"]  # the way back has no use for it
    kept = {name: (getattr(done.run, name), (replica, *size)) for name, size in sizes.items() if size[0]}
    kept["h before the first step"] = done.h0, (replica, seq, units)
    if len(done.cell.blocks) > 1:
        kept["c before the first step"] = done.c0, (replica, seq, units)
    check_arrays(f"the way back through {done.cell.name}", kept, dtype=done.x.dtype)


def _time_first(x: torch.Tensor) -> np.ndarray:
    """(replica, time, seq, input), copied only if it does not lie so in memory already."""
    turned = x.transpose(1, 2)
    if turned.is_contiguous():
        return turned.numpy()
    copy = empty(tuple(turned.shape), turned.numpy().dtype)
    torch.from_numpy(copy).copy_(turned)
    return copy


def backward(
    done: Forward,
    dh: np.ndarray | None,
    dc: np.ndarray | None,
    shapes: dict[str, torch.Size],
    wants_x: bool,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]:
    """Gradients of the weights by name, of the initial state, and (if wanted) of the inputs, in the layout of `scan`.

    With a readout, `dh` is the gradient of what was read, and the readout's weights are among those by name.
    """
    sums, dh0, dc0, dx = _walk_back(done, dh, dc, wants_x=wants_x)
    gradients = [Gradients(*(reduce(np.add, parts) for parts in zip(*of_replica, strict=True))) for of_replica in sums]
    ds0 = np.concatenate((dh0, dc0), axis=-1) if done.c0.size else dh0
    inputs = torch.from_numpy(dx).transpose(1, 2) if wants_x else None
    return unpack(done.cell, gradients, shapes), torch.from_numpy(ds0), inputs


def pullback(done: Forward, dh: np.ndarray, dc: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the pre-activations (replica, seq, time, width), blocks in the kernel's order, and of the inputs."""
    replica, time, seq, _ = done.x.shape
    width, W = done.weights[0].b.size, torch.from_numpy(np.stack([weights.W for weights in done.weights]))
    room = empty((replica, seq * time * width), done.x.dtype)
    _walk_back(done, dh, dc, wants_x=False, whole=room)
    rows = [
        room[:, lo * time * width : hi * time * width].reshape(replica, time, -1, width) for lo, hi in _blocks(done)
    ]
    d = torch.from_numpy(rows[0] if len(rows) == 1 else np.concatenate(rows, axis=2)).transpose(1, 2)
    return d, d[..., : W.shape[1]] @ W[:, None]


def _walk_back(
    done: Forward, dh: np.ndarray | None, dc: np.ndarray | None, *, wants_x: bool, whole: np.ndarray | None = None
) -> tuple[list[list[Gradients]], np.ndarray, np.ndarray, np.ndarray]:
    """Sums of the weights' gradients by replica and share, and gradients of h0, c0 and x.

    `whole` (replica, seq * time * width) takes the gradients of all pre-activations, one block of rows after the other. Who
    gives it wants no more: unless there is a LayerNorm or a readout, kernels are compiled without sums of weights.
    """
    _check_kept(done)
    cell, dtype, width = done.cell, done.x.dtype, done.weights[0].b.size
    replica, time, seq, _ = done.x.shape
    outputs = len(done.weights[0].offset)
    arriving = (*done.run.h.shape[:3], outputs) if outputs else done.run.h.shape
    cotangents = {"the gradient of h": (dh, arriving), "the gradient of c": (dc, done.run.c.shape)}
    check_arrays(f"the way back through {cell.name}", cotangents, dtype=dtype)
    if dh is None:
        dh = zeros(arriving, dtype)
    dc = np.empty((replica, 0, 0, 0), dtype) if dc is None else dc
    dh0, dc0 = zeros(done.h0.shape, dtype), zeros(done.c0.shape, dtype)
    dx = zeros(done.x.shape, dtype) if wants_x else np.empty((replica, 1, seq, 0), dtype)
    kernel = _kernel(cell, "backward", dtype, alone=whole is not None)
    blocks = _blocks(done)
    ends = [len(blocks) * k // SHARES for k in range(SHARES + 1)] if len(blocks) > SHARES else range(len(blocks) + 1)
    shares = [blocks[start:end] for start, end in pairwise(ends)]
    sums = [[gradients_like(done.weights[r]) for _ in shares] for r in range(replica)]
    summed = whole is None or outputs > 0 or done.weights[0].gain.size > 0

    def one_share(r: int, k: int) -> None:
        for lo, hi in shares[k]:
            if whole is None:
                room = empty((max(TERMS, hi - lo) * width,), dtype)
            else:
                room = whole[r, lo * time * width : hi * time * width]
            kernel(*done.of(r), dh[r], dc[r], sums[r][k] if summed else None, room, dh0[r], dc0[r], dx[r], lo, hi)

    _spread([partial(one_share, r, k) for r in range(replica) for k in range(len(shares))], 2 * done.work)
    return sums, dh0, dc0, dx


def tangent(done: Forward, direction: Params) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of h and c along a direction of the weights."""
    _check_kept(done)
    cell = done.cell
    h_dot, c_dot = empty(done.run.h.shape, done.x.dtype), empty(done.run.c.shape, done.x.dtype)
    kernel = _kernel(cell, "tangent", done.x.dtype)
    jobs = []
    for r, dot in enumerate(pack(cell, direction)):
        x, weights, *rest = done.of(r)
        jobs += [partial(kernel, x, weights, dot, *rest, h_dot[r], c_dot[r], *rows) for rows in _blocks(done)]
    _spread(jobs, 2 * done.work)
    return h_dot, c_dot


def _blocks(done: Forward) -> list[tuple[int, int]]:
    """Rows of each block."""
    time, seq = done.x.shape[1:3]
    rows = max(ROWS, STEPS // time)
    return [(start, min(start + rows, seq)) for start in range(0, seq, rows)]


_ready: dict[tuple[str, str, np.dtype[Any], bool], Callable[..., None]] = {}  # kernels that this process has called


def _kernel(cell: Cell, which: str, dtype: np.dtype[Any], *, alone: bool = False) -> Callable[..., None]:
    """Look a kernel up; its first call, which may compile it (`alone`: without sums of weights), says so on the terminal."""
    name = MODULES.get(cell.name, cell.name)
    key = (name, which, dtype, alone)
    if key in _ready:
        return _ready[key]
    function: Callable[..., None] = getattr(importlib.import_module(f"lagreach.kernels.cpu.{name}"), which)

    def first(*arguments: Any) -> None:
        shown = key not in _ready
        _ready[key] = function  # before the call: other threads that come now wait for the compiler, but show no line
        with waiting(f"compiling the {name} kernel for this machine, once ...") if shown else nullcontext():
            function(*arguments)

    return first


def _spread(jobs: Sequence[Callable[[], None]], work: float) -> None:
    """Run all jobs, on several threads if torch has them and the work is worth it."""
    if work < WORTH_THREADS:
        for job in jobs:
            job()
    else:
        Workers().run(jobs)
