"""Ways to damage files and values, as hypothesis strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
from hypothesis import strategies as st

from lagreach._util.seals import LENGTH, seal

HUGE = [2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**12, -1, 0]
NUMBERS = [float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 0.0, -1.0]
WORDS = ["", "auto", "nan", "../../etc", "\x00", "é" * 300, "!!python/object:os.system", "{}", "@"]

plain_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HUGE),
    st.integers(-(10**6), 10**6),
    st.sampled_from(NUMBERS),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=20),
)
nested_values: st.SearchStrategy[Any] = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def edit_diagnosis(path: Path, edit: Callable[[h5py.File], object]) -> None:
    """Change a diagnosis's file as somebody does who makes its checksum right again."""
    path.write_bytes(path.read_bytes()[:-LENGTH])
    with h5py.File(path, "r+") as file:
        edit(file)
    path.write_bytes(seal(path.read_bytes()))


def flipped(content: bytes, at: int) -> bytes:
    """Flip one bit."""
    damaged = bytearray(content)
    damaged[at // 8] ^= 1 << at % 8
    return bytes(damaged)


def endless(content: bytes) -> bytes:
    """Flip the bit of a diagnosis with which HDF5 looks for the next text for ever."""
    heap = content.index(b"GCOL")
    return flipped(content, 8 * (content.index(b"\0" * 6 + b"\x08" + b"\0" * 7, heap) + 6) + 2)


def put_record(path: Path, record: Any) -> None:
    """Put a text, or a link to one, into the place of a diagnosis's record."""

    def put(file: h5py.File) -> None:
        del file["record"]
        file["record"] = record

    edit_diagnosis(path, put)


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a copy of a file that was cut, overwritten, shuffled or replaced."""
    damaged = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(["cut", "flip", "overwrite", "insert", "remove", "repeat", "number", "garbage"]))
        at = draw(st.integers(0, max(0, len(damaged) - 1)))
        # headers decide what is read, so they are hit as often as all the rest
        at = at % 512 if draw(st.booleans()) else at
        if way == "cut":
            del damaged[at:]
        elif way == "flip" and damaged:
            damaged[min(at, len(damaged) - 1)] ^= 1 << draw(st.integers(0, 7))
        elif way == "overwrite":
            damaged[at : at + 16] = draw(st.binary(min_size=1, max_size=16))
        elif way == "insert":
            damaged[at:at] = draw(st.binary(min_size=1, max_size=64))
        elif way == "remove":
            del damaged[at : at + draw(st.integers(1, 64))]
        elif way == "repeat":
            damaged[at:at] = damaged[at : at + draw(st.integers(1, 256))]
        elif way == "number":
            damaged[at : at + 8] = (draw(st.sampled_from(HUGE)) % 2**64).to_bytes(8, "little")
        elif way == "garbage":
            damaged = bytearray(draw(st.binary(max_size=200)))
    return bytes(damaged)


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside nested lists and mappings."""
    paths = [before] if before else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        paths += places(inner, (*before, key))
    return paths


@st.composite
def damaged_values(draw: st.DrawFn, value: Any, replacements: st.SearchStrategy[Any] = nested_values) -> Any:
    """Draw a copy of nested values in which some are replaced, removed or added."""
    damaged = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        known = places(damaged)
        if not known:
            return draw(replacements)
        *path, last = draw(st.sampled_from(known))
        holder = damaged
        for key in path:
            holder = holder[key]
        way = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if way == "replace":
            holder[last] = draw(replacements)
        elif way == "remove":
            del holder[last]
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = draw(replacements)
        else:
            holder.insert(last, draw(replacements))
    return damaged
