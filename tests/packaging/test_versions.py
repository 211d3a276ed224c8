"""One version everywhere, and a changelog that knows it."""

import re
from importlib.metadata import version
from pathlib import Path

from lagreach import __version__

ROOT = Path(__file__).parents[2]


def test_the_installed_version_is_the_one_in_the_source():
    assert version("lagreach") == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_changelog_has_a_section_on_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    releases = [tuple(map(int, heading.split(" ")[0].split("."))) for heading in headings[1:]]
    assert headings[1].split(" ")[0] == __version__
    assert releases == sorted(set(releases), reverse=True)
