"""How a cell runs on the GPU: its kernels and blocks, the shape of its tiles, and where its weights live."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from torch import Tensor

from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError
from lagreach.kernels.packing import blocks_of

PRECISIONS = ("float32", "float16")
_precision: ContextVar[str] = ContextVar("precision", default="float32")

# Sequences per program. Tensor cores multiply tiles: the left factor has at least 16 rows, the right one at least 8 columns.
ROWS = 16  # sequences x units: sequences are rows of the left factor
UNITS_FIRST_ROWS = 8  # units x sequences: sequences are columns of the right factor
# Bytes of weights that one multiprocessor can hold for the whole time loop, beside everything else in its shared memory:
RESIDENT_BYTES = 192 << 10  # where it holds all weights
STREAMING_BYTES = 128 << 10  # where it holds some, and needs room for slices of the others
UNITS_FIRST_BYTES = 256 << 10  # in a units-first kernel, which keeps half of the weights in registers
UNITS_FIRST_WIDEST = 128  # largest hidden size of a units-first kernel
UNITS_FIRST_SIZES = (64, 128)  # hidden sizes where they were measured to be faster (benchmarks/results/gpu.json)
COPIES = 2  # of a sequence that is alone: threads for each unit
ALONE_WIDEST = 256  # units of all blocks of a sequence alone: half as many weights stay in the registers of a thread
ALONE_MOST = 132 << 15  # weights of all sequences up to which each runs alone: what 132 multiprocessors hold at once
# Else the compiler saves registers for the sake of more programs at once, and loads too late.
MOST_REGISTERS = 255  # of a thread
STREAMED_SLICE = 32  # of weights that are streamed: so much of the axis that is summed over at a time
WIDEST = 512  # largest hidden size of any kernel, padded to a power of two


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Set the accuracy of the recurrent products within a ``with`` block.

    "float32" (default) splits each factor in two and keeps float32 accuracy. "float16" multiplies only the leading 11
    bits of scaled factors, as TF32 does, and still sums in float32: faster, with relative errors around 1e-3. Sequences
    that run alone (`Shape`) keep float32, which is no slower there.

    >>> with precision("float16"):
    ...     current_precision()
    'float16'
    """
    token = _precision.set(check_precision(name))
    try:
        yield
    finally:
        _precision.reset(token)


def check_precision(name: str) -> str:
    """Refuse a name that is not a precision."""
    if name not in PRECISIONS:
        raise InputError("unknown precision", got=repr(name), expected=", ".join(PRECISIONS))
    return name


def current_precision() -> str:
    """Accuracy of the recurrent products; see `precision`."""
    return _precision.get()


@dataclass(frozen=True)
class Shape:
    """Choices that change how fast a launch is, and its results by no more than rounding. None: the usual one.

    units_first : tiles of units x sequences (`units_first_parts`), where the cell has such kernels and its weights fit
    alone : one sequence in a program of these kernels, likewise
    rows, warps : sequences and warps of a program
    registers : of a thread, at most; with fewer, more programs share a multiprocessor
    resident, slice : blocks of weights that stay in shared memory; how much of the summed axis is streamed at once
    sums : the gradients of the weights by `weight_sums` rather than by float32 products of torch
    sums_tile : units, times, warps and stages of its programs
    """

    units_first: bool = False
    alone: bool = False
    rows: int | None = None
    warps: int | None = None
    registers: int | None = None
    resident: int | None = None
    slice: int | None = None
    sums: bool = False
    sums_tile: tuple[int, int, int, int] | None = None


_shape: ContextVar[Shape | None] = ContextVar("shape", default=None)


@contextmanager
def shaped(shape: Shape | None = None, **choices: Any) -> Iterator[None]:
    """Use this shape for all launches within a ``with`` block, instead of what `chosen_shape` says."""
    token = _shape.set(replace(shape or Shape(), **choices))
    try:
        yield
    finally:
        _shape.reset(token)


def padded_size(hidden: int) -> int:
    """Hidden size as tiles have it.

    >>> padded_size(5), padded_size(64), padded_size(65)
    (16, 64, 128)
    """
    return max(16, 1 << (hidden - 1).bit_length())


@dataclass(frozen=True)
class Family:
    """Kernels that run one or more cells.

    module : file of the kernels
    blocks : recurrent blocks, which are those of the pre-activations
    kept : blocks kept from the forward pass for the slopes
    state : blocks of the state
    gradients : blocks that get a gradient; more than `blocks` where an input and a recurrent part differ
    reset : whether the factor of the last block's weights is r h, with r the second block
    dense : whether it has recurrent matrices, and units-first kernels too
    """

    module: str
    blocks: int
    kept: int
    state: int = 1
    gradients: int | None = None
    reset: bool = False
    dense: bool = True

    def kernels(self, *, units_first: bool = False) -> ModuleType:
        """Return the module, which imports triton."""
        return importlib.import_module(f"lagreach.kernels.gpu.{self.module}{'_units_first' if units_first else ''}")


