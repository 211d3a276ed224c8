"""One version everywhere, and a changelog that knows it."""

import re
import tomllib
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


def test_the_lowest_versions_that_are_tested_are_the_lowest_that_are_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in ("report", "study") for one in project["optional-dependencies"][extra] if ">=" in one]
    allowed = dict(dependency.split(">=") for dependency in [*project["dependencies"], *extras])
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints-lowest.txt").read_text(), re.M))
    assert set(pinned) == set(allowed) - {"torch"}
    for name, lowest in pinned.items():
        assert re.fullmatch(rf"{re.escape(allowed[name])}(\.0)*", lowest), name
