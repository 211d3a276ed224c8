"""Parts of pages that are made when the documentation is built: ``<!-- made: NAME -->`` in a page becomes the part."""

from __future__ import annotations

import re
from collections.abc import Callable

from docs.parts import benchmarks, commands, evidence, gallery, results

PARTS: dict[str, Callable[[], str]] = {
    "benchmarks": benchmarks.text,
    "commands": commands.text,
    "evidence": evidence.text,
    "gallery": gallery.text,
    "results": results.text,
}
MARK = re.compile(r"<!-- made: ([\w-]+) -->")


def filled(page: str) -> str:
    """Put the parts into a page."""
    return MARK.sub(lambda mark: PARTS[mark[1]](), page)
