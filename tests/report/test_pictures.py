"""Pages and figures draw numbers per lag as those ask for, and know none of them by name."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import lagreach
from lagreach.errors import InputError
from lagreach.report import figures
from lagreach.report.html import write_report
from lagreach.report.payload import make_payload
from lagreach.report.pictures import caption, lines, logarithmic, opening, pictures
from lagreach.statistics import LagStatistic, Look, Measured, all_statistics
from lagreach.statistics.dependence import HELD_AND_USED
from lagreach.statistics.gain import ARRIVES
from tests.report.cases import bare, gated, with_window

SOURCE = Path(lagreach.__file__).parent
# words that also name settings of a measurement, the sample of noise and the record of memory
OTHER_MEANINGS = {"signal", "noise", "memory"}
# tables of studies have had these columns from the start, and claims and figures of the papers are about them
TABLES = {"study/summary.py", "study/figures.py"}


class Mine(LagStatistic):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "A number of my own"

    def curve(self, measured):
        lags = measured.window.lags
        return self.make(lags, -1.0 - lags, more=2.0 * lags)


def with_mine(look, **options):
    kind = type("Mine", (Mine,), {"look": look, **options})
    window = gated().layers[0].window
    return with_window(gated(), curves={**window.curves, "mine": kind().curve(Measured(window))})


def test_a_number_that_shares_a_picture_is_drawn_there(tmp_path):
    look = Look(ARRIVES, "Mine: what I think.", lines={"": "mine", "more": "more of mine"}, relative=True)
    diagnosis = with_mine(look, log10=True)
    window = diagnosis.layers[0].window
    assert logarithmic(pictures(window)[ARRIVES])
    (layer,) = make_payload([diagnosis], ["x"])["models"][0]["layers"]
    drawn = {line["label"]: line["values"] for one in layer["pictures"][ARRIVES]["curves"] for line in one["lines"]}
    assert drawn["mine"] == [-lag for lag in window.lags.tolist()]  # beside the first
    assert drawn["more of mine"] == [2 * lag for lag in window.lags.tolist()]
    axes = figures.gain(diagnosis)
    assert {"exact gain", "first order", "mine", "more of mine"} <= {line.get_label() for line in axes.get_lines()}
    assert "Mine: what I think." in write_report(diagnosis, tmp_path / "page.html").read_text()


def test_a_number_of_another_unit_has_a_row_of_its_own():
    diagnosis = with_mine(Look(HELD_AND_USED, mark="bar", lines={"": "mine"}))
    (layer,) = make_payload([diagnosis], ["x"])["models"][0]["layers"]
    shown = layer["pictures"][HELD_AND_USED]
    assert not shown["logarithmic"]
    assert [one["mark"] for one in shown["curves"]] == ["diamond", "bar", "bar", "bar"]
    assert figures.dependence(diagnosis).figure.axes[1].get_lines()[-1].get_label() == "mine (right)"


def test_a_picture_of_its_own_appears_on_the_page(tmp_path):
    page = write_report(with_mine(Look("What nobody asked for", "Mine: alone.")), tmp_path / "page.html").read_text()
    assert "<h2>What nobody asked for</h2>" in page
    assert "Mine: alone." in page


def test_unknown_marks_are_refused():
    with pytest.raises(InputError, match="known mark"):
        Look("Anything", mark="pie")


def test_gains_and_envelope_are_those_of_the_diagnosis():
    head = gated().layers[0]
    gain, envelope = pictures(head.window)[ARRIVES]
    np.testing.assert_array_equal(lines(gain)["exact gain"], head.fidelity.log10_exact.numpy())
    np.testing.assert_array_equal(lines(gain)["first order"], head.fidelity.log10_first_order.numpy())
    beside = head.rates.log10_envelope.numpy() - np.log10(len(head.rates.layer))
    np.testing.assert_allclose(lines(envelope)["envelope f(l) / f(0)"], beside, atol=1e-12)
    assert "Exact gain" in caption([gain, envelope])


def test_what_is_missing_is_not_drawn():
    window = bare().layers[0].window
    without = replace(window, curves={name: replace(one, look=None) for name, one in window.curves.items()})
    assert pictures(without) == {}
    assert opening(without) is None
    assert opening(gated().layers[0].window).look.opens


@pytest.mark.parametrize("part", ["report", "callbacks", "study"])
def test_no_number_per_lag_is_known_by_name(part):
    names = set(all_statistics())
    named = []
    for path in sorted((SOURCE / part).rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            key = None
            if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "curves":
                key = node.slice
            elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
                owner = getattr(node.func.value, "attr", "")
                key = (
                    node.args[0] if node.func.attr == "curve" or (node.func.attr, owner) == ("get", "curves") else None
                )
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                named.append(f"{place}:{node.lineno} asks for {key.value}")
            if isinstance(node, ast.Constant) and node.value in names - OTHER_MEANINGS and place not in TABLES:
                named.append(f"{place}:{node.lineno} names {node.value}")
    assert named == []
