"""The page and the figure of a forecast as files."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

import lagreach
from lagreach.cli.report import run_report
from lagreach.errors import InputError
from lagreach.forecasting.words import to_do
from lagreach.report.forecast_figure import recovered
from lagreach.report.forecast_payload import MOST_NUMBERS, forecast_payload, packed, shown_lags
from lagreach.report.words import TERMS, technical
from tests.forecasting.cases import FORECASTS, many_lags, readout, untold, whole


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORECASTS)
def test_one_small_file_that_opens_with_the_figure(name, tmp_path):
    forecast = FORECASTS[name]()
    forecast.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 1e6
    assert re.findall(r'(?:src|href)="(?!data:)', page[: page.index("<script")]) == []
    assert page.index('id="bars"') < page.index('id="answer"') < page.index('id="to-do"') < page.index("<details>")
    for part in forecast.about.values():
        assert part in page
    shown = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page[page.index("<body>") : page.index("<details>")], flags=re.S)
    assert [term for term in TERMS if re.search(rf"\b{re.escape(term)}\b", shown, re.IGNORECASE)] == []
    assert "For those who want to know how" in page


def test_what_is_packed_is_exactly_what_python_has():
    forecast = whole()
    data = json.loads(gzip.decompress(base64.b64decode(packed(forecast_payload(forecast)))))
    steps = np.array(data["reach"]["share"])
    whole_numbers = steps.cumsum(-1)
    whole_numbers[1:] += whole_numbers[:1]
    np.testing.assert_array_equal(whole_numbers / data["rules"]["digits"], forecast.reach.share)


def test_what_these_sequences_cannot_tell_was_not_tested(tmp_path):
    forecast = untold()
    forecast.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count(">not tested<") == len(forecast.lags)
    assert ">none found<" not in page
    assert forecast_payload(forecast)["untested"].tolist() == list(range(len(forecast.lags)))
    assert forecast_payload(readout())["untested"].tolist() == []


@pytest.mark.thorough
def test_of_very_many_lags_those_in_the_data_and_some_others_are_shown():
    forecast = many_lags()
    chosen = shown_lags(forecast)
    assert 8 <= len(chosen) < len(forecast.lags)
    assert set(range(8)) <= set(chosen)  # short lags, at which shares change fastest, are all there
    assert chosen[-1] == len(forecast.lags) - 1
    assert set(np.flatnonzero(forecast.adjusted_p <= forecast.error)) <= set(chosen)
    assert 2 * 2 * forecast.read.share.shape[0] * forecast.read.share.shape[2] * len(chosen) <= 1.2 * MOST_NUMBERS


def test_the_figure_has_a_bar_a_lag_coloured_by_what_binds():
    forecast = whole()
    figure = forecast.plot()
    upper, lower = figure.axes
    bars = {round(bar.get_x() + bar.get_width() / 2): bar for bar in upper.patches}
    values = forecast.at(forecast.available).if_present.values[:, 0]
    assert len(bars) == len(forecast.lags)
    for i, bar in bars.items():
        np.testing.assert_allclose(bar.get_height(), max(values[i], 0.004))
    edges = {tuple(bar.get_edgecolor()) for bar in bars.values()}
    assert len(edges) == len(set(forecast.limits_at(forecast.available)))
    assert {"seen", "half of it readable", "half of it reachable"} <= {line.get_label() for line in lower.lines}
    assert len(readout().plot(50).axes[1].lines) == 3  # seen, readable, and the number of sequences
    with pytest.raises(InputError, match="positive number"):
        recovered(forecast, sequences=0)


def test_what_to_do_names_each_lag_that_is_not_learned():
    lines = to_do(whole(), 10)
    assert lines
    assert all(line.startswith(("Lag", "Nothing")) for line in lines)
    assert not any(technical(line) for line in lines)


@pytest.mark.thorough
def test_a_saved_forecast_has_a_page_too(tmp_path, capsys):
    whole().save(tmp_path / "forecast.nc")
    assert lagreach.load(tmp_path / "forecast.nc").about == whole().about
    (tmp_path / "watched" / "forecasts").mkdir(parents=True)
    whole().save(tmp_path / "watched" / "forecasts" / "step-1.nc")
    for place in (tmp_path / "forecast.nc", tmp_path, tmp_path / "watched", tmp_path / "watched" / "forecasts"):
        run_report([place], tmp_path / "page.html", title="mine")
        assert "a forecast" in capsys.readouterr().out
    whole().save(tmp_path / "second.nc")
    with pytest.raises(InputError, match=r"holds a forecast(.|\n)*pass its file alone to lagreach report"):
        run_report([tmp_path], tmp_path / "page.html", title="mine")
    assert "<h1>mine</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
