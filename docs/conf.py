"""Sphinx configuration."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]  # the packages docs (parts of pages, figures) and benchmarks

from docs import equations, parts  # noqa: E402
from lagreach import __version__  # noqa: E402

project = "lagreach"
author = "The lagreach developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_extra_path = ["_build/extra"]  # the example report that build.py writes
html_static_path = ["style"]
html_css_files = ["pages.css"]
html_theme = "furo"
html_title = "lagreach"
html_show_copyright = False
html_math_renderer = "mathml"
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"


def setup(app):
    """Render equations without a network, and fill in the parts of pages that are made from code and stored files."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(equations.inline, None), block_renderers=(equations.block, None)
    )
    app.connect("source-read", lambda app, page, source: source.__setitem__(0, parts.filled(source[0])))
