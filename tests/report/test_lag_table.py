"""The table of lags has a cell for every number that has a column, in the words of its unit."""

import math

import numpy as np

from lagreach.report.lag_table import TableCell, cells, columns
from lagreach.statistics import LagCurve
from lagreach.types import Status
from tests.report.cases import gated


def curve(value, unit="", status=Status.OK, low=math.nan, high=math.nan, lags=(3,), column="a number"):
    one = [np.full(len(lags), float(number)) for number in (value, low, high)]
    return LagCurve("a", "A number", np.array(lags), *one, (status,) * len(lags), unit=unit, column=column)


def test_numbers_are_written_as_their_unit_is_read():
    assert cells([curve(0.257, "share", low=0.2, high=0.3)], 3) == [TableCell("a number", "26 %", "(20 to 30)")]
    assert cells([curve(1063.2, "sequences", low=9.9, high=math.inf)], 3) == [
        TableCell("a number", "1,060", "(9.9 to inf)")
    ]
    assert cells([curve(0.01234, "steps")], 3) == [TableCell("a number", "0.0123", "")]


def test_what_is_no_number_says_why_and_says_it_once():
    none = curve(math.inf, "sequences", Status.NOT_SIGNIFICANT, low=1234)
    assert cells([none], 3) == [TableCell("a number", "none found", "(more than 1,230)")]
    assert cells([curve(math.inf, "sequences", low=100)], 3) == [
        TableCell("a number", "no number suffices", "(more than 100)")
    ]
    unknown = curve(math.nan, "sequences", Status.NO_ANCHOR)
    first, second = cells([unknown, unknown], 3)
    assert (first.value, first.reason) == (f"unknown: {Status.NO_ANCHOR}", True)
    assert (second.value, second.reason) == ("unknown", False)


def test_a_number_of_other_lags_leaves_its_cell_empty():
    assert cells([curve(1.0, lags=(1, 2)), curve(2.0)], 3) == [
        TableCell("a number", "", ""),
        TableCell("a number", "2", ""),
    ]


def test_what_a_page_opens_with_is_its_first_column():
    window = gated().layers[0].window
    shown = columns(window)
    assert [one.look is not None and one.look.opens for one in shown] == [True, *[False] * (len(shown) - 1)]
    assert {one.name for one in shown} == {name for name, one in window.curves.items() if one.column}
