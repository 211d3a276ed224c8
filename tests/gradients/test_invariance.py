"""Answers do not depend on the order of sequences, on batches and loaders, on padding, or on the number of shards."""

import dataclasses

import numpy as np
import pytest
import torch

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.data.batch import Batch
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import SpooledSequences, TensorSequences, as_sequences, cut_series, fingerprint
from lagreach.diagnosis.assemble import assemble, window_of
from lagreach.diagnosis.locate import LookHere
from lagreach.diagnosis.measure import MeasureSettings, measure_window, plan_measurement
from lagreach.diagnosis.passes import FirstPass, SecondPass, between_passes, first_pass, second_pass
from lagreach.errors import InputError
from lagreach.gradients.blocks import BlockMeans, block_means
from lagreach.gradients.contrast import make_probe
from lagreach.gradients.noise import NoiseValues, noise_values, unit_directions
from lagreach.statistics import all_statistics
from lagreach.tasks.multi_lag import MultiLag

SETTINGS = MeasureSettings(blocks=8, probes=2, flips=199)
TIME = 14
TASK = MultiLag(lags=(2,), coefficients=(1.0,), noise=0.5, input_size=2)


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


@pytest.fixture
def model(generator):
    return GatedRNN("diag_gate", 2, 3, 1, gate_init=0.3, generator=generator, dtype=torch.float64)


@pytest.fixture
def data(generator):
    x, y = dataclasses.replace(TASK, length=TIME).sample(48, generator)
    return x.double(), y.double()


def assert_same(a, b, rtol=1e-10):
    """Compare two windows field by field, down to the records inside them."""
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name in ("settings", "warnings"):
            assert left == right
        elif field.name == "curves":
            assert list(left) == list(right)
            for name in left:
                assert_same(left[name], right[name], rtol)
        elif field.name == "more":
            np.testing.assert_allclose(list(left.values()), list(right.values()), rtol=rtol)
        elif dataclasses.is_dataclass(left):
            assert_same(left, right, rtol)
        elif isinstance(left, (float, np.ndarray)) or (isinstance(left, tuple) and left and isinstance(left[0], float)):
            np.testing.assert_allclose(left, right, rtol=rtol, err_msg=field.name)
        else:
            assert left == right, field.name


def batches(data, size):
    return [tuple(part[i : i + size] for part in data) for i in range(0, len(data[0]), size)]


@pytest.mark.parametrize("unit", ["sequence", "step"])
def test_the_order_of_sequences_does_not_matter(model, data, generator, unit):
    settings = dataclasses.replace(SETTINGS, unit=unit)
    shuffled = torch.randperm(len(data[0]), generator=generator)
    first = measure_window(model, data, settings=settings)
    assert 2 in first.dependences
    assert_same(first, measure_window(model, [part[shuffled] for part in data], settings=settings))


def test_the_order_does_not_matter_for_one_hot_inputs_either(model, generator):
    # balanced classes: the eigenvalues of the inputs' covariance agree, so its eigenvectors are arbitrary
    classes = torch.stack([torch.arange(24).remainder(3)[torch.randperm(24, generator=generator)] for _ in range(40)])
    x = 0.1 * torch.nn.functional.one_hot(classes, 3).double()  # 0.1: sums depend on the order by rounding
    y = 10 * x[..., :1] + torch.randn(40, 24, 1, generator=generator, dtype=torch.float64)
    wide = GatedRNN("diag_gate", 3, 3, 1, gate_init=0.3, generator=generator, dtype=torch.float64)
    first = measure_window(wide, (x, y), lags=[0, 1, 2, 5], settings=SETTINGS)
    other = measure_window(wide, (x.flip(0), y.flip(0)), lags=[0, 1, 2, 5], settings=SETTINGS)
    assert_same(first, other)


