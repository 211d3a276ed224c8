"""Data in the forms that users have them in: one batch, two or more of them, several inputs, dicts."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.data.batch import as_numbers
from lagreach.data.sequences import SpooledSequences, as_batch, as_sequences
from lagreach.errors import InputError

pytestmark = pytest.mark.usefixtures("_as_users_run_it")


def series(count=64, features=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 12, features, generator=generator), torch.randn(count, 12, 1, generator=generator)


def halves(x, y, kind=tuple):
    return [kind((x[:32], y[:32])), kind((x[32:], y[32:]))]


class OneInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.read = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0])


class TwoInputs(OneInput):
    def forward(self, source, target):
        return super().forward(source + target)


@pytest.mark.parametrize("outer", [list, tuple])
@pytest.mark.parametrize("inner", [list, tuple])
@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
def test_two_batches_are_batches(ask, outer, inner):
    """They were read as two inputs and a target."""
    x, y = series()
    torch.manual_seed(0)
    model = OneInput()
    one = ask(model, (x, y), lags=[0, 1, 3])
    two = ask(model, outer(halves(x, y, inner)), lags=[0, 1, 3])
    assert one.fingerprint == two.fingerprint
    first, second = (answer.curve("signal") if ask is lagreach.diagnose else answer.readable for answer in (one, two))
    np.testing.assert_array_equal(first.values, second.values)


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_two_batches_may_have_other_numbers_of_sequences_and_steps(rows):
    x, y = series()
    read = as_sequences([(x[:32], y[:32]), (x[:rows, :7], y[:rows, :7])])
    assert isinstance(read, SpooledSequences)
    assert len(read) == 32 + rows


@pytest.mark.parametrize("parts", [3, 4])
def test_two_batches_with_masks_are_batches(parts):
    x, y = series()
    rest = (torch.ones(32, 12), torch.full((32,), 12))[: parts - 2]
    read = as_sequences([(*pair, *rest) for pair in halves(x, y)])
    assert len(read) == 64
    assert read.read([0, 40]).mask.shape == (2, 12)


@pytest.mark.parametrize("outer", [list, tuple])
@pytest.mark.parametrize("inner", [list, tuple])
@pytest.mark.parametrize("array", [lambda part: part, lambda part: part.numpy()])
def test_two_inputs_and_a_target_are_one_batch(outer, inner, array):
    x, y = series()
    for target in (array(y), [array(y), array(torch.ones(64, 12))]):
        read = as_sequences(outer((inner((array(x), array(x))), target))).read([3, 5])
        torch.testing.assert_close(read.others[0], x[[3, 5]])
        torch.testing.assert_close(read.y, y[[3, 5]])
        assert (read.mask is None) == (not isinstance(target, list))


def test_models_of_two_inputs_take_one_batch_and_two():
    x, y = series()
    whole = lagreach.diagnose(TwoInputs(), ((x, x), y), lags=[0, 1])
    both = lagreach.diagnose(TwoInputs(), [((a, a), b) for a, b in halves(x, y)], lags=[0, 1])
    assert whole.available == both.available == 64


@pytest.mark.parametrize("count", [3, 4])
def test_batches_of_different_kinds_are_refused(count):
    """Different features were an error of torch; a mask that only some batches had was left out without a word."""
    (x, y), (wide, _) = series(), series(features=3)
    several = [(x, y)] * (count - 1)
    for other, said in (
        ((wide, y), r"x of shape \(seq, time, 2\), then of shape \(seq, time, 3\)"),
        ((x, y, torch.ones(64, 12)), r"mask of nothing, then of shape \(seq, time\)"),
        ((x, y[:, 0]), r"y of shape \(seq, time, 1\), then of shape \(seq, 1\)"),
        ((x, y.long()), "y of .* and whole numbers"),
    ):
        with pytest.raises(InputError, match=f"batches are not of one kind\n.*{said}"):
            as_sequences([*several, other])
    with pytest.raises(InputError, match="batches are not of one kind"):
        as_sequences([(x, y), (wide, y)])


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.cost, lagreach.forecast])
@pytest.mark.parametrize("value", [1, 0.5, True, "fast", torch.tensor(1), np.float32(2)])
def test_one_value_for_all_sequences_is_refused_by_its_name(ask, value):
    """It was an index of a number."""
    x, y = series()
    one = {"x": x, "y": y, "foo": value}
    for data in (one, [one, one, one]):
        with pytest.raises(InputError, match=r"foo of .* is one value.*\n.*foo=.*\n.*\n.*model\(batch.x, foo=...\)"):
            ask(OneInput(), data, lags=[0, 1])


@pytest.mark.parametrize("value", [[1] * 64, np.ones(64), torch.ones(64)])
def test_numbers_of_the_sequences_that_the_model_does_not_take_are_said(value):
    x, y = series()
    with pytest.raises(InputError, match=r"the model does not run on the data\n.*'length'"):
        lagreach.diagnose(OneInput(), {"x": x, "y": y, "length": value}, lags=[0, 1])


def test_remarks_on_the_sequences_are_left_out():
    x, y = series()
    data = {"x": x, "y": y, "names": ["a"] * 64, "source": None}
    assert as_sequences(data).read([1, 2]).others == {}
    assert lagreach.diagnose(OneInput(), data, lags=[0, 1]).available == 64


def test_targets_beside_several_inputs_must_be_numbers():
    x, y = series()
    assert as_sequences(((x, x), [float(n) for n in range(64)])).read([2, 5]).y.tolist() == [2.0, 5.0]
    for wrong in (["a"] * 64, [y, "b"]):
        with pytest.raises(InputError, match="these are no numbers"):
            as_sequences(((x, x), wrong))
    with pytest.raises(InputError, match=r"different numbers of sequences\n.*the targets a single number"):
        as_sequences({"input_ids": torch.ones(4, 3).long(), "labels": torch.tensor(1)})


def test_single_sequences_in_a_list_or_a_dataset_are_not_batches():
    x, y = torch.randn(30, 16, 2), torch.randn(30, 16, 1)
    with pytest.raises(InputError, match=r"single sequences are not batches(.|\n)*shape \(16, 2\)(.|\n)*DataLoader"):
        as_sequences(list(zip(x, y, strict=True)))
    with pytest.raises(InputError, match=r"this is not data(.|\n)*DataLoader"):
        as_sequences(torch.utils.data.TensorDataset(x, y))
    batches = list(zip(x.split(10), y.split(10), strict=True))
    assert len(as_sequences(batches)) == 30


def test_targets_let_go_of_the_graph_they_come_from():
    x = torch.randn(20, 8, 2, requires_grad=True)
    batch = as_batch((x, x.sum(-1, keepdim=True)))
    assert not batch.y.requires_grad
    torch.testing.assert_close(batch.y, x.detach().sum(-1, keepdim=True))


def test_data_frames_are_arrays():
    pandas = pytest.importorskip("pandas")
    y = torch.randn(20, 3, dtype=torch.float64)
    frame = pandas.DataFrame(y.numpy(), columns=["a", "b", "c"])
    torch.testing.assert_close(as_batch((torch.randn(20, 8, 2), frame)).y, y)


def test_sequences_of_several_lengths_are_told_how_to_be_padded():
    """They were sent to a loader, which cannot stack them either."""
    xs, ys = ([torch.randn(length, width) for length in range(9, 29)] for width in (2, 1))
    as_arrays = [tuple(part.numpy() for part in both) for both in zip(xs, ys, strict=True)]
    for ragged in (list(zip(xs, ys, strict=True)), (xs, ys), as_arrays):
        with pytest.raises(InputError, match=r"pad them: pad = torch\.nn\.utils\.rnn\.pad_sequence") as refused:
            as_sequences(ragged)
        held = {"torch": torch, "xs": xs, "ys": ys}
        exec(str(refused.value).partition("pad them: ")[2].partition(", where xs")[0], held)
        assert as_sequences(held["data"]).read([3]).lengths.tolist() == [12]


def test_what_is_not_finite_beyond_a_length_is_padding():
    """Times zero it would still be no number, and a diagnosis spoke of gradients that overflow."""
    x, lengths = torch.randn(20, 8, 2), torch.arange(20) % 4 + 5
    x[torch.arange(8) >= lengths[:, None]] = torch.nan
    for given in ((x, x[:, :1, 0], None, lengths), [(x, x[:, :1, 0], None, lengths)]):
        read = as_sequences(given).read([1, 2])
        assert read.x.isfinite().all()
        torch.testing.assert_close(read.x[0, :6], x[1, :6])
    mask = torch.arange(8) < lengths[:, None]
    for ask in (lagreach.diagnose, lagreach.forecast):
        with pytest.raises(
            InputError, match=r"not finite(.|\n)*put zeros into steps that are padding, or pass lengths="
        ):
            ask(lagreach.GatedRNN("gru", 2, 4, 1), (x, x[..., :1].nan_to_num(), mask))


def test_arrays_that_cannot_be_written_to_are_not_copied(tmp_path, recwarn):
    np.save(tmp_path / "x.npy", np.arange(6.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert as_numbers(mapped).data_ptr() == mapped.__array_interface__["data"][0]
    assert not recwarn.list


def test_arrays_that_torch_does_not_know_are_numbers_all_the_same():
    values = np.arange(6.0, dtype="f4").reshape(2, 3)
    for other in (values[:, ::-1], values[::-1], values.astype(">f4")):
        assert as_numbers(other).tolist() == other.tolist()
        assert as_numbers(other).dtype == torch.float32


def test_masked_values_are_not_taken_for_data():
    with pytest.raises(InputError, match="masked") as error:
        as_numbers(np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]))
    assert "1 of 3" in str(error.value)
    assert as_numbers(np.ma.masked_array([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_lengths_in_the_place_of_a_mask_are_told_where_they_belong():
    x = torch.randn(64, 8, 2)
    lengths = torch.randint(3, 9, (64,))
    for ask in (lagreach.forecast, lagreach.diagnose, lagreach.advise):
        with pytest.raises(InputError, match=r"pass \(x, y, None, lengths\)"):
            ask(lagreach.GatedRNN("gru", 2, 4, 1), (x, x[..., :1], lengths))
    with pytest.raises(InputError, match="no time axis") as error:
        as_batch((x, x[..., :1], torch.rand(64)))
    assert "lengths come fourth" in str(error.value)
    assert torch.equal(as_batch((x, x[..., :1], None, lengths)).lengths, lengths)
