"""Numbers of a study on their way into tables and figures."""

import numpy as np

from lagreach.study.group_tables import reach
from lagreach.study.results import middle

NAN = float("nan")


def test_a_window_is_zero_where_nothing_is_within_reach_and_unknown_where_no_number_is():
    rows = [
        {"windows": [8.0, None], "n_probe": [5.0, NAN], "n_data": [NAN, NAN]},
        {"windows": [None, NAN], "n_probe": [NAN, None], "n_data": [1.0, 1.0]},
        {"windows": [0.0, 4.0], "n_data": [3.0, 3.0]},  # the printed recipe
        {"windows": [0.0, 0.0], "n_probe": None, "n_data": [NAN, NAN]},
    ]
    np.testing.assert_array_equal(reach(rows), [[8.0, 0.0], [NAN, NAN], [0.0, 4.0], [NAN, NAN]])


def test_medians_leave_out_what_is_unknown_and_say_so():
    assert middle(np.array([1.0, 2.0, 100.0])) == "2"
    assert middle(np.array([1.0, np.inf, np.inf])) == "inf"
    assert middle(np.array([1.0, NAN, 2.0, NAN])) == "1.5 (2 of 4)"
    assert middle(np.array([NAN, NAN])) == "unknown"