def test_rounding_in_the_moments_of_the_inputs_does_not_move_the_probes(generator):
    """Balanced one-hot inputs have equal eigenvalues, whose eigenvectors turn with the last bit."""
    mean, covariance = torch.full((3,), 1 / 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64) / 3 - 1 / 9
    noise = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    planted = []
    for last_bit in (0.0, 1e-16, -1e-16):
        probe = make_probe(mean, covariance + last_bit * (noise + noise.T), 1, 4, torch.Generator().manual_seed(0))
        planted.append(probe.planted(torch.eye(3, dtype=torch.float64)[None]))
    torch.testing.assert_close(planted[1], planted[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(planted[2], planted[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1, 7, 48])
def test_loaders_and_tensors_agree_whatever_the_batch_size(model, data, size):
    whole = measure_window(model, data, settings=SETTINGS)
    spooled = measure_window(model, batches(data, size), settings=SETTINGS)
    assert_same(whole, spooled, rtol=0)


def test_a_data_loader_and_a_one_shot_generator_are_accepted(model, data):
    whole = measure_window(model, data, settings=SETTINGS)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=10)
    assert_same(whole, measure_window(model, loader, settings=SETTINGS), rtol=0)
    assert_same(whole, measure_window(model, (pair for pair in batches(data, 5)), settings=SETTINGS), rtol=0)
    as_dicts = ({"x": x, "y": y} for x, y in batches(data, 5))
    assert_same(whole, measure_window(model, as_dicts, settings=SETTINGS), rtol=0)


@pytest.mark.parametrize("noise", ["gradient", pytest.param("lag", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("shards", [[range(8)], [[4, 1], [0, 7], [5, 3, 6, 2]], [[k] for k in range(8)]])
def test_shards_merge_to_the_same_window(model, data, shards, noise):
    settings = dataclasses.replace(SETTINGS, noise=noise)
    whole = measure_window(model, data, settings=settings)
    plan = plan_measurement(model, data, "mse", "auto", settings=settings)
    chosen = all_statistics()
    first = FirstPass.merge([first_pass(plan, chosen, blocks) for blocks in shards])
    between = between_passes(plan, first.means, settings, first.inputs, LookHere(plan))
    second = SecondPass.merge([second_pass(plan, between, chosen, settings, blocks) for blocks in shards])
    assert second.collected["reliance"].lags == whole.reliance.lags != ()
    assert_same(whole, assemble(plan, first, between, second, settings, chosen))


def test_shards_that_overlap_are_refused(model, data):
    plan = plan_measurement(model, data, "mse", [1, 2], settings=SETTINGS)
    one = block_means(plan, blocks=[0, 1])
    with pytest.raises(InputError, match="same block"):
        BlockMeans.merge([one, block_means(plan, blocks=[1])])
    along = unit_directions(block_means(plan), plan.probe.group, "matched", np.random.default_rng(0))
    values = noise_values(plan, along, blocks=[2])
    with pytest.raises(InputError, match="same sequences"):
        NoiseValues.merge([values, values])


def ragged(data, generator):
    """Sequences of 7 to TIME steps, one by one."""
    lengths = torch.randint(7, TIME + 1, (len(data[0]),), generator=generator)
    lengths[:2] = TIME
    return lengths, [(x[None, :n], y[None, :n]) for x, y, n in zip(*data, lengths.tolist(), strict=True)]


@pytest.mark.parametrize("unit", ["sequence", "step"])
def test_ragged_sequences_equal_padded_ones_whatever_the_padding_holds(model, data, generator, unit):
    settings = dataclasses.replace(SETTINGS, unit=unit)
    lengths, one_by_one = ragged(data, generator)
    spooled = measure_window(model, one_by_one, settings=settings)
    beyond = torch.arange(TIME) >= lengths[:, None]
    x, y = (part.masked_fill(beyond[..., None], torch.nan) for part in data)
    padded = measure_window(model, {"x": x, "y": y, "lengths": lengths}, settings=settings)
    assert_same(spooled, padded)
    shuffled = [one_by_one[i] for i in torch.randperm(len(one_by_one), generator=generator).tolist()]
    assert_same(spooled, measure_window(model, shuffled, settings=settings))


def test_sequences_that_all_end_early_equal_shorter_ones(model, data):
    short = measure_window(model, [part[:, :9] for part in data], lags=range(9), settings=SETTINGS)
    lengths = torch.full((len(data[0]),), 9)
    padded = measure_window(model, {"x": data[0], "y": data[1], "lengths": lengths}, lags=range(9), settings=SETTINGS)
    assert_same(short, padded)


def test_a_mask_equals_lengths(model, data, generator):
    lengths, _ = ragged(data, generator)
    inside = torch.arange(TIME) < lengths[:, None]
    x = data[0] * inside[..., None]
    with_lengths = measure_window(model, {"x": x, "y": data[1], "lengths": lengths}, settings=SETTINGS)
    with_mask = measure_window(model, (x, data[1], inside), settings=SETTINGS)
    # the pairs come from the inputs as they are given, so pair alike before comparing
    plan = plan_measurement(model, {"x": x, "y": data[1], "lengths": lengths}, "mse", "auto", settings=SETTINGS)
    masked = dataclasses.replace(
        plan_measurement(model, (x, data[1], inside), "mse", "auto", settings=SETTINGS),
        block_plan=plan.block_plan,
        probe=plan.probe,
    )
    np.testing.assert_allclose(block_means(masked).data, block_means(plan).data, rtol=1e-10, atol=1e-15)
    assert 2 in with_lengths.dependences
    assert 2 in with_mask.dependences


def test_targets_at_chosen_steps_equal_a_mask_there(model, data):
    chosen = [4, 9, 13]
    mask = torch.zeros(len(data[0]), TIME)
    mask[:, chosen] = 1.0
    by_steps = measure_window(model, (data[0], data[1][:, chosen]), steps=chosen, settings=SETTINGS)
    by_mask = measure_window(model, (data[0], data[1], mask), settings=SETTINGS)
    assert_same(by_steps, by_mask)


def test_one_target_per_sequence_belongs_to_its_last_step(model, data, generator):
    x = data[0]
    y = x[:, -3, :1] + 0.1 * torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    window = measure_window(model, (x, y), settings=SETTINGS)
    assert window.dependences == (2,)
    spooled = measure_window(model, batches((x, y), 9), settings=SETTINGS)
    assert_same(window, spooled, rtol=0)


def test_copies_are_not_paired_with_each_other(model, data):
    """A data set that repeats itself still shows its dependence; the copies share a block."""
    twice = [torch.cat((part, part)) for part in data]
    plan = plan_blocks(as_sequences(twice), 8, 0)
    count = len(data[0])
    assert all(a % count != b % count for a, b in plan.pairs.tolist())
    homes = {}
    for pair, block in zip(plan.pairs.tolist(), plan.blocks.tolist(), strict=True):
        for number in pair:
            homes.setdefault(number % count, set()).add(block)
    shared = sum(len(blocks) == 1 for blocks in homes.values())
    assert shared >= count - 2 * (plan.count - 1)
    assert 2 in measure_window(model, twice, settings=SETTINGS).dependences


def test_pairs_depend_on_inputs_and_seed_alone(data, generator):
    x, y = data
    plan = plan_blocks(as_sequences((x, y)), 8, 0)
    other_targets = plan_blocks(as_sequences((x, torch.randn(y.shape, generator=generator))), 8, 0)
    np.testing.assert_array_equal(plan.pairs, other_targets.pairs)
    other_seed = plan_blocks(as_sequences((x, y)), 8, 1)
    assert (plan.pairs != other_seed.pairs).any()
    assert plan.blocks.tolist() == sorted(plan.blocks.tolist())
    sizes = np.bincount(plan.blocks)
    assert sizes.max() - sizes.min() <= 1


def test_a_subsample_is_spread_over_a_whole_series(generator):
    x = torch.randn(1000, 2, generator=generator)
    plan = plan_blocks(cut_series(x, x[:, :1], length=10), 8, 0)
    few = plan.subsample(20)
    assert few.sequences == 16
    assert few.pairs[:, 0].tolist() == list(range(0, 48, 6))  # the first of every stretch
    assert plan.subsample(1000).pairs.tolist() == plan.pairs.tolist()


def test_the_fingerprint_does_not_see_padding_or_order(data):
    x, y = data
    lengths = torch.arange(len(x)) % 5 + 8
    inside = (torch.arange(TIME) < lengths[:, None])[..., None]
    padded = fingerprint(as_sequences((torch.where(inside, x, 7.0), torch.where(inside, y, -1.0), None, lengths)))
    assert padded == fingerprint(as_sequences((x, y, None, lengths)))
    assert padded == fingerprint(as_sequences((x.flip(0), y.flip(0), None, lengths.flip(0))))
    assert padded != fingerprint(as_sequences((x, y)))


class Recorder:
    """Sequences that remember the most that were ever read at once."""

    def __init__(self, inner):
        self.inner, self.most = inner, 0

    def __len__(self):
        return len(self.inner)

    def read(self, index) -> Batch:
        self.most = max(self.most, len(index))
        return self.inner.read(index)


@pytest.mark.thorough
def test_memory_is_flat_in_the_number_of_sequences(model, generator):
    """Blocks are read in pieces of a fixed number of bytes."""
    most = []
    for count in (400, 1200):
        x, y = dataclasses.replace(TASK, length=6).sample(count, generator)
        watched = Recorder(SpooledSequences(batches((x, y), 100)))
        settings = dataclasses.replace(SETTINGS, probes=1)
        plan = dataclasses.replace(plan_measurement(model, watched, "mse", [1, 2], settings=settings), memory=2**18)
        means = block_means(plan)
        along = unit_directions(means, plan.probe.group, "matched", np.random.default_rng(0))
        values = noise_values(plan, along)
        assert 2 in window_of(plan, means, values, settings).dependences
        assert len(values.number) == count
        most.append(watched.most)
    assert most[0] == most[1] < 100


def test_pieces_of_a_block_add_up(model, data):
    plan = plan_measurement(model, data, "mse", [0, 2, 5], settings=SETTINGS)
    small = dataclasses.replace(plan, memory=1)  # one pair at a time
    whole, pieces = block_means(plan), block_means(small)
    np.testing.assert_allclose(pieces.data, whole.data, rtol=1e-10, atol=1e-16)
    np.testing.assert_allclose(pieces.probe, whole.probe, rtol=1e-10)
    np.testing.assert_allclose(
        pieces.planted_scale(plan.probe.group), whole.planted_scale(plan.probe.group), rtol=1e-10
    )
    along = unit_directions(whole, plan.probe.group, "matched", np.random.default_rng(0))
    first, second = (window_of(t, whole, noise_values(t, along), SETTINGS) for t in (plan, small))
    assert_same(first, second)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (iter(()), "no sequences"),
        ([], "no sequences"),
        ((torch.zeros(0, 5, 2), torch.zeros(0, 5, 1)), "no sequences"),
        ((torch.zeros(20, 5, 2), torch.zeros(19, 5, 1)), "different numbers"),
        ((torch.zeros(20, 5, 2), torch.zeros(20, 5, 1), torch.ones(19, 5)), "mask"),
        ({"x": torch.zeros(20, 5, 2), "y": torch.zeros(20, 5, 1), "lengths": torch.tensor(5)}, "lengths"),
        ({"x": torch.zeros(20, 5, 2)}, "no targets"),
        ([torch.zeros(20, 5, 2)], "inputs and targets"),
        (7, "not data"),
        ((torch.ones(20, 5, 2), torch.zeros(20, 5, 1)), "do not vary"),
        ((torch.zeros(12, 5, 2), torch.zeros(12, 5, 1)), "too few sequences"),
    ],
)
def test_bad_data_are_refused(model, bad, message):
    with pytest.raises(InputError, match=message):
        measure_window(model, bad, settings=SETTINGS)


@pytest.mark.parametrize("lengths", [None, 9])
def test_values_that_are_not_finite_are_named(model, data, lengths):
    x, y = data[0].clone(), data[1].clone()
    x[3, 4, 1] = torch.nan
    batch = {"x": x, "y": y} if lengths is None else {"x": x, "y": y, "lengths": torch.full((48,), lengths)}
    with pytest.raises(InputError, match="the input x"):
        measure_window(model, batch, settings=SETTINGS)
    y[5, 2] = torch.inf
    with pytest.raises(InputError, match="the target y"):
        measure_window(model, (data[0], y), settings=SETTINGS)


def test_a_used_up_generator_says_so(model, data):
    generator = (pair for pair in batches(data, 8))
    measure_window(model, generator, lags=[1], settings=SETTINGS)
    with pytest.raises(InputError, match="used-up"):
        measure_window(model, generator, lags=[1], settings=SETTINGS)


def test_sequences_are_read_back_as_they_were(data, generator):
    lengths, one_by_one = ragged(data, generator)
    spooled = SpooledSequences(one_by_one)
    batch = spooled.read([3, 0, 17])
    assert batch.lengths.tolist() == lengths[[3, 0, 17]].tolist()
    assert batch.x.shape == (3, TIME, 2)  # as long as the longest of all, whoever is read
    for row, n in enumerate([3, 0, 17]):
        torch.testing.assert_close(batch.x[row, : lengths[n]], data[0][n, : lengths[n]], rtol=0, atol=0)
        assert not batch.x[row, lengths[n] :].any()
    same = as_sequences(TensorSequences(Batch(*data)))
    assert as_sequences(same) is same
