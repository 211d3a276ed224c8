"""Block means of lag gradients, held as outer products.

From one output a lag's gradient of the input weights is one outer product: of the gradient that arrives and of the input
there. A block's mean is a sum of a few such products. Inner products of block means, and of a sequence's whole gradient with
a mean, follow from the factors, exactly, however large the table of weights is: no embedding of 50,000 rows is ever filled,
and none is projected (a random projection would keep inner products right on average, and make the noise along a direction
too large). Factors lie on disk where they are many.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.threads import one_thread

IN_MEMORY = 2**28  # bytes of factors that are held in memory; more lie on disk
GRAM_BYTES = 2**26  # of block means that are filled in at once
EVERYTHING = slice(None)
WORTH_THREADS = 2e7  # products of one gram; with fewer, threads mostly wait for each other


class Factors:
    """Factors of the lag gradients of all anchors: row by row what arrives, by slot and signal, and what was read there.

    A row is one anchor of one sequence. `arrived` (slot, signal, row, width) has all weights of anchors and slots in it;
    `read` (slot, row) are tokens or (slot, row, input) numbers.
    """

    def __init__(self, rows: int, arrived: Tensor, read: Tensor) -> None:
        """Make room for so many rows like those of a first piece, (row, slot, signal, width) and (row, slot, ...)."""
        self.tokens = not read.is_floating_point()
        number = np.float64 if arrived.dtype == torch.float64 else np.float32
        slots, signals, width = arrived.shape[1:]
        shape = (slots, signals, rows, width)
        wide = () if self.tokens else (read.shape[-1],)
        self._folder: str | None = None
        self.arrived = self._room("arrived", shape, number)
        self.read = self._room("read", (slots, rows, *wide), np.int64 if self.tokens else number)
        self.block = np.zeros(rows, dtype=np.int64)
        self.filled = 0

    def _room(self, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        if np.prod(shape, dtype=float) * np.dtype(dtype).itemsize <= IN_MEMORY:
            return np.zeros(shape, dtype)
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="lagreach-")
            self._cleanup = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return np.memmap(Path(self._folder) / name, dtype=dtype, mode="w+", shape=shape)

    @classmethod
    def like(cls, rows: int, part: Factors) -> Factors:
        """Make room for so many rows like those of another one."""
        some = cls.__new__(cls)
        some.tokens, some._folder, some.filled = part.tokens, None, 0
        slots, signals, _, width = part.arrived.shape
        some.arrived = some._room("arrived", (slots, signals, rows, width), part.arrived.dtype.type)
        some.read = some._room("read", (slots, rows, *part.read.shape[2:]), part.read.dtype.type)
        some.block = np.zeros(rows, dtype=np.int64)
        return some

    def extend(self, part: Factors) -> None:
        """Add the rows of another one."""
        new = slice(self.filled, self.filled + part.filled)
        self.arrived[:, :, new] = part.arrived[:, :, : part.filled]
        self.read[:, new] = part.read[:, : part.filled]
        self.block[new] = part.blocks
        self.filled = new.stop

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: the rows that are filled, not the file they lie in."""
        rows = slice(0, self.filled)
        kept = {"arrived": np.array(self.arrived[:, :, rows]), "read": np.array(self.read[:, rows])}
        return kept | {"block": self.blocks.copy(), "tokens": self.tokens, "filled": self.filled, "_folder": None}

    def append(self, block: np.ndarray, arrived: Tensor, read: Tensor) -> None:
        """Add rows: `arrived` (row, slot, signal, width), `read` (row, slot) or (row, slot, input)."""
        rows = slice(self.filled, self.filled + len(block))
        self.block[rows] = block
        self.arrived[:, :, rows] = arrived.permute(1, 2, 0, 3).cpu().numpy()
        values = read if self.tokens or read.dtype == torch.float64 else read.float()  # numpy has no bfloat16
        self.read[:, rows] = values.transpose(0, 1).cpu().numpy()
        self.filled = rows.stop

    def part(
        self, slot: int, signal: int, coefficient: np.ndarray | None = None, columns: slice = EVERYTHING
    ) -> tuple[Tensor, Tensor]:
        """Factors of one slot and signal: what was read (row, ...) and what arrived (row, width), times a coefficient.

        Of all that arrived, or of some `columns` of its width.
        """
        arrived = torch.from_numpy(np.ascontiguousarray(self.arrived[slot, signal, : self.filled, columns])).double()
        if coefficient is not None:
            arrived = arrived * torch.from_numpy(np.ascontiguousarray(coefficient))[:, None]
        return torch.from_numpy(np.ascontiguousarray(self.read[slot, : self.filled])), arrived

    @property
    def blocks(self) -> np.ndarray:
        """Block of each row that is filled."""
        return self.block[: self.filled]


@dataclass(frozen=True)
class Products:
    """A sum of outer products: rows of what was read and of what arrived, and the block each belongs to."""

    read: Tensor
    arrived: Float[Tensor, "row width"]
    block: Tensor

    @classmethod
    def of(
        cls,
        factors: Factors,
        slots: list[int],
        signal: int,
        coefficients: list[np.ndarray] | None = None,
        columns: slice = EVERYTHING,
    ) -> Products:
        """Put the slots of a band together, each times its coefficient."""
        scales = [None] * len(slots) if coefficients is None else coefficients
        parts = [factors.part(slot, signal, c, columns) for slot, c in zip(slots, scales, strict=True)]
        block = torch.from_numpy(factors.blocks.copy()).repeat(len(slots))
        return cls(torch.cat([read for read, _ in parts]), torch.cat([arrived for _, arrived in parts]), block)

    def select(self, rows: Tensor) -> Products:
        """Keep some rows."""
        return Products(self.read[rows], self.arrived[rows], self.block[rows])

    @classmethod
    def joined(cls, parts: Sequence[Products], *, apart: bool = False) -> Products:
        """Put several sums together; `apart`, those of a block count as blocks of their own, one after the other."""
        block = [one.block * len(parts) + number if apart else one.block for number, one in enumerate(parts)]
        return cls(torch.cat([one.read for one in parts]), torch.cat([one.arrived for one in parts]), torch.cat(block))

    @property
    def tokens(self) -> bool:
        """Whether tokens were read."""
        return not self.read.is_floating_point()


