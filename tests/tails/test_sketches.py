"""Mergeable summaries: what comes out depends on the samples alone, and within the stated error."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lagreach.errors import InputError
from lagreach.tails import CharacteristicSums, QuantileSketch, SequenceValues, fit_tail, stable
from lagreach.tails._common import half_spread

VALUES = arrays(
    np.float64,
    st.integers(1, 60),
    elements=st.one_of(st.floats(-1e6, 1e6), st.floats(-1e-6, 1e-6), st.sampled_from([0.0, 1.0, -1.0])),
)
BATCHES = st.lists(VALUES, min_size=1, max_size=4)


def filled(empty, batches):
    for batch in batches:
        empty.add(batch)
    return empty


# --- characteristic function --------------------------------------------------------------------------------------


@given(batches=BATCHES)
@settings(max_examples=40, deadline=None)
def test_sums_do_not_depend_on_batches(batches):
    whole = filled(CharacteristicSums(1.5), [np.concatenate(batches)])
    merged = CharacteristicSums(1.5)
    for batch in reversed(batches):
        merged = filled(CharacteristicSums(1.5), [batch]).merge(merged)
    assert merged.n == whole.n
    np.testing.assert_allclose(merged.modulus, whole.modulus, rtol=1e-9, atol=1e-14)


def test_fit_from_shards_equals_fit_from_samples():
    samples = np.asarray(stable.rvs(1.6, 5000, 0, scale=3.0))
    direct = fit_tail(samples, "ecf", check=False)
    scale = half_spread(samples - np.median(samples))
    parts = [filled(CharacteristicSums(scale), [part]) for part in np.array_split(samples, 7)]
    merged = parts[3]
    for part in (parts[0], parts[6], parts[1], parts[5], parts[2], parts[4]):
        merged = part.merge(merged)
    fit = fit_tail(merged, "ecf")
    assert fit.n == direct.n
    assert fit.alpha == pytest.approx(direct.alpha, rel=1e-10)
    assert fit.scale == pytest.approx(direct.scale, rel=1e-10)
    assert fit.interval == pytest.approx(direct.interval, rel=1e-10)
    assert fit.stable_supported is None


def test_sums_ignore_the_location():
    samples = np.asarray(stable.rvs(1.6, 2000, 0))
    here, there = filled(CharacteristicSums(1.0), [samples]), filled(CharacteristicSums(1.0), [samples + 17.3])
    np.testing.assert_allclose(here.modulus, there.modulus, rtol=1e-12)


def test_sums_refuse_other_grids_and_nothing():
    with pytest.raises(InputError, match="same grid"):
        CharacteristicSums(1.0).merge(CharacteristicSums(2.0))
    with pytest.raises(InputError, match="no samples"):
        _ = CharacteristicSums(1.0).modulus
    with pytest.raises(InputError, match="scale"):
        CharacteristicSums(0.0)
    with pytest.raises(InputError, match="finite"):
        CharacteristicSums(1.0).add([math.inf])


# --- quantiles ----------------------------------------------------------------------------------------------------


@given(values=VALUES, error=st.sampled_from([0.3, 0.01, 0.001]), p=st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_every_quantile_is_within_the_stated_error(values, error, p):
    sketch = filled(QuantileSketch(error), [values])
    exact = np.sort(values)[max(math.ceil(p * values.size), 1) - 1]
    # bucket edges are computed in floating point: a value on an edge may fall into the next bucket
    assert abs(sketch.quantile(p) - exact) <= (error + 1e-9) * abs(exact)


@given(batches=BATCHES)
@settings(max_examples=40, deadline=None)
def test_quantiles_do_not_depend_on_batches(batches):
    whole = filled(QuantileSketch(0.01), [np.concatenate(batches)])
    merged = QuantileSketch(0.01)
    for batch in reversed(batches):
        merged = filled(QuantileSketch(0.01), [batch]).merge(merged)
    levels = np.linspace(0.0, 1.0, 21)
    assert merged.n == whole.n
    np.testing.assert_array_equal(merged.quantile(levels), whole.quantile(levels))


@given(values=VALUES)
@settings(max_examples=40, deadline=None)
def test_quantiles_mirror_and_rise(values):
    levels = np.linspace(0.0, 1.0, 33)
    sketch = filled(QuantileSketch(0.02), [values])
    assert np.all(np.diff(sketch.quantile(levels)) >= 0.0)
    mirrored = filled(QuantileSketch(0.02), [-values])
    # the extreme ranks mirror exactly
    assert mirrored.quantile(0.0) == -sketch.quantile(1.0)


def test_extreme_values_are_kept():
    sketch = filled(QuantileSketch(0.01), [np.array([np.finfo(np.float64).max, 5e-324, -np.finfo(np.float64).max])])
    low, middle, high = sketch.quantile(np.array([0.0, 0.5, 1.0]))
    assert high == pytest.approx(np.finfo(np.float64).max, rel=0.011)
    assert low == -high
    assert 0.0 <= middle < 1e-300


def test_quantile_fit_from_shards_is_close_to_the_fit_from_samples():
    samples = np.asarray(stable.rvs(1.4, 20_000, 1, scale=2.0))
    shards = [filled(QuantileSketch(0.001), [part]) for part in np.array_split(samples, 5)]
    merged = shards[0]
    for shard in shards[1:]:
        merged = shard.merge(merged)
    direct, fit = fit_tail(samples, "mcculloch", check=False), fit_tail(merged, "mcculloch")
    # 0.1 % in each range moves the ratio by at most 0.2 % and alpha by a tenth of its standard error
    assert fit.alpha == pytest.approx(direct.alpha, abs=0.004)
    assert fit.scale == pytest.approx(direct.scale, rel=0.004)


def test_sketch_refuses_nonsense():
    with pytest.raises(InputError, match="relative_error"):
        QuantileSketch(0.0)
    with pytest.raises(InputError, match="same relative error"):
        QuantileSketch(0.1).merge(QuantileSketch(0.2))
    with pytest.raises(InputError, match="no samples"):
        QuantileSketch().quantile(0.5)
    with pytest.raises(InputError, match="probability"):
        filled(QuantileSketch(), [[1.0]]).quantile(1.5)


# --- values of sequences ------------------------------------------------------------------------------------------


@given(keys=st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=30), cut=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_sequence_values_do_not_depend_on_order(keys, cut):
    assume(len(keys) > 0)
    values = np.arange(len(keys), dtype=np.float64)
    whole = SequenceValues()
    whole.add(keys, values)
    left, right = SequenceValues(), SequenceValues()
    left.add(keys[cut:][::-1], values[cut:][::-1])
    right.add(keys[:cut], values[:cut])
    for merged in (left.merge(right), right.merge(left), left.merge(right).merge(right)):
        np.testing.assert_array_equal(merged.keys, whole.keys)
        np.testing.assert_array_equal(merged.values, whole.values)
        assert merged.n == len(keys)


def test_rows_of_values_and_keys_of_all_kinds():
    store = SequenceValues()
    store.add(["a", "b"], torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float32))
    store.add([np.int64(-1)], [[5.0, math.nan]])
    store.add([2**64 - 1], [[5.0, math.nan]])  # the unsigned twin of -1, with the same row
    assert store.n == 3
    assert store.values.shape == (3, 2)
    assert SequenceValues().values.shape == (0,)


def test_sequence_values_refuse_contradictions():
    store = SequenceValues()
    store.add([1], [1.0])
    with pytest.raises(InputError, match="different values"):
        store.add([1], [2.0])
    with pytest.raises(InputError, match="one shape"):
        store.add([2], [[1.0, 2.0]])
    with pytest.raises(InputError, match="per key"):
        store.add([2, 3], [1.0])
    with pytest.raises(InputError, match="identify"):
        store.add([1.5], [1.0])
    assert store.n == 1
