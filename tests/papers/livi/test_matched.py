"""The matched statistic (28): what it sums, and what turning the units by their own mean does to a test."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binom
from scipy.stats import t as student

from lagreach import GatedRNN, lag_gradients
from lagreach._util.threads import one_thread
from lagreach.errors import InputError
from lagreach.papers.livi.matched import matched_statistic
from lagreach.types import Status
from tests.cases import CELLS, normal, small_model

LAGS = [0, 1, 2, 3, 5, 8]


def random_direction(model, generator):
    return {name: normal(generator, *p.shape) for name, p in model.named_parameters() if name.startswith("layers")}


def projected(model, x, y, direction, **options):
    """First-order lag gradients along a direction, summed over weights."""
    gradients = lag_gradients(model, x, y, lags=LAGS, transport="first-order", direction=direction, **options)
    return torch.stack([g for name, g in gradients.grads.items() if name in direction]).sum(0).numpy()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_without_orientation_the_units_add_up_to_the_first_order_lag_gradient(cell, layers, generator):
    model = small_model(cell, generator, num_layers=layers)
    x, y = normal(generator, 5, 9, 3), normal(generator, 5, 9, 2)
    direction = random_direction(model, generator)
    matched = matched_statistic(model, x, y, LAGS, orientation="none", signal="gradient", direction=direction, chunk=2)
    np.testing.assert_allclose(matched.mean, projected(model, x, y, direction), rtol=1e-10, atol=1e-14)
    assert matched.values.shape == (5, len(LAGS))
    assert matched.alignment.shape == (len(LAGS), 4 * layers)


def test_masks_lengths_and_steps_count_as_in_the_lag_gradients(generator):
    model = small_model("lstm", generator)
    x, y = normal(generator, 6, 9, 3), normal(generator, 6, 9, 2)
    direction = random_direction(model, generator)
    mask = (normal(generator, 6, 9) > 0) | (torch.arange(9) == 8)
    for options in ({"mask": mask}, {"lengths": [9, 4, 9, 7, 5, 9]}):
        matched = matched_statistic(
            model, x, y, LAGS, orientation="none", signal="gradient", direction=direction, **options
        )
        np.testing.assert_allclose(matched.mean, projected(model, x, y, direction, **options), rtol=1e-10, atol=1e-14)
    last = matched_statistic(
        model, x, y[:, -1], LAGS, orientation="none", signal="gradient", direction=direction, steps="last"
    )
    np.testing.assert_allclose(
        last.mean, projected(model, x, y[:, -1], direction, steps="last"), rtol=1e-10, atol=1e-14
    )


def test_the_contrast_is_the_mean_over_swapped_pairs(generator):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 7, 9, 3), normal(generator, 7, 9, 2)  # the seventh has no partner
    direction = random_direction(model, generator)
    options = {"orientation": "none", "direction": direction}
    matched = matched_statistic(model, x, y, LAGS, **options)
    assert matched.values.shape == (3, len(LAGS))
    partners = [1, 0, 3, 2, 5, 4]
    plain = matched_statistic(model, x[:6], y[:6], LAGS, signal="gradient", **options).values
    other = matched_statistic(model, x[:6], y[partners], LAGS, signal="gradient", **options).values
    expected = (plain - other).reshape(3, 2, -1).mean(1)
    np.testing.assert_allclose(matched.values, expected, rtol=1e-9, atol=1e-14)
    # swapping the targets of all pairs flips every sign
    flipped = matched_statistic(model, x[:6], y[partners], LAGS, **options)
    np.testing.assert_allclose(flipped.values, -matched.values, rtol=1e-9, atol=1e-14)


@pytest.mark.thorough
def test_a_split_turns_the_units_by_other_sequences(generator):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 40, 9, 3), normal(generator, 40, 9, 2)
    direction = random_direction(model, generator)
    options = {"signal": "gradient", "direction": direction}
    split = matched_statistic(model, x, y, LAGS, generator=3, **options)
    others = np.setdiff1d(np.arange(40), split.used)
    assert len(split.used) == len(others) == 20
    learned = matched_statistic(model, x[others], y[others], LAGS, orientation="same-data", **options)
    np.testing.assert_allclose(split.alignment, learned.alignment, rtol=1e-12)
    assert split.status is Status.OK
    assert learned.status is Status.ORIENTED_BY_ITSELF
    assert not learned.status.usable
    assert "biased" in str(learned)
    again = matched_statistic(model, x, y, LAGS, generator=torch.Generator().manual_seed(3), **options)
    np.testing.assert_array_equal(split.values, again.values)
    np.testing.assert_array_equal(split.used, again.used)


def test_orientation_makes_every_unit_count_for_the_mean(generator):
    """(29): with signs from the data themselves the mean is the sum over units of absolute values, mu being positive."""
    model = GatedRNN("const_gate", 3, 5, 1, gate_init=0.3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["U_h"].zero_()  # rates are (1-s)^l, the same for all units
    x, y = normal(generator, 20, 9, 3), normal(generator, 20, 9, 1)
    matched = matched_statistic(model, x, y, [0, 2, 4], orientation="same-data")
    np.testing.assert_allclose(matched.mean, 0.7 ** np.array([0, 2, 4]) * np.abs(matched.alignment).sum(1), rtol=1e-10)
    plain = matched_statistic(model, x, y, [0, 2, 4], orientation="none")
    assert (matched.mean >= np.abs(plain.mean)).all()


def rejections(orientation, runs, pairs, planted=0.0):
    """Share of data sets in which a one-sided test at 5 % finds something at lag 3."""
    count = 0
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        model = GatedRNN("diag_gate", 8, 16, 1, gate_init=0.2, generator=generator)
        x = torch.randn(2 * pairs, 8, 8, generator=generator)
        y = torch.randn(2 * pairs, 8, 1, generator=generator)
        y[:, 3:] += planted * x[:, :-3, :1]
        matched = matched_statistic(model, x, y, [3], orientation=orientation, generator=generator)
        t = matched.mean[0] / matched.standard_error[0]
        count += t > student.ppf(0.95, len(matched.values) - 1)
    return count


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
def test_turned_by_a_split_the_test_has_its_size_and_turned_by_the_same_data_it_has_none():
    runs = 300
    low, high = binom.ppf([0.0005, 0.9995], runs, 0.05)
    with one_thread():
        assert low <= rejections("split", runs, pairs=40) <= high
        assert rejections("same-data", 60, pairs=40) > 0.6 * 60
        # and it is not blind: a strong dependence is found
        assert rejections("split", 40, pairs=40, planted=2.0) > 0.8 * 40


@pytest.mark.usefixtures("_as_users_run_it")
def test_bad_requests_are_refused(generator):
    model = small_model("diag_gate", generator)
    x, y = normal(generator, 6, 9, 3), normal(generator, 6, 9, 2)
    with pytest.raises(InputError, match="split, none, same-data"):
        matched_statistic(model, x, y, [1], orientation="both")
    with pytest.raises(InputError, match="dependence or gradient"):
        matched_statistic(model, x, y, [1], signal="raw")
    with pytest.raises(InputError, match="at least four"):
        matched_statistic(model, x, y, [1])
    with pytest.raises(InputError, match="shorter than the sequences"):
        matched_statistic(model, x, y, [9], orientation="none")
    with pytest.raises(InputError, match="does not fit the weight"):
        matched_statistic(model, x, y, [1], orientation="none", direction={"W": torch.ones(2)})


def test_the_record_is_frozen_and_readable(generator):
    model = small_model("diag_gate", generator)
    matched = matched_statistic(model, normal(generator, 20, 9, 3), normal(generator, 20, 9, 2), [1, 4])
    assert str(matched).count("\n") == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        matched.lags = ()