def block_gram(
    products: Products, size: np.ndarray, weighting: Float[Tensor, "row width"] | None = None
) -> Float[np.ndarray, "block block"]:
    """Inner products of the blocks' mean gradients; `size` (block,) counts their sequences.

    With a `weighting`, every weight's gradient is multiplied by its own number first.
    """
    arrived = products.arrived
    scale = float(arrived.abs().max()) if len(arrived) else 0.0
    if scale == 0.0:
        return np.zeros((len(size), len(size)))
    scaled = Products(products.read, arrived / scale, products.block)  # squares of 1e-200 would underflow
    gram_of = _gram_of_tokens if products.tokens else _gram_of_numbers
    inputs = 1 if products.tokens else products.read.shape[1]
    with nullcontext() if arrived.numel() * inputs > WORTH_THREADS else one_thread():
        return (gram_of(scaled, len(size), weighting) / np.outer(size, size)) * scale**2


def _gram_of_tokens(products: Products, blocks: int, weighting: Tensor | None) -> np.ndarray:
    """Only what stands in the same row of the table meets: rows of one token, summed by block."""
    width = products.arrived.shape[1]
    tokens, row = torch.unique(products.read, return_inverse=True)
    cell, place = torch.unique(row * blocks + products.block, return_inverse=True)
    sums = torch.zeros(len(cell), width, dtype=torch.float64).index_add_(0, place, products.arrived)
    row, block = cell // blocks, cell % blocks
    if weighting is not None:
        sums = sums * weighting[tokens[row]]
    met = torch.bincount(row, minlength=len(tokens)) > 1  # tokens of one block alone count on the diagonal only
    gram = torch.zeros(blocks, blocks, dtype=torch.float64)
    lone = ~met[row]
    gram.diagonal().index_add_(0, block[lone], sums[lone].square().sum(1))
    chunk = max(1, GRAM_BYTES // (8 * blocks * width))
    shared = met.nonzero().flatten()
    for start in range(0, len(shared), chunk):
        some = shared[start : start + chunk]
        mine = (row >= some[0]) & (row <= some[-1]) & met[row]
        filled = torch.zeros(blocks, len(some), width, dtype=torch.float64)
        filled[block[mine], torch.searchsorted(some, row[mine])] = sums[mine]
        gram += filled.flatten(1) @ filled.flatten(1).T
    return gram.numpy()


def _gram_of_numbers(products: Products, blocks: int, weighting: Tensor | None) -> np.ndarray:
    """Fill in the block means, some of the inputs at a time."""
    inputs, width = products.read.shape[1], products.arrived.shape[1]
    gram = torch.zeros(blocks, blocks, dtype=torch.float64)
    by_block = _by_block(products, blocks)
    chunk = max(1, GRAM_BYTES // (8 * blocks * width))
    for first in range(0, inputs, chunk):
        some = slice(first, first + chunk)
        filled = torch.stack([read[:, some].T @ arrived for read, arrived in by_block])
        if weighting is not None:
            filled = filled * weighting[some]
        gram += filled.flatten(1) @ filled.flatten(1).T
    return gram.numpy()


def _by_block(products: Products, blocks: int) -> list[tuple[Tensor, Tensor]]:
    """What was read and what arrived, block after block."""
    order = torch.argsort(products.block, stable=True)
    sizes = torch.bincount(products.block, minlength=blocks).tolist()
    read, arrived = products.read[order].double(), products.arrived[order]
    return list(zip(read.split(sizes), arrived.split(sizes), strict=True))


def summed_by_block(products: Products) -> Products:
    """The same sums of numbers in fewer rows, if there are fewer: one for each block and input.

    >>> read, block = torch.rand(9, 2), torch.tensor([0, 1] * 4 + [0])
    >>> few = summed_by_block(Products(read, torch.ones(9, 3).double(), block))
    >>> few.block.tolist(), bool(torch.allclose(few.read.T @ few.arrived, (read.T @ torch.ones(9, 3)).double()))
    ([0, 0, 1, 1], True)
    """
    inputs, blocks = products.read.shape[1], int(products.block.max()) + 1 if len(products.block) else 0
    if len(products.block) <= blocks * inputs:
        return products
    sums = torch.cat([read.T @ arrived for read, arrived in _by_block(products, blocks)])
    one_input = torch.eye(inputs, dtype=torch.float64).repeat(blocks, 1)
    return Products(one_input, sums, torch.arange(blocks).repeat_interleave(inputs))


def coordinates(gram: Float[np.ndarray, "*lag block block"]) -> Float[np.ndarray, "*lag block axis"]:
    """Vectors with these inner products, as many axes as blocks: all that tests and intervals look at.

    >>> gram = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> bool(np.allclose(coordinates(gram) @ coordinates(gram).T, gram))
    True
    """
    scale = np.abs(gram).max(axis=(-2, -1), keepdims=True)
    values, vectors = np.linalg.eigh(gram / np.where(scale > 0, scale, 1.0))
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :] * np.sqrt(scale)
