"""Forward-mode derivatives, quietly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


def jvp(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp`, without the deprecation warning torch raises at itself when it loads forward mode."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=DeprecationWarning)
        found = torch.func.jvp(function, primals, tangents)
    return found[0], found[1]
