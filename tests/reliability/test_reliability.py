"""The small size of every check, and the page that shows the large one."""

import pytest

from tests.reliability.__main__ import run_check
from tests.reliability.page import PAGE, TITLES, page_text, read_results

LONG = (
    "soak",
    "determinism",
    "limits",
    "faults",
    "commands",
    "architectures",
)  # too long for continuous integration, or for a quiet machine


def marks(name):
    return pytest.mark.slow if name in LONG else pytest.mark.thorough


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in TITLES])
def test_nothing_fails(name):
    for count in run_check(name, "quick"):
        assert count.tried > 0
        assert count.failures == [], count.what
        assert count.failed == 0


stored = pytest.mark.skipif(not PAGE.exists(), reason="no full run (make reliability) is stored yet")


@stored
def test_the_page_shows_the_stored_results():
    assert PAGE.read_text() == page_text(read_results())


@stored
def test_every_check_is_published_with_its_counts():
    results = read_results()
    assert list(results) == list(TITLES)
    for result in results.values():
        assert {"date", "lagreach", "torch", "python", "machine"} <= set(result["where"])
        assert all(count["tried"] > 0 for count in result["counts"])
