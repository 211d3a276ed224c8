"""The experiments: what they measure agrees with theory where theory speaks, and they are repeatable."""

import json
import math

import jaxtyping
import numpy as np
import pytest

from lagreach.errors import InputError
from lagreach.papers.cayci import experiments
from lagreach.papers.cayci.curves import Curve, Experiment
from lagreach.papers.cayci.experiments import EXPERIMENTS, SCALES, impulse_growth, run
from lagreach.papers.cayci.figures import figure

pytestmark = pytest.mark.usefixtures("_as_users_run_it")


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # thousands of small steps
        return {name: run(name, "smoke") for name in EXPERIMENTS}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_results_are_complete(results, name, tmp_path):
    result = results[name]
    assert result.name == name
    assert all(curve.values.shape[1] >= 1 for curve in result.curves)
    for curve in result.curves:
        assert curve.name in str(result)
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [curve["name"] for curve in written["curves"]] == [curve.name for curve in result.curves]
    drawn = figure(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    lines = sum(len(axes.get_lines()) for axes in drawn.axes)
    assert lines >= len(result.curves)


def test_widths_show_the_square_root(results):
    for name, slope in results["width"].slopes.items():
        assert slope.low <= -0.5 <= slope.high, name
    slope = results["kernel"].slopes["kernel error"]
    assert slope.low <= -0.5 <= slope.high
    assert results["kernel"].curve("to the printed kernel").typical.min() > 0.2


def test_risks_fall_with_the_steps(results):
    for curve in results["iterations"].curves:
        assert (np.diff(curve.typical) < 0).all()
    assert results["iterations"].slopes["running mean, constant step"].value < -0.5
    bound = results["iterations"].facts["bound, corrected, most steps"]
    assert results["iterations"].curves[0].values.max() < bound


def test_memory_shows_the_cut_off(results):
    certified = results["memory"].curve("certified width").values[:, 0]
    assert certified[-1] > 1000 * certified[0]
    measured = results["memory"].curve("steps to a tenth of the risk").typical
    assert (measured < results["memory"].curve("certified steps").typical).all()


@pytest.mark.parametrize("alpha", [1.3, 1.6])
def test_an_impulse_grows_like_alpha_above_the_cut_off(alpha):
    assert impulse_growth(alpha, 40) == pytest.approx(alpha, rel=1e-3)


def test_below_the_cut_off_an_impulse_decays():
    assert impulse_growth(0.7, 200) == pytest.approx(0.49, rel=0.02)


def test_projection_is_a_safety_device(results):
    result = results["projection"]
    plain, projected = (
        result.curve(f"{kind}, alpha 0.3: largest move times sqrt(m)") for kind in ("plain", "projected")
    )
    assert projected.values.max() <= 1.0 + 1e-12
    assert plain.values[-1].max() > 5.0


def test_more_sequences_cost_little(results):
    facts = results["samples"].facts
    assert 1.0 <= facts["growth of the 95 % quantile"] < 2.0


def test_seeds_and_progress():
    told = []
    one = run("kernel", "smoke", seed=3, progress=lambda *said: told.append(said))
    again, other = run("kernel", "smoke", seed=3), run("kernel", "smoke", seed=4)
    np.testing.assert_array_equal(one.curves[0].values, again.curves[0].values)
    assert (one.curves[0].values != other.curves[0].values).all()
    assert told[-1] == ("kernel 512", 3, 3)
    assert len(told) == 9


def test_slopes_of_known_curves():
    x = np.array([1.0, 10.0, 100.0])
    exact = Curve("a", "x", x, np.outer(x**-0.7, [1.0, 2.0]), -0.7).slope
    assert (exact.value, exact.low, exact.high) == pytest.approx((-0.7, -0.7, -0.7))
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        noisy = Curve("a", "x", x, np.outer(x**-0.7, np.ones(6)) * np.exp(rng.normal(0, 0.3, (3, 6))), -0.7).slope
        inside += noisy.low <= -0.7 <= noisy.high
    assert 180 <= inside <= 199  # 95 % of 200, within four standard deviations
    single = Curve("a", "x", x, x[:, None] ** -0.7).slope
    assert single.value == pytest.approx(-0.7)
    assert math.isnan(single.low)
    assert math.isnan(Curve("a", "x", x, np.zeros((3, 2))).slope.value)


def test_scales_are_ordered():
    assert list(SCALES) == ["smoke", "small", "paper"]
    work = [len(s.widths) * s.draws * s.steps * s.n * s.T for s in SCALES.values()]
    assert work == sorted(work)


def test_bad_input_is_told():
    with pytest.raises(InputError, match="unknown experiment"):
        run("nothing")
    with pytest.raises(InputError, match="unknown scale"):
        run("kernel", "huge")
    with pytest.raises(InputError, match="row of values"):
        Curve("a", "x", np.ones(3), np.ones((2, 2)))
    empty = Experiment("a", "b", (), {}, "smoke", 0)
    with pytest.raises(InputError, match="no such curve"):
        empty.curve("c")
    assert experiments.EXPERIMENTS.keys() == {"iterations", "width", "kernel", "memory", "projection", "samples"}
