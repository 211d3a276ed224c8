"""Packages that come with an extra of lagreach, and a sentence where one is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from lagreach.errors import LagreachError

PACKAGES = {"study": ("pyarrow", "pydantic", "yaml"), "report": ("jinja2", "matplotlib")}
PURPOSE = {"study": "studies", "report": "figures and pages"}


class MissingExtraError(LagreachError, ImportError):
    """Something that needs packages which are not installed."""


def require_extra(extra: str) -> None:
    """Say what to install if a package of this extra is missing.

    >>> require_extra("report")
    """
    missing = [name for name in PACKAGES[extra] if not _installed(name)]
    if missing:
        raise MissingExtraError(
            f"{PURPOSE[extra]} need packages that are not installed",
            got=f"no {', '.join(missing)}",
            fix=f'pip install "lagreach[{extra}]"',
        )


def _installed(name: str) -> bool:
    if name in sys.modules:  # None there means that it cannot be imported
        return sys.modules[name] is not None
    return find_spec(name) is not None
