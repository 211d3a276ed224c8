"""Gated recurrent cells, one file each. `all_cells` finds them, so a new file needs no registration."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

from lagreach.cells._cell import Cell, Dual, Factors, Params, jacobian_diagonal, unroll
from lagreach.errors import InputError, UnsupportedError

__all__ = ["Cell", "Dual", "Factors", "Params", "all_cells", "jacobian_diagonal", "make_cell", "unroll"]


def all_cells() -> dict[str, type[Cell]]:
    """Every cell in this package, by name.

    >>> sorted(all_cells())
    ['const_gate', 'diag_elman', 'diag_gate', 'elman', 'gru', 'lstm', 'min_gru', 'shared_gate', 'torch_gru']
    """
    cells: dict[str, type[Cell]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for cls in vars(module).values():
            defined_here = inspect.isclass(cls) and cls.__module__ == module.__name__
            if defined_here and issubclass(cls, Cell) and not inspect.isabstract(cls) and hasattr(cls, "name"):
                cells[cls.name] = cls
    return dict(sorted(cells.items()))


def make_cell(cell: str | type[Cell] | Cell, *, gate_init: float | None = None, **options: object) -> Cell:
    """Turn a name, a class or a finished cell into a cell with the given options.

    Options that are None are left at the cell's default. A cell that lacks an option refuses it by name.
    `gate_init` reaches only cells whose gate is fixed rather than learned (`Cell.gate_option`).
    """
    wanted = {k: v for k, v in options.items() if v is not None}
    if isinstance(cell, str):
        known = all_cells()
        if cell not in known:
            raise InputError(
                "unknown cell",
                got=repr(cell),
                expected=", ".join(known),
                fix="use one of these names, or pass your own Cell subclass",
            )
        cell = known[cell]
    gate_option = getattr(cell, "gate_option", None)
    if gate_option is not None and gate_init is not None:
        wanted[gate_option] = gate_init
    if isinstance(cell, Cell):
        differing = {k for k, v in wanted.items() if getattr(cell, k, False) != v}
        if differing:
            raise InputError(
                f"{type(cell).__name__} is already built, so its options cannot be changed here",
                got=", ".join(f"{k}={wanted[k]!r}" for k in sorted(differing)),
                fix="set the options when you build the cell, or pass its class or name instead",
            )
        return cell
    if not (inspect.isclass(cell) and issubclass(cell, Cell)):
        raise InputError(
            "not a cell", got=type(cell).__name__, expected="a cell name, a Cell subclass or a Cell instance"
        )
    fields: set[str] = {f.name for f in dataclasses.fields(cell)} if dataclasses.is_dataclass(cell) else set()
    unknown = {k: v for k, v in wanted.items() if k not in fields and v is not False}
    if unknown:
        raise UnsupportedError(
            f"{cell.__name__} does not support {', '.join(sorted(unknown))}",
            got=", ".join(f"{k}={v!r}" for k, v in unknown.items()),
            expected=f"options of this cell: {', '.join(sorted(fields)) or 'none'}",
        )
    return cell(**{k: v for k, v in wanted.items() if k in fields})
