"""What the documentation shows as output is what comes out: every example and every command of the start page."""

import re
import runpy

import pytest

from docs import outputs
from tests.docs.test_pages import DOCS, close

EXAMPLES = sorted(outputs.EXAMPLES.glob("*.py"))


def skeleton(text):
    """The words of a text; lists of numbers may be of any length."""
    return re.sub(r"#(, #)+", "#", outputs.numbers_and_words(text)[1]).replace("*", "")


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_gallery_shows(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    runpy.run_path(str(script), run_name="__main__")
    printed, stored = capsys.readouterr().out, (outputs.OUTPUT / f"{script.stem}.txt").read_text(encoding="utf-8")
    if script.stem in outputs.TRAINED:
        assert skeleton(printed) == skeleton(stored)
    else:
        close(printed, stored)


@pytest.mark.thorough
def test_commands_of_the_start_page_print_what_it_shows():
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    for name, printed in outputs.run_commands().items():
        close(printed, (outputs.OUTPUT / f"{name}.txt").read_text(encoding="utf-8"))
        assert f"output/{name}.txt" in page
        for line in outputs.COMMANDS[name].splitlines():
            assert f"$ {line}" in page


def test_numbers_and_words():
    numbers, words = outputs.numbers_and_words("lag 4: 1,070 (9.5..16), took 2e6 ▁▃█ in 12 s")
    assert numbers == [4, 1070, 9.5, 16, 2e6]
    assert words == "lag #: # (#..#), took # ▁"
