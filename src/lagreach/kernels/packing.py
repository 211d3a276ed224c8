"""Which weights make up the blocks of each cell: the order in which the fused kernels put them side by side."""

from __future__ import annotations

from lagreach.cells import Cell
from lagreach.cells.const_gate import ConstGate
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.diag_gate import DiagGate
from lagreach.cells.elman import Elman
from lagreach.cells.gru import GRU
from lagreach.cells.lstm import LSTM
from lagreach.cells.shared_gate import SharedGate
from lagreach.cells.torch_gru import TorchGRU

# The suffixes of a cell's weights in the order of its blocks. All are H wide, but the gate of SharedGate has width 1.
BLOCKS: dict[type[Cell], tuple[str, ...]] = {
    ConstGate: ("h",),
    Elman: ("h",),
    DiagElman: ("h",),
    SharedGate: ("s", "h"),
    DiagGate: ("s", "h"),
    GRU: ("z", "r", "h"),
    TorchGRU: ("r", "z", "n"),
    LSTM: ("i", "f", "g", "o"),
}


def blocks_of(cell: Cell) -> tuple[str, ...] | None:
    """Suffixes of the cell's blocks in order; None for a cell (or a subclass) that this package does not know."""
    return BLOCKS.get(type(cell))


def products_of(cell: Cell) -> dict[str, tuple[str | None, str | None]]:
    """Weights that multiply the input and the state before a step, in each block, by the name of the block's bias.

    None where there is no such weight, or where it multiplies something else: GRU's ``r h``, one unit of DiagElman's.

    >>> products_of(GRU())
    {'b_z': ('W_z', 'U_z'), 'b_r': ('W_r', 'U_r'), 'b_h': ('W_h', None)}
    """
    products: dict[str, tuple[str | None, str | None]] = {f"b_{k}": (f"W_{k}", f"U_{k}") for k in BLOCKS[type(cell)]}
    if isinstance(cell, TorchGRU):  # a fourth block holds U_n h + c_n, which the reset gate multiplies
        return products | {"b_n": ("W_n", None), "c_n": (None, "U_n")}
    return products | {"b_h": ("W_h", None)} if isinstance(cell, GRU | DiagElman) else products
