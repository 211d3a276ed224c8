"""The window as a record: reaching, counting, and naming the limit that binds."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.diagnosis.measure import MeasureSettings, measure_window
from lagreach.diagnosis.window import Requirement, Window
from lagreach.errors import InputError
from lagreach.statistics.memory import Memory
from lagreach.statistics.reliance import Reliance
from lagreach.tails.concentration import concentration
from lagreach.types import Status

GAUSSIAN = concentration(np.random.default_rng(0).normal(size=2000), generator=0)
FIRST, LAGS = np.array([0, 1, 3, 5]), np.array([0, 2, 4, 9])


def requirement(sequences, status=Status.OK):
    n = np.array(sequences, dtype=float)
    return Requirement(LAGS, FIRST, n, n / 2, 2 * n, 3 * n, 1.1 * n, (status,) * len(n))


def make_window(**changes):
    """1000 sequences; dependences found at lags 2 (needs 100) and 9 (needs 5000); reach of 10, 50, 200, 4000 at 5 %."""
    plain = {
        "required": requirement([np.inf, 100.0, np.inf, 5000.0]),
        "probe": requirement([0.5, 2.5, 10.0, 200.0]),
        "adjusted_p": np.array([0.6, 0.001, 0.2, 0.01]),
        "delta": np.array([0.0, 1.0, 0.1, 0.2]),
        "noise": np.ones(4),
        "concentration": GAUSSIAN,
        "design_effect": 1.0,
        "reliance": Reliance((2, 9), np.array([-0.1, 0.0]), np.array([0.1, 0.1]), np.array([0.5, 0.9])),
        "memory": Memory((0, 2, 4, 9), np.array([0.9, 0.1, 0.1, 0.0]), 2.0, 8, True),
        "sequences": 1000,
        "strength": 0.05,
        "error": 0.05,
    }
    return Window(**(plain | changes))


def test_the_reach_is_the_largest_lag_whose_planted_dependency_would_be_noticed():
    window = make_window()
    here = window.at(1000)
    assert here.lag == 4
    assert here.interval == (4, 4)
    assert here.detectable == (2,)
    assert here.status is Status.OK
    assert window.at(4000).lag == 9
    assert window.at(4000).status is Status.WINDOW_CENSORED
    assert window.at(3000).interval == (4, 9)
    assert window.at(15).interval == (None, 0)
    nothing = window.at(5)
    assert (nothing.lag, nothing.status) == (None, Status.WINDOW_EMPTY)
    assert "no lag" in str(nothing)
    assert "up to lag 4" in str(here)
    # four times the share, a quarter of the sequences
    assert window.at(1000, strength=0.2).lag == 9


def test_the_data_are_asked_apart_from_the_reach():
    """Lag 9 is found in the data with many sequences, whatever the probe says in between."""
    window = make_window()
    assert window.dependences == (2, 9)
    assert window.at(6000).detectable == (2, 9)
    assert window.at(50).detectable == ()


@given(st.lists(st.floats(1.0, 1e9), min_size=2, max_size=6), st.floats(0.001, 1.0))
def test_more_sequences_never_reach_less(grid, strength):
    reached = make_window().curve(sorted(grid), strength)
    lags = [-1 if here.lag is None else here.lag for here in reached]
    assert lags == sorted(lags)
    counts = [len(here.detectable) for here in reached]
    assert counts == sorted(counts)


def test_strength_scales_with_half_the_exponent():
    heavy = dataclasses.replace(GAUSSIAN, kappa=3.0, interval=(2.4, 4.0), kappa_pessimistic=4.0, status=Status.OK)
    window = make_window(concentration=heavy)
    weak, strong = window.required_if_present(0.01), window.required_if_present(0.04)
    np.testing.assert_allclose(weak.sequences / strong.sequences, 4.0**1.5)
    np.testing.assert_allclose(weak.low / strong.low, 4.0**1.2)  # a measured exponent has an interval of its own
    np.testing.assert_allclose(weak.high / strong.high, 4.0**2)
    np.testing.assert_allclose(weak.pessimistic / strong.pessimistic, 4.0**2)
    np.testing.assert_allclose(weak.robust / strong.robust, 4.0)
    for bad in (0.0, -1.0, 1.5, np.nan):
        with pytest.raises(InputError, match="share"):
            window.required_if_present(bad)
    for bad in (0, -3, np.nan):
        with pytest.raises(InputError, match="positive"):
            window.at(bad)


def test_a_lag_inside_a_band_is_answered_by_the_band():
    window = make_window()
    assert window.required.at(3) == window.required.at(4)
    assert window.required.at(7)["lag"] == 9
    with pytest.raises(InputError, match="not examined"):
        window.required.at(10)
    with pytest.raises(InputError, match="not examined"):
        window.limit(-1)


@pytest.mark.parametrize(
    ("lag", "changes", "limit"),
    [
        (0, {}, Status.LIMIT_NO_DEPENDENCY),
        (3, {}, Status.LIMIT_NO_DEPENDENCY),
        (3, {"probe": requirement([0.5, 2.5, 100.0, 200.0])}, Status.LIMIT_OUT_OF_REACH),
        (3, {"probe": requirement([np.nan] * 4, Status.KAPPA_REFUSED)}, Status.LIMIT_OUT_OF_REACH),
        (9, {}, Status.LIMIT_SAMPLE_SIZE),
        (2, {}, Status.LIMIT_UNDETERMINED),
        (2, {"memory": Memory((0, 2, 4, 9), np.array([0.9, 0.1, 0.1, 0.0]), 7.0, 8, True)}, Status.LIMIT_CAPACITY),
        # a sum of memories means something for independent inputs only
        (2, {"memory": Memory((0, 2, 4, 9), np.array([0.9, 0.1, 0.1, 0.0]), 7.0, 8, False)}, Status.LIMIT_UNDETERMINED),
        # the state is full, but holds this lag
        (2, {"memory": Memory((0, 2, 4, 9), np.array([0.9, 0.6, 0.1, 0.0]), 7.0, 8, True)}, Status.LIMIT_UNDETERMINED),
        (2, {"reliance": Reliance((2,), np.array([0.3]), np.array([0.1]), np.array([0.001]))}, Status.LIMIT_LEARNED),
        # the loss *falls* when the input is replaced: relied upon, but in the wrong way
        (
            2,
            {"reliance": Reliance((2,), np.array([-0.3]), np.array([0.1]), np.array([0.001]))},
            Status.LIMIT_UNDETERMINED,
        ),
        (
            2,
            {"reliance": Reliance((2,), np.array([np.nan]), np.array([np.nan]), np.array([np.nan]))},
            Status.LIMIT_UNDETERMINED,
        ),
    ],
)
def test_every_limit_can_bind(lag, changes, limit):
    assert make_window(**changes).limit(lag) is limit


def test_the_limit_depends_on_how_many_sequences_there_are():
    window = make_window()
    assert window.limit(9, sequences=6000) is Status.LIMIT_UNDETERMINED
    assert window.limit(2, sequences=50) is Status.LIMIT_SAMPLE_SIZE


def test_it_prints_what_it_means():
    text = str(make_window(warnings=("mind the gap",)))
    assert "number of independent sequences" in text
    assert "not a guarantee of learning" in text
    assert "mind the gap" in text
    assert "sample size" in text
    assert "5-9" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
def test_a_single_unit_that_holds_everything_a_little_is_bound_by_capacity(generator):
    """A leaky integrator keeps ``(1-a^2) a^2l`` of the input l steps ago: one in all, little of lag 5."""
    model = GatedRNN("const_gate", 1, 1, 1, gate_init=0.15, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["U_h"].zero_()
        model.layers[0]["W_h"].fill_(0.1)  # small: the unit is linear
        model.readout.weight.fill_(-1.0)  # the wrong sign, so that nothing is learned yet
    x = torch.randn(300, 40, 1, generator=generator, dtype=torch.float64)
    y = 0.3 * torch.randn(300, 40, 1, generator=generator, dtype=torch.float64)
    y[:, 5:] += x[:, :-5]
    with one_thread():
        window = measure_window(model, (x, y), settings=MeasureSettings(probes=1, flips=199, blocks=16))
    kept = 0.85 ** (2 * window.lags)
    np.testing.assert_allclose(window.memory.capacity, (1 - 0.85**2) * kept, atol=0.03)
    assert window.memory.independent_inputs
    assert window.memory.total > 0.8 * window.memory.bound
    assert 5 in window.dependences
    assert window.limit(5) is Status.LIMIT_CAPACITY
    # with twelve units the sum is far from its bound
    wide = GatedRNN("const_gate", 1, 12, 1, gate_init=0.15, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        wide.layers[0]["U_h"].zero_()
        wide.readout.weight.copy_(-wide.layers[0]["W_h"].T)
    with one_thread():
        window = measure_window(wide, (x, y), settings=MeasureSettings(probes=1, flips=199, blocks=16))
    assert window.limit(5) is Status.LIMIT_UNDETERMINED


@pytest.mark.usefixtures("_as_users_run_it")
def test_weak_dependences_and_short_reaches_are_told_apart(generator):
    """Near lags without a dependency are cleared, far ones are out of reach, and what is found far away needs more."""
    model = GatedRNN("const_gate", 1, 4, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["U_h"].zero_()
        model.readout.weight.copy_(-model.layers[0]["W_h"].T)  # the wrong sign: nothing is learned yet
    x = torch.randn(400, 30, 1, generator=generator, dtype=torch.float64)
    y = 0.5 * torch.randn(400, 30, 1, generator=generator, dtype=torch.float64)
    y[:, 7:] += x[:, :-7]
    with one_thread():
        window = measure_window(
            model, (x, y), lags=[0, 7, 20], settings=MeasureSettings(probes=1, flips=199, blocks=16)
        )
    assert window.limit(0) is Status.LIMIT_NO_DEPENDENCY
    assert window.limit(7) is Status.LIMIT_SAMPLE_SIZE
    assert window.limit(20) is Status.LIMIT_OUT_OF_REACH
