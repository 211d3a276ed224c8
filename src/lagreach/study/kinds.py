"""Kinds of studies that live outside the package: they register how they are run, counted and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lagreach.errors import InputError


@dataclass(frozen=True)
class StudyKind:
    """How studies of a kind are run in a folder, counted by `lagreach study status`, and shown at the end."""

    run: Callable[..., None]
    status: Callable[..., dict[str, tuple[int, int]]]
    show: Callable[[Path], dict[str, Any]]
    protocols: Path  # folder of their YAML files


_KINDS: dict[str, StudyKind] = {}


def register_kind(name: str, kind: StudyKind) -> None:
    """Make a kind of studies known to this process."""
    _KINDS[name] = kind


def registered_kinds() -> tuple[StudyKind, ...]:
    """Kinds that were registered."""
    return tuple(_KINDS.values())


def kind_named(name: str) -> StudyKind:
    """Return a registered kind by its name."""
    if name not in _KINDS:
        raise InputError(
            f"studies of kind {name!r} are not part of the installed package",
            got=f"a study of kind {name!r}",
            expected="a study of kind 'training' or 'convergence'",
            fix=f"run it from a checkout of the repository: python -m studies.{name} run",
        )
    return _KINDS[name]
