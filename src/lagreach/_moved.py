"""Old places of modules, and old names in them: they still work, with a warning that says what to use now."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ALIASES = {"lagreach.convergence": "lagreach.papers.cayci"}  # names that stay: nobody is warned
MOVED = {
    f"lagreach.{old}": f"lagreach.{new}"
    for old, new in {
        "batch": "data.batch",
        "comparison": "diagnosis.compare",
        "decays": "advice.retention",
        "gate_advice": "advice.gates",
        "gradients.matched": "papers.livi.matched",
        "gradients.sequences": "data.sequences",
        "gradients.subject": "gradients.measurement_plan",
        "initialise": "models.initialise",
        "io": "diagnosis.files",
        "measure": "diagnosis.measure",
        "model": "models.gated_rnn",
        "pipeline": "diagnosis.diagnose",
        "planning": "advice.plan",
        "report.paper_figures": "papers.livi.figures",
        "regimes.lemmas": "papers.livi.lemmas",
        "suggestion": "advice.suggest",
        "what_if": "advice.what_if",
        "window": "diagnosis.window",
    }.items()
}
# what no longer exists in the form it had, and where its work is done
LEFT = {
    "lagreach.gradients.memory": "the passes of a diagnosis: diagnose(...).curve('memory'), and lagreach.statistics.memory",
    "lagreach.gradients.reliance": "the passes of a diagnosis: diagnose(...).curve('reliance'), and lagreach.statistics.reliance",
    "lagreach.study.validation": "the folder studies of the repository: python -m studies.validation",
}


def new_place(name: str) -> str | None:
    """Where a module of that name is now; None if it did not move.

    >>> new_place("lagreach.convergence.bounds"), new_place("lagreach.cells")
    ('lagreach.papers.cayci.bounds', None)
    """
    for old, new in (ALIASES | MOVED).items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class _Forward(Loader):
    """Hands out the module at its new place under the old name."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, not a copy: its classes are the same under both names."""
        module = import_module(self.new)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back the specification that the import system has just overwritten."""
        module.__spec__ = self.spec


class OldPlaces(MetaPathFinder):
    """Finds modules by the names they had."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Forward old names; everything else is left to the finders that come later."""
        new = new_place(name)
        if name in LEFT:
            raise ModuleNotFoundError(f"{name} is now in {LEFT[name]}", name=name)
        if new is None:
            return None
        if name in MOVED:
            warnings.warn(f"{name} is now {new}; the old name will go away", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Forward(new))


def install() -> None:
    """Let old names be found, once in a process."""
    if not any(isinstance(finder, OldPlaces) for finder in sys.meta_path):
        # first, since a folder that held nothing but compiled files may be left at an old place
        sys.meta_path.insert(0, OldPlaces())


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module that hands out what it held under `names` that were used before, with a warning.

    New names are those in the module, or with a dot those elsewhere.
    """

    def old_name(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = (names[name] if "." in names[name] else f"{module}.{names[name]}").rpartition(".")
        warn_renamed(f"{module}.{name}", f"{place}.{new}")
        return getattr(import_module(place), new)

    return old_name


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Warn whoever uses the old name of something; `stacklevel` as for `warnings.warn` in the function that calls this one."""
    warnings.warn(f"{old} is now {new}; the old name will go away", DeprecationWarning, stacklevel=stacklevel + 1)
