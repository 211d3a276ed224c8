"""Sequences that can be read by number: tensors, or any iterable of batches spooled to disk.

The statistics pair sequences and visit them twice, so they need random access. Tensors have it. Everything else,
data loaders and one-shot generators alike, is written once to a temporary file and read back a block at a time,
which keeps memory flat in the number of sequences.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lagreach.data.batch import (
    AS_LOADER,
    Batch,
    as_numbers,
    counted_steps,
    finite_padding,
    is_array,
    refuse_single_sequences,
    sample_of,
    telling_rows,
)
from lagreach.data.named_inputs import as_batch, holds_named
from lagreach.errors import InputError, RunError


@runtime_checkable
class Sequences(Protocol):
    """Random access to sequences."""

    def __len__(self) -> int: ...

    def read(self, index: Sequence[int]) -> Batch:
        """Return the sequences with these numbers, in this order."""
        ...


@dataclass(frozen=True)
class TensorSequences:
    """Sequences that are in memory already."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, index: Sequence[int]) -> Batch:
        return replace(self.batch.select(index), numbers=torch.as_tensor(list(index)))


def lend(sequences: Sequences, index: Sequence[int]) -> Batch:
    """Sequences for those who only look: tensors in memory are not copied where these stand one behind the other."""
    start, end = index[0], index[0] + len(index)
    if not isinstance(sequences, TensorSequences) or list(index) != list(range(start, end)):
        return sequences.read(index)
    return replace(sequences.batch.select(slice(start, end)), numbers=torch.arange(start, end))


@dataclass(frozen=True)
class SeriesWindows(TensorSequences):
    """Windows cut from one long series, one every `stride` steps: accepted, but not independent."""

    from_one_series: bool = True
    stride: int = 0  # 0: they touch each other


def cut_series(x: Any, y: Any, length: int, stride: int | None = None) -> SeriesWindows:
    """Cut one long series (time, input) with targets (time, ...) into windows of `length` steps.

    Examples
    --------
    >>> windows = cut_series(torch.randn(1000, 3), torch.randn(1000, 1), length=50)
    >>> len(windows), windows.read([0]).x.shape
    (20, torch.Size([1, 50, 3]))
    """
    x, y = as_numbers(x), as_numbers(y)
    if x.ndim != 2 or len(y) != len(x) or not isinstance(length, Integral) or not 1 < length <= len(x):
        raise InputError(
            "a series is (time, input) with a target for every step",
            got=f"x {tuple(x.shape)}, y {tuple(y.shape)}, length {length}",
            expected=f"a whole number of steps, at most {len(x)}, for the length",
        )
    step = length if stride is None else stride
    if isinstance(step, bool) or not isinstance(step, Integral) or step < 1:
        raise InputError(
            "stride is the number of steps between the starts of two windows",
            got=f"stride={stride!r}",
            expected="a whole number, 1 or more",
            fix=f"leave it out for windows that touch each other (stride={length})",
        )
    if stride is not None and step > len(x) - length > 0:
        raise InputError(
            "this stride leaves one window",
            got=f"stride={stride}, for {len(x)} steps in windows of {length}",
            expected=f"at most {len(x) - length}, for two windows; a diagnosis takes many",
            fix=f"leave it out for windows that touch each other (stride={length})",
        )
    starts = range(0, len(x) - length + 1, int(step))
    cut_x, cut_y = (torch.stack([series[s : s + length] for s in starts]) for series in (x, y))
    return SeriesWindows(Batch(cut_x, cut_y), stride=starts.step)


