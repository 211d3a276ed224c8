"""What tasks on real data share."""

from __future__ import annotations

import importlib
from types import ModuleType

from lagreach.errors import LagreachError

SPLITS = ("train", "test")


class MissingDataError(LagreachError, ImportError):
    """A data set whose package is not installed."""


def load_module(module: str, package: str) -> ModuleType:
    """Import the module that holds a data set, or say how to install its package."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise MissingDataError(
            f"these data come with the package {package}, which is not installed",
            got=str(missing),
            fix="pip install 'lagreach[data]'",
        ) from missing
