"""Bands of lags leave no lag out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagreach.data.bands import EVERY, FEW, Bands, make_bands
from lagreach.errors import InputError


@given(st.integers(1, 3000), st.data())
def test_automatic_bands_are_contiguous_disjoint_and_cover_every_lag(time, data):
    required = data.draw(st.lists(st.integers(0, time - 1), max_size=8))
    bands = make_bands("auto", time, required)
    lags = [lag for first, last in bands.edges for lag in range(first, last + 1)]
    assert lags == list(range(time))
    assert set(required) <= set(bands.lags)
    assert all(bands.lags[bands.index(lag)] >= lag for lag in required)
    widths = [last - first + 1 for first, last in bands.edges]
    assert all(width <= max(1, 0.15 * first) for width, (first, _) in zip(widths, bands.edges, strict=True))
    assert all(first == last for first, last in bands.edges if first < EVERY)


@given(st.integers(1, 3000))
def test_the_number_of_bands_grows_with_the_logarithm_of_the_length(time):
    assert len(make_bands("auto", time, every=FEW)) <= 14 + 10 * len(bin(time))
    assert len(make_bands("auto", time)) <= EVERY + 10 * len(bin(time))


@given(st.sets(st.integers(0, 99), min_size=1), st.sets(st.integers(0, 99)))
def test_chosen_lags_are_bands_of_one(lags, required):
    bands = make_bands(lags, 100, required)
    assert bands.lags == sorted(lags | required)
    assert all(first == last for first, last in bands.edges)


def test_a_lag_finds_its_band():
    bands = Bands(((0, 0), (1, 4), (9, 12)))
    assert [bands.index(lag) for lag in (0, 1, 4, 9, 12)] == [0, 1, 1, 2, 2]
    assert str(bands) == "0, 1-4, 9-12"
    with pytest.raises(InputError, match="no band holds"):
        bands.index(6)


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("lags", "required", "message"),
    [
        ("all", (), '"auto" or integers'),
        ([], (), "no lags"),
        ([10], (), "shorter than the sequences"),
        ("auto", [10], "shorter than the sequences"),
        ([-1], (), "lags count steps back"),
        ("auto", [-3], "lags count steps back"),
        ([1.5], (), "integers"),
    ],
)
def test_bad_lags_are_refused(lags, required, message):
    with pytest.raises(InputError, match=message):
        make_bands(lags, 10, required)
