"""Compiled code is kept on disk where there is room for it; where there is none, every process compiles anew.

numba keeps an index of files for each function, which goes by the date of the function's own file. Here an entry is a file of
its own, named after all that it was made of and for: the sources that are compiled together, types, processor, versions. So
processes that start at once do not mix up their entries, a copied or moved package still finds them, and a change of any
source is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import pickle
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

DIGEST = 32  # bytes in front of an entry, which say whether it is whole
SUFFIX = ".compiled"


def kept_on_disk(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of numba's keep what it compiles, as ``cache=True`` does, unless the disk refuses.

    numba raises where no folder can be written, or where the disk is full: errors in the middle of a user's training, about
    files that only save time.
    """
    if not hasattr(function, "enable_caching"):  # NUMBA_DISABLE_JIT leaves the plain function
        return function
    function.compile = _without_collector(function.compile)  # type: ignore[attr-defined]
    try:
        function.enable_caching()
    except RuntimeError:
        return function
    cache: Any = function._cache  # type: ignore[attr-defined]
    cache._guard_against_spurious_io_errors = lambda: contextlib.suppress(OSError)
    sources = _digest_of_sources(Path(cache._py_func.__code__.co_filename).parent)
    cache._cache_file = Entries(Path(cache.cache_path), cache._impl.filename_base, sources)
    return function


def _without_collector(compile_types: Callable[..., Any]) -> Callable[..., Any]:
    """Python looks for garbage again and again while numba makes millions of objects: a tenth of the time, for nothing."""

    @functools.wraps(compile_types)
    def paused(*arguments: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return compile_types(*arguments)
        finally:
            if collecting:
                gc.enable()

    return paused


class Entries:
    """Takes the place of numba's index of files; a `key` holds types, processor and a digest of the function's own code."""

    def __init__(self, folder: Path, name: str, sources: str) -> None:
        self._folder, self._name, self._sources = folder, name, sources

    def load(self, key: Any) -> Any:
        """Return what was compiled, or None if it is not there or not whole."""
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        digest, data = content[:DIGEST], content[DIGEST:]
        return pickle.loads(data) if hashlib.sha256(data).digest() == digest else None

    def save(self, key: Any, data: Any) -> None:
        """Write an entry; whoever reads it meanwhile finds all of it or nothing. Those of older sources are removed."""
        from numba.core.serialize import dumps

        content, path = dumps(data), self._path(key)
        function = self._name.rsplit("-", 1)[0]  # without the line it stands in
        for old in self._folder.glob(f"{function}-*{SUFFIX}"):
            if self._sources not in old.name:
                old.unlink(missing_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(hashlib.sha256(content).digest() + content)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        compiler = {name: version(name) for name in ("numba", "llvmlite", "numpy")}
        made_for = hashlib.sha256(repr((key, compiler)).encode()).hexdigest()[:24]
        return self._folder / f"{self._name}.{self._sources}.{made_for}{SUFFIX}"


@functools.cache
def _digest_of_sources(folder: Path) -> str:
    """Digest of all that may be compiled into a function of this folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]
