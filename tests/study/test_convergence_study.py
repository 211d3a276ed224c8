"""The study of the second paper: experiments run, saved, read back, and compared with the predicted slopes."""

import json

import numpy as np
import pytest

from lagreach.papers.cayci.curves import Curve, Experiment
from lagreach.study.config import find_study
from lagreach.study.convergence import experiment_path, read_experiment, slope_claims
from lagreach.study.runner import run_study
from lagreach.study.status import run_status

CONFIG = find_study("cayci").at_scale("smoke").model_copy(update={"experiments": ("kernel",)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_study(CONFIG, tmp_path_factory.mktemp("runs") / "cayci", show_progress=False)


def test_a_run_leaves_numbers_figures_and_results(finished):
    assert (finished.path / "figures" / "kernel.png").stat().st_size > 0
    text = (finished.path / "RESULTS.md").read_text()
    assert "kernel error" in text
    assert "not tested" in text
    assert json.loads((finished.path / "claims.json").read_text())[0]["printed"] == "slope -0.50"
    assert run_status(finished.path).diagnoses == (1, 1)


def test_experiments_come_back_as_they_were(finished):
    experiment = read_experiment(finished, "kernel")
    assert isinstance(experiment, Experiment)
    assert json.loads(json.dumps(experiment.to_dict())) == json.loads(experiment_path(finished, "kernel").read_text())
    assert read_experiment(finished, "width") is None
    experiment_path(finished, "width").write_text("{")
    assert read_experiment(finished, "width") is None
    experiment_path(finished, "width").unlink()


def made(slope, starts=6, predicted=-0.5):
    x = np.array([10.0, 100.0, 1000.0])
    noise = np.random.default_rng(0).normal(0, 0.01, (3, starts))
    curve = Curve("error", "width", x, np.exp(np.log(x)[:, None] * slope + noise), predicted)
    return [Experiment("made", "does it?", (curve,), {}, "small", 0)]


@pytest.mark.parametrize(("slope", "verdict"), [(-0.5, "yes"), (-0.9, "yes"), (-0.2, "no")])
def test_slopes_are_judged(slope, verdict):
    (claim,) = slope_claims(made(slope), "small")
    assert claim.verdict == verdict
    assert (claim.why == "") == (slope == -0.5)


def test_few_starts_and_smoke_are_not_tested():
    assert slope_claims(made(-0.5, starts=3), "small")[0].verdict == "not tested"
    assert slope_claims(made(-0.5), "smoke")[0].verdict == "not tested"
