"""Put a page together from its template, style and scripts: one file that needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lagreach._util.disk import Write, write_whole
from lagreach._util.extras import require_extra
from lagreach._version import __version__

SYMBOLS = {  # what a reader sees on pointing at them
    "alpha": "How heavy the tails of the noise are: 2 is a normal law, less is heavier",
    "kappa": "How slowly averages over sequences settle: 2 is the square root of their number, more is slower",
    "N(l)": "Sequences that a dependency l steps back needs until it is noticed",
    "r²": "Share of the variance that the law explains",
    "envelope": "How much of a gradient is left after so many steps, to first order",
}


def explained(text: str) -> Any:
    """Let symbols tell what they mean.

    >>> str(explained("kappa < 3"))[:21]
    '<abbr title="How slow'
    """
    from markupsafe import Markup, escape

    pattern = re.compile("|".join(rf"(?<!\w){re.escape(symbol)}(?!\w)" for symbol in SYMBOLS))
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts += [
            escape(text[end : match.start()]),
            Markup('<abbr title="{}">{}</abbr>').format(SYMBOLS[match[0]], match[0]),
        ]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def coded(text: str) -> Any:
    """Show what stands between backticks as code.

    >>> str(coded("call `f(x) < 1`"))
    'call <code>f(x) &lt; 1</code>'
    """
    from markupsafe import Markup, escape

    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def write_page(template: str, scripts: Sequence[str], path: Path, write: Write = write_whole, **content: Any) -> Path:
    """Render a template of this folder with everything inside, and write it."""
    require_extra("report")
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("lagreach.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["explained"], environment.filters["coded"] = explained, coded
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
