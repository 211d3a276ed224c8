"""Figures draw the numbers of the diagnosis, for every case; the command writes them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lagreach.cli.report import run_figures, run_report
from lagreach.errors import InputError
from lagreach.papers.livi import figures as paper_figures
from lagreach.report import figures
from lagreach.report.gallery import FIGURES, export
from lagreach.report.words import time_scales
from tests.report.cases import CASES, gated, heavy, layered, unreachable, with_window


def const():
    return gated("const_gate", 0.2)


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["layered", "refused", "unreachable", "bare"])
def test_every_figure_of_every_case_is_drawn_or_says_why_not(name, tmp_path):
    files, missing = export([CASES[name]().labelled(epoch=1)], tmp_path, kind="svg")
    assert {file.stem for file in files} | set(missing) == set(FIGURES)
    assert all(file.stat().st_size > 2000 for file in files)
    expected = {"bare": {"noise", "tail", "figure-3"}, "refused": {"figure-3"}, "unreachable": {"figure-3"}}
    assert set(missing) == expected.get(name, set())


def test_window_draws_n_and_the_dependences():
    axes = figures.window(gated())
    window = gated().layers[0].window
    drawn = lines(axes)["if present"]
    np.testing.assert_allclose(drawn, np.stack((window.lags, window.required_if_present().sequences), 1))
    marked = axes.containers[0].lines[0].get_xydata()
    assert marked[:, 0].tolist() == list(window.dependences)
    assert axes.get_yscale() == "log"
    panel = Figure().add_subplot()
    assert figures.window([gated(), const()], panel) is panel


def test_reach_is_the_window_of_each_number():
    axes = figures.reach([gated(), unreachable()])
    for line, diagnosis in zip(axes.get_lines(), (gated(), unreachable()), strict=True):
        for sequences, lag in line.get_xydata()[::40]:
            at = diagnosis.layers[0].window.at(sequences).lag
            assert (np.isnan(lag) and at is None) or lag == at


@pytest.mark.parametrize(
    ("scale", "x", "y"), [("linear", "linear", "linear"), ("semilog", "linear", "log"), ("loglog", "log", "log")]
)
def test_gain_on_three_scales(scale, x, y):
    axes = figures.gain(gated(), scale=scale)
    assert (axes.get_xscale(), axes.get_yscale()) == (x, y)
    exact = dict(lines(axes)["exact gain"].tolist())
    assert exact[3.0] == pytest.approx(float(gated().gain.sel(lag=3)))
    with pytest.raises(InputError, match="unknown scale"):
        figures.gain(gated(), scale="log")


def test_training_sorts_by_the_clock_and_needs_one():
    runs = [
        gated().labelled(cell="diag", epoch=7),
        const().labelled(cell="const", epoch=0),
        const().labelled(cell="diag", epoch=2),
    ]
    axes = figures.training(runs)
    assert lines(axes)["diag"][:, 0].tolist() == [2, 7]
    budget = gated().sequences
    assert lines(axes)["diag"][:, 1].tolist() == [const().window(budget).lag, gated().window(budget).lag]
    with pytest.raises(InputError, match="no time"):
        figures.training([gated()])


def test_the_papers_figures():
    models = [gated().labelled(cell="diag"), const().labelled(cell="const")]
    panels = paper_figures.figure_1(models)
    assert [(one.get_xscale(), one.get_yscale()) for one in panels] == [
        ("linear", "linear"),
        ("linear", "log"),
        ("log", "log"),
    ]
    envelope = dict(lines(panels[0])["diag"].tolist())
    assert envelope[3.0] == pytest.approx(float(gated().envelope.sel(lag=3)))
    assert isinstance(paper_figures.figure_2(models), Axes)
    spectra = paper_figures.figure_4(models)
    assert [one.get_title(loc="left") for one in spectra] == ["diag", "const"]
    ticks = spectra[0].get_lines()[-1].get_xdata()
    np.testing.assert_allclose(np.sort(ticks), np.sort(time_scales(gated().layers[0]).tau))


def test_figure_3_shows_the_exponent():
    window, rates = heavy().layers[0].window, heavy().layers[0].rates
    needed = 50.0 * rates.envelope.numpy() ** -1.7 * window.strength ** (window.concentration.exponent / 2)
    exact = type(window.probe)(**{**vars(window.probe), "sequences": needed})
    axes = paper_figures.figure_3(with_window(heavy(), probe=exact))
    assert any("slope 1.70" in name for name in lines(axes))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_files_come_out_the_same_each_time(kind, tmp_path):
    for folder in ("a", "b"):
        export([gated()], tmp_path / folder, names=["window"], kind=kind)
    assert (tmp_path / "a" / f"window.{kind}").read_bytes() == (tmp_path / "b" / f"window.{kind}").read_bytes()


@pytest.mark.thorough
def test_pages_and_figures_from_files_and_folders(tmp_path, capsys):
    for name, diagnosis in (("a", gated()), ("b", layered())):
        (tmp_path / name / "diagnoses").mkdir(parents=True)
        diagnosis.save(tmp_path / name / "diagnoses" / "0.nc")
    page = tmp_path / "page.html"
    run_report([tmp_path / "a", tmp_path / "b"], page, title="Two")
    assert "2 diagnoses" in capsys.readouterr().out
    assert "<title>Two</title>" in page.read_text(encoding="utf-8")
    file = tmp_path / "a" / "diagnoses" / "0.nc"
    run_figures([file], tmp_path / "f", kind="svg", figures=["gain"], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"files": [str(tmp_path / "f" / "gain.svg")], "missing": {}}
    run_figures([file, file], tmp_path / "g", kind="png", figures=["noise"], as_json=False)
    assert sorted(one.name for one in (tmp_path / "g").iterdir()) == ["noise-1.png", "noise-2.png"]
    run_figures([file], tmp_path / "h", kind="svg", figures=[], as_json=False)
    assert "training: not drawn" in capsys.readouterr().err
    with pytest.raises(InputError, match="no diagnosis in this folder"):
        run_report([tmp_path], page, title="None")


@pytest.mark.thorough
def test_the_commands(tmp_path):
    gated().save(tmp_path / "run.nc")

    def lagreach(*arguments):
        command = [sys.executable, "-c", "from lagreach.cli.main import run; run()", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = lagreach("report", "run.nc", "--out", "page.html")
    assert (done.returncode, (tmp_path / "page.html").is_file()) == (0, True), done.stderr
    done = lagreach("figures", "run.nc", "--out", "figures", "--figure", "scales", "--figure", "nothing")
    assert done.returncode == 2
    assert "unknown figure" in done.stderr


def test_unknown_names_and_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown figure"):
        export([gated()], tmp_path, names=["nothing"])
    with pytest.raises(InputError, match="unknown format"):
        export([gated()], tmp_path, kind="gif")
    with pytest.raises(InputError, match="nothing to draw"):
        figures.window([])
