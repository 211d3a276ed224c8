"""Diagnoses in words and on the terminal."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from lagreach.report import describe, show
from lagreach.report.text import sparkline
from lagreach.report.words import advice, answer, depends, retention
from lagreach.types import Status
from tests.report.cases import CASES, HOSTILE, bare, gated, layered, refused, unreachable, with_window


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_printed(name):
    diagnosis = CASES[name]()
    text = str(diagnosis)
    assert answer(diagnosis).split(";")[0][:60] in text.replace("\n", " ")
    assert "\x1b[" not in text
    for layer in diagnosis.layers:
        assert f"{layer.name} (" in text.replace("\n", "")
        for lag in layer.window.lags.tolist():
            assert f"{lag} " in text


def test_terminals_get_colour_and_pipes_plain_text():
    terminal, pipe = io.StringIO(), io.StringIO()
    show(gated(), Console(file=terminal, force_terminal=True, width=100, color_system="standard"))
    show(gated(), Console(file=pipe))
    assert "\x1b[" in terminal.getvalue()
    assert pipe.getvalue() == describe(gated()) + "\n"
    rich = io.StringIO()
    Console(file=rich, width=100).print(gated())
    assert answer(gated())[:40] in rich.getvalue()


def test_names_are_not_markup():
    terminal = io.StringIO()
    show(bare(), Console(file=terminal, force_terminal=True, width=300, color_system=None))
    assert HOSTILE in terminal.getvalue()


def test_the_answer_says_reach_what_lies_beyond_and_what_the_data_depend_on():
    said = answer(gated())
    at = gated().window()
    assert f"({at.interval[0]} to {at.interval[1]})" in said
    assert "The data depend on lags 3 and 9" in said
    assert "this lstm would" in answer(gated().labelled(cell="lstm"))


def test_an_unknown_number_is_neither_a_refusal_nor_a_promise():
    text = " ".join(str(refused()).split())
    assert "How far back this model would notice" in text
    assert "cannot be said (refused: kappa may be 11 or more" in text
    assert "would not notice" not in text
    assert "The data depend on lags 3 and 9; what lags 3 and 9 need cannot be said." in text
    assert "the data depend on lags 3, 9; what 3, 9 need cannot be said" in text
    required, rows = refused().layers[0].window.required, describe(refused()).splitlines()
    for lag, status in zip(required.lags.tolist(), required.status, strict=True):
        row = next(line for line in rows if line.split()[:1] == [str(lag)])
        assert ("none found" in row) == (status is Status.NOT_SIGNIFICANT)
        assert row.count("unknown") == (1 if status is Status.NOT_SIGNIFICANT else 2)


def test_a_longest_lag_of_unknown_number_is_said():
    window = gated().layers[0].window
    last = np.arange(len(window.lags)) == len(window.lags) - 1
    lost = {name: np.where(last, np.nan, getattr(window.probe, name)) for name in ("sequences", "low", "high")}
    status = tuple(Status.KAPPA_REFUSED if one else s for one, s in zip(last, window.probe.status, strict=True))
    said = answer(with_window(gated(), probe=replace(window.probe, **lost, status=status)))
    assert f"what lag {window.lags[-1]} needs cannot be said (refused" in said


def test_what_is_out_of_reach_is_said():
    window = gated().layers[0].window
    far = with_window(gated(), required=type(window.required)(
        **{**vars(window.required), "sequences": np.where(window.lags == 9, 1e9, window.required.sequences)}
    ))  # fmt: skip
    assert depends(far) == "The data depend on lags 3 and 9; lag 9 is out of reach."
    assert depends(gated()) == "The data depend on lags 3 and 9, within reach."
    none = with_window(gated(), adjusted_p=np.ones(len(window.lags)))
    assert depends(none).startswith("No dependence")


def test_advice_fits_the_limit():
    for diagnosis in (gated(), layered(), unreachable(), refused()):
        for layer in diagnosis.layers:
            for lag in layer.window.lags.tolist():
                said, limit = advice(diagnosis, layer, lag), layer.window.limit(lag, diagnosis.sequences)
                if limit in (Status.LIMIT_LEARNED, Status.LIMIT_NO_DEPENDENCY):
                    assert said == "nothing to do"
                elif limit is Status.LIMIT_UNDETERMINED:
                    assert "train on" in said
                else:
                    assert said


def test_gate_bias_stretches_the_longest_time_scale_to_the_lag():
    layer = layered().layers[0]
    lag = int(layer.window.lags[-1])
    hidden = with_window(layered(), adjusted_p=np.ones(len(layer.window.lags)), sequences=1)
    said = advice(hidden, hidden.layers[0], lag)
    assert retention(layer) < lag
    assert f"gate bias +{math.log(lag / retention(layer)):.1f}" in said


def test_sparkline():
    assert sparkline([math.nan, math.inf]) == "  "
    assert sparkline([1.0, 1.0]) == "▁▁"
