"""What modules keep as attributes between calls: states handed on from batch to batch, caches, maps for later looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

TORCHS_OWN = frozenset(vars(nn.Module())) - {"_buffers"}  # weights, parts and hooks, which are not states
PLAIN = frozenset({bool, int, float, str})


def _holds_tensors(value: Any) -> bool:
    """Whether a value may be a state: tensors, or lists, tuples and dicts of them; None and empty lists may become one."""
    if type(value) in PLAIN:  # most attributes are; every run of a model asks
        return False
    if value is None or isinstance(value, Tensor):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return isinstance(value, (tuple, list, dict)) and all(_holds_tensors(part) for part in parts)


class _Snapshot:
    """A value as it is now: the very same tensors, in the very same lists and dicts."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.version = _version(value)
        self.keys = list(value) if isinstance(value, dict) else None
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
        self.parts = [_Snapshot(part) for part in parts]

    def holds(self, value: Any) -> bool:
        """Whether a value is this one, with nothing changed inside."""
        if value is not self.value or _version(value) != self.version:
            return False
        if self.keys is not None and list(value) != self.keys:
            return False
        parts = list(
            value.values() if isinstance(value, dict) else value if self.parts or isinstance(value, list) else ()
        )
        return len(parts) == len(self.parts) and all(
            one.holds(part) for one, part in zip(self.parts, parts, strict=True)
        )

    def tensors(self) -> Iterator[Tensor]:
        """All tensors inside."""
        if isinstance(self.value, Tensor):
            yield self.value
        for part in self.parts:
            yield from part.tensors()

    def restore(self) -> Any:
        """Put back what was inside, and return the value."""
        parts = [part.restore() for part in self.parts]
        if isinstance(self.value, list):
            self.value[:] = parts
        elif isinstance(self.value, dict):
            self.value.clear()
            self.value.update(zip(self.keys or (), parts, strict=True))
        return self.value


def _version(value: Any) -> int | None:
    """How often a tensor was changed in place; tensors of inference mode do not count it."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


class Kept:
    """Attributes of a model's modules that hold tensors, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = [
            (path, part, {name: _Snapshot(value) for name, value in _attributes(part)})
            for path, part in model.named_modules()
        ]

    def _changed(self) -> Iterator[tuple[str, nn.Module, str, _Snapshot | None]]:
        for path, part, before in self._parts:
            now = dict(_attributes(part))
            yield from ((path, part, name, None) for name in now if name not in before)
            for name, snapshot in before.items():
                if not snapshot.holds(vars(part).get(name, snapshot)):
                    yield path, part, name, snapshot

    def changed(self) -> list[str]:
        """Names of the attributes that hold something else by now; buffers by their own names."""
        names = []
        for path, part, name, snapshot in self._changed():
            changed = [name]
            if name == "_buffers" and snapshot is not None:
                before = dict(zip(snapshot.keys or (), snapshot.parts, strict=True))
                changed = [k for k, buffer in part._buffers.items() if k not in before or not before[k].holds(buffer)]
            names += [f"{path}.{key}".lstrip(".") for key in changed]
        return names

    def held(self) -> list[str]:
        """Names of the attributes that hold a tensor which is neither a weight nor a buffer."""
        return [
            f"{path}.{name}".lstrip(".")
            for path, _, before in self._parts
            for name, snapshot in before.items()
            if name != "_buffers" and any(not isinstance(one, nn.Parameter) for one in snapshot.tensors())
        ]

    def empty(self) -> list[str]:
        """Names of the attributes that hold no tensor yet, or that have come since."""
        names = []
        for path, part, before in self._parts:
            new = [name for name, _ in _attributes(part) if name not in before]
            held = [name for name, snapshot in before.items() if not any(True for _ in snapshot.tensors())]
            names += [f"{path}.{name}".lstrip(".") for name in (*held, *new) if name != "_buffers"]
        return names

    def tensors(self) -> Iterator[Tensor]:
        """Buffers and other tensors that are no weights."""
        for _, _, before in self._parts:
            for snapshot in before.values():
                yield from (one for one in snapshot.tensors() if not isinstance(one, nn.Parameter))

    def restore(self) -> None:
        """Put everything back, but for tensors that were changed in place: those cannot be."""
        for _, part, name, snapshot in list(self._changed()):
            if snapshot is None:
                del vars(part)[name]
            else:
                vars(part)[name] = snapshot.restore()


def _attributes(part: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(part).items() if name not in TORCHS_OWN and _holds_tensors(value))


@contextmanager
def remembered(model: nn.Module) -> Iterator[Kept]:
    """Put back afterwards what modules keep as attributes; inside, tell what has changed."""
    kept = Kept(model)
    try:
        yield kept
    finally:
        kept.restore()


def named_states(attributes: list[str]) -> str:
    """What a model keeps, by the names that it has there."""
    return " and ".join(f"model.{name}" for name in attributes)


def reset_call(attributes: list[str]) -> str:
    """What to do about a state that is kept between calls."""
    reset = "; ".join(f"model.{name} = None" for name in attributes) or "model.reset()"
    return f"pass call= with a function that resets it: def call(model, batch): {reset}; return model(batch.x)"
