"""Sequences as numbers of one kind, whatever they were given as: to be hashed, compared and correlated."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor

from lagreach.data.batch import Batch
from lagreach.data.sequences import Sequences

READ = 64  # sequences at once
KINDS, KIND_SIZE = 4096, 4  # class numbers, and the numbers that stand for each: classes have no order
MOST_VALUES = 4096  # of a sequence that a sketch looks at


def batches(sequences: Sequences, index: list[int] | range | None = None) -> Iterator[Batch]:
    """Read sequences (all of them by default), a few at a time."""
    numbers = range(len(sequences)) if index is None else index
    for start in range(0, len(numbers), READ):
        yield sequences.read(numbers[start : start + READ])


def plain(values: Tensor) -> np.ndarray:
    """Numbers as float64, so that equal numbers are equal bytes, whatever type they were given in."""
    wide = values.detach().to(torch.complex128 if values.is_complex() else torch.float64)
    return wide.cpu().numpy() + 0.0  # no negative zeros


def digest(*parts: np.ndarray, salt: int = 0) -> bytes:
    """Hash of contents; `salt` gives another one."""
    hasher = hashlib.blake2b(digest_size=16, salt=(salt % 2**64).to_bytes(8, "little"))
    for part in parts:
        hasher.update(np.ascontiguousarray(part).tobytes())
    return hasher.digest()


def numbers(values: Tensor) -> np.ndarray:
    """Float64 with one axis more for classes: each class number becomes a few random ones of its own."""
    if values.is_floating_point() or values.is_complex():
        values_seen = plain(values.real if values.is_complex() else values)
        return np.where(np.isfinite(values_seen), values_seen, 0.0)
    table = np.random.default_rng(0).normal(size=(KINDS, KIND_SIZE))
    return table[values.detach().cpu().numpy().astype(np.int64) % KINDS]


def by_step(values: Tensor, time: int) -> Float[np.ndarray, "seq time dim"] | None:
    """Numbers of every step, its features side by side; None where there is not a value for every step."""
    if values.ndim < 2 or values.shape[1] != time:
        return None
    steps = numbers(values)
    return steps.reshape(*steps.shape[:2], -1)


class Sketch:
    """A few numbers for each sequence whose distances are, up to a factor, those of the sequences."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._rng = size, np.random.default_rng(seed)
        self._matrix: np.ndarray | None = None
        self._places: np.ndarray | None = None
        self._rows: list[np.ndarray] = []

    def add(self, values: Tensor, inside: np.ndarray | None = None) -> None:
        """Add sequences; where `inside` (seq, time) is false there is only padding."""
        features = numbers(values)
        if inside is not None and features.ndim > 1 and features.shape[1] == inside.shape[1]:
            features = features * inside.reshape(*inside.shape, *[1] * (features.ndim - 2))
        flat = features.reshape(len(features), -1)
        if self._matrix is None or self._places is None:
            count = flat.shape[1]
            self._places = np.unique(np.linspace(0, count - 1, min(count, MOST_VALUES)).astype(int))
            self._matrix = self._rng.normal(size=(len(self._places), self._size)) / np.sqrt(self._size)
        self._rows.append(flat[:, self._places] @ self._matrix)

    def take(self) -> Float[np.ndarray, "seq size"]:
        """Everything that was added."""
        return np.concatenate(self._rows)


def step_codes(values: Float[np.ndarray, "seq time dim"]) -> UInt64[np.ndarray, "seq time"]:
    """One number for the values of every step; equal values have equal codes, others hardly ever."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    places = np.random.default_rng(1).integers(0, 2**63, size=values.shape[2], dtype=np.uint64) * np.uint64(2)
    return ((mixed ^ (mixed >> np.uint64(32))) * (places + np.uint64(1))).sum(-1, dtype=np.uint64)


def run_codes(codes: UInt64[np.ndarray, "seq time"], length: int) -> UInt64[np.ndarray, "seq start"]:
    """One number for every run of `length` steps."""
    factor = np.uint64(0x5851F42D4C957F2D)
    count = codes.shape[1] - length + 1
    hashes = np.zeros((len(codes), count), dtype=np.uint64)
    for step in range(length):
        hashes = hashes * factor + codes[:, step : step + count]
    return hashes
