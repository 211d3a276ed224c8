"""The command that forecasts, and its exit codes."""

import inspect
import json

import pytest
import torch
from torch import nn

import lagreach as package
from lagreach.cli.forecast import parse_counts, parse_optimiser, run_forecast, summary
from lagreach.errors import InputError
from tests.cli.test_diagnose import folder, lagreach  # noqa: F401 (a fixture)
from tests.forecasting.cases import whole

COMMON = ("forecast", "--model", "my_models:build", "--data", "data.npz", "--lags", "0,2,8", "--directions", 16)


@pytest.mark.thorough
def test_forecast_answers_and_writes(folder):  # noqa: F811
    done = lagreach(
        folder, *COMMON, "--sequences", "100,1000", "--require-lag", 0, "--json", "--out", "run", "--report", "page.html"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["lags"] == [0, 2, 8]
    assert result["sequences"] == [100, 1000]
    assert result["required_lags"][0]["recovered"]
    assert (
        result["if_present"]["low"][0][1] <= result["if_present"]["value"][0][1] <= result["if_present"]["high"][0][1]
    )
    assert package.load(folder / "run" / "forecast.nc").lags == (0, 2, 8)
    assert "data.npz: " in (folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_too_little_of_a_required_lag_is_code_three_with_the_reason(folder):  # noqa: F811
    done = lagreach(folder, *COMMON, "--sequences", 100, "--require-lag", 8, "--fit", "readout")
    assert done.returncode == 3, done.stderr
    assert "lag 8: a share of 0.0" in done.stdout
    assert "less than the 0.5 required" in done.stdout
    strict = lagreach(folder, *COMMON, "--require-lag", 0, "--require-share", 1.0, "--fit", "readout", "--json")
    assert strict.returncode == 3
    assert "readable" in json.loads(strict.stdout)["required_lags"][0]["reason"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sequences", "many"), "numbers of sequences"),
        (("--require-share", 2), "between 0 and 1"),
        (("--optimiser", "lion:1", "--steps", 5), "adam:0.001"),
        (("--steps", 5), "optimiser and a number of steps"),
    ],
)
def test_bad_input_is_code_two(folder, options, message):  # noqa: F811
    done = lagreach(folder, *COMMON, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_counts_and_optimisers_are_read():
    assert parse_counts("5,10") == [5, 10]
    with pytest.raises(InputError, match="positive"):
        parse_counts("0")
    optimiser = parse_optimiser("adam:0.01", nn.Linear(1, 1))
    assert isinstance(optimiser, torch.optim.Adam)
    assert optimiser.param_groups[0]["lr"] == 0.01


@pytest.mark.usefixtures("_as_users_run_it")
def test_other_peoples_files_are_not_replaced(tmp_path):
    (tmp_path / "forecast.nc").write_text("mine")
    rest = set(inspect.signature(run_forecast).parameters) - {"model", "data", "out", "report", "require_share"}
    with pytest.raises(InputError, match="did not write them"):  # before the model is looked for
        run_forecast("", tmp_path, out=tmp_path, report=None, require_share=0.5, **dict.fromkeys(rest))
    assert (tmp_path / "forecast.nc").read_text() == "mine"


def test_the_summary_has_what_the_steps_leave():
    made = whole()
    shown = summary(made, [])["budgeted"]
    assert shown["value"] == made.budgeted.values.tolist()
    assert shown["low"][0][0] <= shown["value"][0][0] <= shown["high"][0][0]