class SpooledSequences:
    """Sequences on disk, one after the other; shorter ones are padded with zeros when they are read together."""

    def __init__(self, batches: Iterable[Any]) -> None:
        with _room_errors():
            folder = tempfile.mkdtemp(prefix="lagreach-")
            self._handle = os.open(Path(folder) / "sequences", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # removed with this object, at the latest when the interpreter ends; TemporaryDirectory would warn about that
        self._cleanup = weakref.finalize(self, _remove, folder, self._handle)
        self._size = 0
        self._index: list[list[tuple[int, np.dtype[Any], tuple[int, ...]] | None]] = []
        self._others: tuple[str, ...] | int | None = None  # names or number of further inputs, the same in every batch
        self._name = "x"
        self._kind: dict[str, str] = {}  # what is the same in every batch
        for i, batch in enumerate(batches):
            self._append(finite_padding(as_batch(batch, f"batch {i}")))
        if not self._index:
            raise InputError(
                "there are no sequences in the data",
                fix="pass tensors, or something that can be iterated over again; a used-up generator yields nothing",
            )
        times = {row[0][2][:1] for row in self._index if row[0] is not None}
        self._longest = max(times)[0] if len(times) > 1 else None  # None: all of the same length
        fields = range(4, len(self._index[0]))
        self._other_shapes = [{row[field][2] for row in self._index if row[field] is not None} for field in fields]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._index)

    def _append(self, batch: Batch) -> None:
        if batch.state is not None:
            raise InputError(
                "batches with a state cannot be spooled", fix="pass one dict of tensors with x, y and state"
            )
        self._check_kind(batch)
        fields = [batch.x, batch.y, batch.mask, batch.lengths, *self._others_of(batch)]
        arrays = [None if f is None else f.detach().cpu().numpy() for f in fields]
        content = bytearray()
        for n in range(len(batch)):
            row: list[tuple[int, np.dtype[Any], tuple[int, ...]] | None] = []
            for array in arrays:
                if array is None:
                    row.append(None)
                    continue
                one = np.asarray(array[n], order="C")  # ascontiguousarray would make a vector of a single number
                row.append((self._size + len(content), one.dtype, one.shape))
                content += one.tobytes()
            self._index.append(row)
        with _room_errors():
            left = memoryview(content)
            while left:
                written = os.pwrite(self._handle, left, self._size)
                self._size, left = self._size + written, left[written:]

    def _check_kind(self, batch: Batch) -> None:
        """Batches may differ in the number of sequences and of steps, and in nothing else."""
        kind = {name: _kind(getattr(batch, name), batch.x) for name in ("x", "y", "mask", "lengths")}
        self._kind = self._kind or kind
        for name, first in self._kind.items():
            if kind[name] != first:
                raise InputError(
                    "batches are not of one kind",
                    got=f"{name} of {first}, then of {kind[name]}",
                    expected="the same features and the same parts in every batch",
                )

    def _others_of(self, batch: Batch) -> list[Tensor]:
        """Further inputs of a batch in a fixed order; what is no tensor with a row for each sequence is left out."""
        others, self._name = batch.others, batch.name
        if isinstance(others, dict):
            others = {
                name: v for name, v in others.items() if isinstance(v, Tensor) and v.ndim and len(v) == len(batch)
            }
        kind = None if others is None else tuple(sorted(others)) if isinstance(others, dict) else len(others)
        if self._index and kind != self._others:
            raise InputError(
                "batches have different inputs", got=f"{self._others}, then {kind}", expected="the same in every batch"
            )
        self._others = kind
        if others is None:
            return []
        return [as_numbers(others[name]) for name in sorted(others)] if isinstance(others, dict) else list(others)

    def _read_others(self, index: Sequence[int]) -> tuple[Tensor, ...] | dict[str, Tensor] | None:
        """Further inputs; those that are not of one size everywhere are padded like x."""
        if self._others is None:
            return None
        others = []
        for field, shapes in enumerate(self._other_shapes, 4):
            values = self._field(index, field)
            assert values is not None
            others.append(torch.stack(values) if len(shapes) == 1 else _padded(values, max(shapes)[0]))
        return tuple(others) if isinstance(self._others, int) else dict(zip(self._others, others, strict=True))

    def sizes(self) -> tuple[Tensor | None, Tensor | None]:
        """Lengths of all sequences, and the weight of all their steps where masks say so; inputs are not read for it."""
        every = range(len(self))
        mask, lengths = self._field(every, 2), self._field(every, 3)
        steps = torch.tensor([row[0][2][0] for row in self._index if row[0] is not None])
        weights = None if mask is None else torch.stack([one.double().sum() for one in mask])
        return (steps if lengths is None else torch.stack(lengths)), weights

    def _field(self, index: Sequence[int], field: int) -> list[Tensor] | None:
        if any(self._index[n][field] is None for n in index):
            return None
        tensors = []
        for n in index:
            entry = self._index[n][field]
            assert entry is not None
            offset, dtype, shape = entry
            size = int(np.prod(shape)) * dtype.itemsize
            tensors.append(torch.from_numpy(np.frombuffer(self._bytes(offset, size), dtype).reshape(shape)))
        return tensors

    def _bytes(self, offset: int, size: int) -> bytearray:
        """Read what lies at a place; mapped into memory, a file on a disk that is gone would end the process."""
        content = bytearray()
        with _room_errors():
            while len(content) < size:
                piece = os.pread(self._handle, size - len(content), offset + len(content))
                if not piece:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                content += piece
        return content

    def read(self, index: Sequence[int]) -> Batch:
        x, y = self._field(index, 0), self._field(index, 1)
        assert x is not None
        assert y is not None
        steps, numbers = torch.tensor([len(one) for one in x]), torch.as_tensor(list(index))
        mask, lengths = self._field(index, 2), self._field(index, 3)
        declared = None if lengths is None else torch.stack(lengths)
        if self._longest is None:
            weights = None if mask is None else torch.stack(mask)
            others = self._read_others(index)
            return Batch(torch.stack(x), torch.stack(y), weights, declared, None, others, self._name, numbers)
        per_step = all(one.ndim > 0 and len(one) == n for one, n in zip(y, steps.tolist(), strict=True))
        return Batch(
            x=_padded(x, self._longest),
            y=_padded(y, self._longest) if per_step else torch.stack(y),
            mask=None if mask is None else _padded(mask, self._longest),
            lengths=steps if declared is None else declared,
            others=self._read_others(index),
            name=self._name,
            numbers=numbers,
        )


