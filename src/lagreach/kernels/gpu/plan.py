"""How a cell runs on the GPU: its kernels and blocks, the shape of its tiles, and where its weights live."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType

from torch import Tensor

from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError
from lagreach.kernels.packing import blocks_of

PRECISIONS = ("float32", "float16")
_precision: ContextVar[str] = ContextVar("precision", default="float32")

ROWS = 16  # sequences per program, the least that tensor cores take
RESIDENT_BYTES = 192 << 10  # of weights that fit into the shared memory of one multiprocessor beside all else
STREAMING_BYTES = 128 << 10  # likewise where slices of other weights pass through it
STREAMED_SLICE = 32  # of the summed axis
WIDEST = 512  # hidden size, padded


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Set the accuracy of the recurrent products within a ``with`` block.

    "float32" (default) splits each factor in two and keeps float32 accuracy. "float16" multiplies only the leading 11
    bits of scaled factors, as TF32 does, and still sums in float32: faster, with relative errors around 1e-3.

    >>> with precision("float16"):
    ...     current_precision()
    'float16'
    """
    if name not in PRECISIONS:
        raise InputError("unknown precision", got=repr(name), expected=", ".join(PRECISIONS))
    token = _precision.set(name)
    try:
        yield
    finally:
        _precision.reset(token)


def current_precision() -> str:
    """Accuracy of the recurrent products; see `precision`."""
    return _precision.get()


@dataclass(frozen=True)
class Family:
    """Kernels that run one or more cells.

    module : file of the kernels
    blocks : recurrent blocks, which are those of the pre-activations
    kept : blocks kept from the forward pass for the slopes
    state : blocks of the state
    gradients : blocks that get a gradient; more than `blocks` where an input and a recurrent part differ
    dense : whether it has recurrent matrices
    """

    module: str
    blocks: int
    kept: int
    state: int = 1
    gradients: int | None = None
    dense: bool = True
    flags: dict[str, object] = field(default_factory=dict)

    @property
    def kernels(self) -> ModuleType:
        """Return the module, which imports triton."""
        return importlib.import_module(f"lagreach.kernels.gpu.{self.module}")


LEAKY = Family("leaky", blocks=1, kept=1, flags={"GATED": False})
GATED = Family("leaky", blocks=2, kept=2, flags={"GATED": True})
FAMILIES = {
    "const_gate": LEAKY,
    "elman": LEAKY,
    "shared_gate": GATED,
    "diag_gate": GATED,
    "gru": Family("gru", blocks=3, kept=3),
    "torch_gru": Family("torch_gru", blocks=3, kept=4, gradients=4),
    "lstm": Family("lstm", blocks=4, kept=4, state=2),
    "diag_elman": Family("diag_elman", blocks=1, kept=1, dense=False),
}


def family_of(cell: Cell) -> Family | None:
    """Return the kernels for a cell; None for a cell (or a subclass) that this package does not know."""
    return FAMILIES.get(cell.name) if blocks_of(cell) is not None else None


@dataclass(frozen=True)
class Plan:
    """Everything a launch needs besides its tensors."""

    family: Family
    layernorm: bool
    fixed: float  # the gate of a leaky cell without a learned one
    precision: str
    activation: str = "tanh"

    @property
    def planes(self) -> int:
        """Return how many float16 numbers make up a weight."""
        return 2 if self.precision == "float32" else 1

    def tile(self, x: Tensor, U: Tensor) -> Tile:
        """Tile shape for inputs (replica, seq, time, input) and recurrent weights (replica, ..., unit)."""
        (replica, seq, time, _), hidden = x.shape, U.shape[-1]
        padded = max(16, 1 << (hidden - 1).bit_length())
        if padded > WIDEST:
            raise UnsupportedError(
                "the triton kernel holds a whole row of units in one program",
                got=f"hidden size {hidden}",
                expected=f"at most {WIDEST}",
                fix='use kernel="reference"',
            )
        block_bytes = self.planes * 2 * padded * padded
        resident = self.family.blocks
        if resident * block_bytes > RESIDENT_BYTES:
            resident = STREAMING_BYTES // block_bytes
        return Tile(replica, seq, time, hidden, padded, resident, staged=resident < self.family.blocks)


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
    rows: int = ROWS

    @property
    def grid(self) -> tuple[int, int]:
        """Programs: blocks of rows, replicas."""
        return -(-self.seq // self.rows), self.replica

    @property
    def slice(self) -> int:
        """Return how much of the summed axis is streamed at once."""
        return min(STREAMED_SLICE if self.padded < WIDEST else STREAMED_SLICE // 2, self.padded)

    @property
    def warps(self) -> int:
        """Warps of a program: a row to each, or more rows where that leaves a thread too little to do."""
        return (self.padded // 16 if self.padded <= 32 else 8) if self.padded < WIDEST else 16
