"""Sphinx configuration."""

from lagreach import __version__

project = "lagreach"
author = "The lagreach developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_extra_path = ["_build/extra"]  # the example report that build.py writes
html_theme = "furo"
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
