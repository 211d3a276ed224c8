"""The demo: what it tells is what it measured, in a dozen lines, a picture and a page."""

import re

import pytest
import torch

from lagreach.cli import demo
from lagreach.errors import InputError, RunError
from lagreach.report.demo_page import Panel, draw

WORDS_OF_THE_PAPERS = ("alpha", "kappa", "transport", "swap contrast", "envelope", "N(l)", "claim", "paper", "H_N")


def test_the_answer_is_the_sum_of_the_flagged_readings():
    x, y = demo.flagged(2000, torch.Generator().manual_seed(0))
    assert x[..., 1].sum(1).unique().tolist() == [3.0]
    at = [demo.LENGTH - 1 - lag for lag in demo.LAGS]
    assert (y[:, 0] - x[:, at, 0].sum(1)).std().item() == pytest.approx(demo.NOISE, rel=0.1)


def test_shares_are_slopes_of_the_answers():
    class Knows(torch.nn.Module):
        def forward(self, x):
            return 0.25 * x[:, [demo.LENGTH - 1 - demo.LAGS[1]], 0] + x[:, [demo.LENGTH - 1 - demo.LAGS[2]], 0]

    data = demo.flagged(256, torch.Generator().manual_seed(1))
    assert demo.recovered(Knows(), data) == pytest.approx([0.0, 0.25, 1.0], abs=1e-5)


def test_the_picture_has_a_pair_of_bars_for_each_lag():
    panel = Panel((2, 40), (0.9, 0.1), ("-", "unseen")).with_outcome((1.3, -0.2))
    figure = draw((panel, panel), ("before", "after"))
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert heights == pytest.approx([0.9, 0.1, 1.0, 0.006])  # what lies beyond 0 and 1 is drawn at its edge
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["before", "after"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The demo at a size for tests: a short lag that is learned, and one that gates must be opened for."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {
            "LAGS": (1, 22, 30),
            "LENGTH": 34,
            "UNITS": 16,
            "SEQUENCES": 300,
            "HELD_OUT": 192,
            "STEPS": 150,
            "RATE": 0.01,
        }.items():
            patched.setattr(demo, name, value)
        out = tmp_path_factory.mktemp("demo")
        printed = "\n".join(demo.run_demo(out))
    return out, printed


@pytest.mark.thorough
def test_it_prints_the_answer_in_a_dozen_lines_without_words_of_the_papers(told):
    _, printed = told
    assert len([line for line in printed.splitlines() if line]) <= 14
    assert not [word for word in WORDS_OF_THE_PAPERS if word in printed]
    assert "advise_gates(model, x, lag=30).apply(model)" in printed
    rows = [[float(number) for number in re.findall(r"(\d+) %", line)] for line in printed.splitlines() if "%" in line]
    assert len(rows) == 6
    (first, before), (mended, after) = rows[0], rows[5]
    assert first > 50
    assert before > 50
    assert mended > 50 > rows[2][0]  # the forecast of the farthest reading, as advised and as it is
    assert after > rows[2][1]


@pytest.mark.thorough
def test_the_page_opens_with_the_picture_and_needs_nothing_else(told):
    out, _ = told
    page = (out / "demo.html").read_text()
    head = page.partition("<h2>")[0]
    assert "data:image/png;base64," in head
    assert len(page) < 1_000_000
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert (out / "demo.png").stat().st_size > 5000
    shown = re.sub(r"<style>.*?</style>|base64,[\w+/=]+", "", page, flags=re.S)
    assert not [word for word in WORDS_OF_THE_PAPERS if word in shown]
    assert 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page


def test_what_cannot_be_told_or_written_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("lagreach.cli.demo.tell", lambda _: pytest.fail("the work was begun"))
    with pytest.raises(InputError, match="seed is a whole number"):
        demo.run_demo(tmp_path, 2**70)
    (tmp_path / "demo.html").write_text("my own page")
    with pytest.raises(InputError, match="did not write them"):
        demo.run_demo(tmp_path)
    assert (tmp_path / "demo.html").read_text() == "my own page"
    with pytest.raises(RunError, match="cannot be written"):
        demo.run_demo(tmp_path / "demo.html" / "inside")
