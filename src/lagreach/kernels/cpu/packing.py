"""Weights of a cell as these kernels want them, for each replica, and their gradients on the way back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lagreach._util.buffers import empty, zeros
from lagreach.cells import Cell, Params
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.shared_gate import SharedGate
from lagreach.cells.torch_gru import TorchGRU
from lagreach.kernels.cpu.compiled import Gradients, Weights
from lagreach.kernels.packing import BLOCKS


class Names(NamedTuple):
    """Names of the weights of a cell in the order of its blocks; None where a block has none."""

    W: tuple[str, ...]
    U: tuple[str | None, ...]
    b: tuple[str, ...]


class Readout(NamedTuple):
    """``read h + offset`` at every step."""

    read: Tensor  # (replica, output, unit)
    offset: Tensor  # (replica, output)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Both, as the kernels want them."""
        return self.read.detach().contiguous().numpy(), self.offset.detach().contiguous().numpy()


def names_of(cell: Cell) -> Names:
    """Return the names of a cell's weights, block by block.

    >>> from lagreach.cells.diag_gate import DiagGate
    >>> names_of(DiagGate())
    Names(W=('W_s', 'W_h'), U=('U_s', 'U_h'), b=('b_s', 'b_h'))
    """
    if isinstance(cell, TorchGRU):  # a fourth block holds U_n h + c_n, which the reset gate multiplies
        return Names(("W_r", "W_z", "W_n"), ("U_r", "U_z", None, "U_n"), ("b_r", "b_z", "b_n", "c_n"))
    blocks = BLOCKS[type(cell)]
    if isinstance(cell, SharedGate):
        blocks = ("h", "s")  # the narrow block last
    recurrent = "u" if isinstance(cell, DiagElman) else "U"
    return Names(*(tuple(f"{kind}_{k}" for k in blocks) for kind in ("W", recurrent, "b")))


def pack(cell: Cell, params: Params, readout: Readout | None = None) -> list[Weights]:
    """Put the blocks side by side, one `Weights` for each replica."""
    names = names_of(cell)
    arrays = {name: p.detach().numpy() for name, p in params.items()}
    fill = -(arrays["b_h"].shape[1] + 1) % 16 if isinstance(cell, SharedGate) else 0
    W, b = (_side_by_side([arrays[name] for name in part], fill) for part in (names.W, names.b))
    if isinstance(cell, DiagElman):
        U = Ut = arrays["u_h"][:, None]
    else:
        U = _side_by_side([arrays[name] if name else np.zeros_like(arrays["U_n"]) for name in names.U], fill)
        Ut = _aligned(U.transpose(0, 2, 1))
    none = np.empty((len(b), 0), b.dtype)
    gain, shift = arrays.get("ln_gain", none), arrays.get("ln_shift", none)
    gate = getattr(cell, "gate", 1.0)
    constants = (b.dtype.type(gate), b.dtype.type(1 - gate))
    units = U.shape[2]
    read, offset = (np.empty((len(b), 0, units), b.dtype), none) if readout is None else readout.arrays()
    together = (_aligned(W.transpose(0, 2, 1)), W, Ut, U, b, gain, shift, read, offset)
    return [Weights._make([*(a[r] for a in together), *constants]) for r in range(len(b))]


def _side_by_side(blocks: list[np.ndarray], fill: int) -> np.ndarray:
    """Blocks of all replicas along the second axis, and some zeros; starts at a line of the cache."""
    if fill:
        blocks = [*blocks, np.zeros((len(blocks[0]), fill, *blocks[0].shape[2:]), blocks[0].dtype)]
    result = empty((len(blocks[0]), sum(a.shape[1] for a in blocks), *blocks[0].shape[2:]), blocks[0].dtype)
    return np.concatenate(blocks, axis=1, out=result)


def _aligned(a: np.ndarray) -> np.ndarray:
    """A contiguous copy that starts at a line of the cache."""
    copy = empty(a.shape, a.dtype)
    copy[...] = a
    return copy


def gradients_like(weights: Weights) -> Gradients:
    """Zeros for the gradients of one replica."""
    return Gradients(*(zeros(getattr(weights, field).shape, weights.b.dtype) for field in Gradients._fields))


def unpack(cell: Cell, replicas: list[Gradients], shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Gradients of each weight by name, from those of each replica; of one alone if the shapes have no replica axis."""
    names = names_of(cell)
    replica_axes = len(shapes[names.b[0]]) - 1
    stacked = {
        "W": np.stack([g.Wt.T for g in replicas]),
        "U": np.stack([g.Ut if isinstance(cell, DiagElman) else g.Ut.T for g in replicas]),
        "b": np.stack([g.b for g in replicas]),
    }
    result = {}
    for kind, array in stacked.items():
        start = 0
        for name in getattr(names, kind):
            width = shapes[name][replica_axes] if name is not None else array.shape[2]
            if name is not None:
                result[name] = torch.from_numpy(array[:, start : start + width].reshape(shapes[name]))
            start += width
    others = {"ln_gain": "gain", "ln_shift": "shift", "read": "read", "offset": "offset"}
    for name, field in others.items():
        if name in shapes:
            vectors = [getattr(g, field) for g in replicas]
            result[name] = torch.from_numpy(np.stack(vectors).reshape(shapes[name]))
    return result