def _kind(part: Tensor | None, x: Tensor) -> str:
    """What a part of a batch must have in common with the same part of others, in words."""
    if part is None:
        return "nothing"
    per_step = part.ndim > 1 and part.shape[1] == (x.shape[1] if x.ndim > 1 else 0)
    axes = [] if part.ndim < 2 else ["time" if per_step else str(part.shape[1]), *map(str, part.shape[2:])]
    return f"shape ({', '.join(['seq', *axes])})" + ("" if part.is_floating_point() else " and whole numbers")


@contextmanager
def _room_errors() -> Iterator[None]:
    """Say in a sentence that the temporary folder is full, closed or gone."""
    try:
        yield
    except OSError as error:
        raise RunError(
            "the sequences cannot be kept in the temporary folder",
            got=error.strerror or str(error),
            expected="room for all sequences, which are read several times",
            fix="free some space, let TMPDIR name another folder, or pass tensors",
        ) from error


def _remove(folder: str, handle: int) -> None:
    os.close(handle)
    shutil.rmtree(folder, ignore_errors=True)


def _padded(values: list[Tensor], length: int) -> Tensor:
    """Stack along a new axis, with zeros behind the shorter ones up to a length that is the same for every read."""
    stacked = values[0].new_zeros(len(values), length, *values[0].shape[1:])
    for row, one in zip(stacked, values, strict=True):
        row[: len(one)] = one
    return stacked


def as_sequences(data: object) -> Sequences:
    """Tensors stay where they are; any other iterable of batches is spooled to disk once."""
    if isinstance(data, Sequences):
        return data
    is_pair = isinstance(data, (tuple, list)) and 2 <= len(data) <= 4 and is_array(data[0])
    if isinstance(data, Batch) or is_pair or holds_named(data):
        batch = finite_padding(as_batch(data))
        if len(batch) == 0:
            raise InputError(
                "there are no sequences in the data", got=f"x of shape {tuple(batch.x.shape)}", expected="16 or more"
            )
        return TensorSequences(batch)
    refuse_single_sequences(data)
    if isinstance(data, Iterable):
        return SpooledSequences(data)
    raise InputError(
        "this is not data",
        got=type(data).__name__,
        expected="(x, y) tensors or an iterable of batches",
        fix=AS_LOADER if hasattr(data, "__getitem__") else None,
    )


def telling_sample(sequences: Sequences, read: int = 64) -> Batch:
    """A few sequences that differ as much as any (see `telling_rows`), to check a model on."""
    if isinstance(sequences, TensorSequences):
        return sample_of(sequences.batch)
    if isinstance(sequences, SpooledSequences):
        return sequences.read(telling_rows(len(sequences), *sequences.sizes()))
    lengths: list[Tensor] = []
    counted: list[Tensor] = []
    for start in range(0, len(sequences), read):
        batch = sequences.read(range(start, min(start + read, len(sequences))))
        weights = counted_steps(batch)
        lengths += [] if batch.lengths is None else [batch.lengths]
        counted += [] if weights is None else [weights]
    rows = telling_rows(len(sequences), *(torch.cat(values) if values else None for values in (lengths, counted)))
    return sequences.read(rows)


def contents(sequences: Sequences, read: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Input and target of every sequence, without what lies beyond its length, which may hold anything."""
    for start in range(0, len(sequences), read):
        batch = sequences.read(range(start, min(start + read, len(sequences))))
        for row, (x, y) in enumerate(zip(batch.x, batch.y, strict=True)):
            if batch.lengths is None:
                yield x, y
                continue
            length = int(batch.lengths[row])
            per_step = y.ndim > 0 and len(y) == len(x)
            yield x[:length], y[:length] if per_step else y


def fingerprint(sequences: Sequences) -> str:
    """Hash of the data's contents, independent of the order of the sequences and of how they are padded."""
    total = 0
    for x, y in contents(sequences):
        content = b"".join(part.detach().double().cpu().contiguous().numpy().tobytes() for part in (x, y))
        total += int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")
    return f"{total % 2**128:032x}"