LEAKY = Family("leaky", blocks=1, kept=1)
GATED = Family("leaky", blocks=2, kept=2)
FAMILIES = {
    "const_gate": LEAKY,
    "elman": LEAKY,
    "shared_gate": GATED,
    "diag_gate": GATED,
    "gru": Family("gru", blocks=3, kept=3, reset=True),
    "torch_gru": Family("torch_gru", blocks=3, kept=4, gradients=4),
    "lstm": Family("lstm", blocks=4, kept=4, state=2),
    "diag_elman": Family("diag_elman", blocks=1, kept=1, dense=False),
}


def family_of(cell: Cell) -> Family | None:
    """Return the kernels for a cell; None for a cell (or a subclass) that this package does not know."""
    return FAMILIES.get(cell.name) if blocks_of(cell) is not None else None


def chosen_shape(family: Family, hidden: int, sequences: int) -> Shape:
    """Return the shape in force for these kernels; few sequences (of all replicas) run alone."""
    asked, padded = _shape.get(), padded_size(hidden)
    alone, special = sequences * family.blocks * padded**2 <= ALONE_MOST, padded in UNITS_FIRST_SIZES
    return Shape(units_first=special, sums=special, alone=alone) if asked is None else asked


@dataclass(frozen=True)
class Plan:
    """Everything a launch needs besides its tensors."""

    family: Family
    layernorm: bool
    fixed: float  # the gate of a leaky cell without a learned one
    precision: str
    activation: str = "tanh"
    shape: Shape = field(default_factory=Shape)

    @property
    def planes(self) -> int:
        """Return how many float16 numbers make up a weight."""
        return 2 if self.precision == "float32" else 1

    @property
    def without_units_first(self) -> Plan:
        """The same with the usual tiles."""
        special = self.shape.units_first or self.shape.alone
        return replace(self, shape=Shape(sums=self.shape.sums)) if special else self

    def tile(self, x: Tensor, U: Tensor) -> Tile:
        """Tile shape for inputs (replica, seq, time, input) and recurrent weights (replica, ..., unit)."""
        (replica, seq, time, _), hidden = x.shape, U.shape[-1]
        padded, shape = padded_size(hidden), self.shape
        if padded > WIDEST:
            raise UnsupportedError(
                "the triton kernel holds a whole row of units in one program",
                got=f"hidden size {hidden}",
                expected=f"at most {WIDEST}",
                fix='use kernel="reference"',
            )
        block_bytes = self.planes * 2 * padded * padded
        blocks = self.family.blocks
        fits = blocks * block_bytes <= RESIDENT_BYTES
        narrow = self.family.dense and padded <= UNITS_FIRST_WIDEST
        alone = narrow and shape.alone and blocks * padded <= ALONE_WIDEST
        units_first = alone or (narrow and shape.units_first and blocks * block_bytes <= UNITS_FIRST_BYTES)
        resident = shape.resident if shape.resident is not None else blocks if fits else STREAMING_BYTES // block_bytes
        resident = blocks if units_first else resident
        usual = padded // 16 if units_first or padded <= 32 else 8 if padded < WIDEST else 16
        if units_first and not alone and blocks == 1 and padded == UNITS_FIRST_WIDEST and self.layernorm:
            # A thread holds twice as many weights, and two programs share a multiprocessor: while one waits for the sums of
            # the LayerNorm, the other goes on. Without them, half as many threads are slower.
            usual //= 2
        rows = 1 if alone else UNITS_FIRST_ROWS if units_first else ROWS
        return Tile(
            replica,
            seq,
            time,
            hidden,
            padded,
            resident,
            staged=resident < blocks,
            rows=shape.rows or rows,
            warps=shape.warps or usual,
            slice=shape.slice or min(STREAMED_SLICE if padded < WIDEST else STREAMED_SLICE // 2, padded),
            units_first=units_first,
            alone=alone,
            registers=shape.registers or (MOST_REGISTERS if alone else None),
        )


@dataclass(frozen=True)
class Constants:
    """What the recurrent kernels know when they are compiled, their K."""

    H: int  # units
    HP: int  # units, padded
    ROWS: int  # sequences of a tile, or copies of one
    BK: int  # of the summed axis that is streamed at once
    RESIDENT: int  # blocks of weights that stay in shared memory
    PRECISION: str
    PLANES: int  # float16 numbers that make up a weight
    EVEN: bool  # whether no tile reaches beyond its tensor
    LAYERNORM: bool
    PTX: bool  # whether units-first kernels load and store by PTX
    GATED: bool = False
    ACTIVATION: str = "tanh"


@dataclass(frozen=True)
class Tile:
    """Shape of the work and of one program's share of it."""

    replica: int
    seq: int
    time: int
    hidden: int
    padded: int
    resident: int  # blocks of weights that stay in shared memory
    staged: bool  # whether others are streamed
    rows: int  # sequences
    warps: int  # usually a row to each, or more rows where that leaves a thread too little to do
    slice: int  # of the summed axis that is streamed at once
    units_first: bool
    alone: bool  # whether a sequence has a program of its own, and COPIES columns of its tiles
    registers: int | None  # of a thread, at most; as the compiler likes if None

    @property
    def grid(self) -> tuple[int, int]:
        """Programs: blocks of rows, replicas."""
        return -(-self.seq // self.rows), self.replica
