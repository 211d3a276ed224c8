"""Put a page together from its template, style and scripts: one file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lagreach._util.disk import Write, write_whole
from lagreach._util.extras import require_extra
from lagreach._version import __version__


def write_page(template: str, scripts: Sequence[str], path: Path, write: Write = write_whole, **content: Any) -> Path:
    """Render a template of this folder with everything inside, and write it."""
    require_extra("report")
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("lagreach.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template(template).render(
        **content,
        version=__version__,
        style=Markup(_template("style.css")),
        scripts=[Markup(_template(name)) for name in scripts],
    )
    write(path, page.encode())
    return path


@cache
def _template(name: str) -> str:
    return (files("lagreach.report") / "templates" / name).read_text(encoding="utf-8")
