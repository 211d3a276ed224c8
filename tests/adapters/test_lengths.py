"""Sequences of different lengths in models that pack, sort or ignore them, against autograd."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lagreach
from lagreach import lag_gradients
from lagreach.adapters import find_views
from lagreach.adapters.rows import SortedView
from lagreach.data.batch import Batch, sample_of, telling_rows
from lagreach.data.sequences import as_sequences, telling_sample
from lagreach.errors import InputError

SEQ, TIME = 6, 7
LENGTHS = {
    "long first": torch.tensor([7, 7, 5, 3, 2, 1]),
    "short first": torch.tensor([2, 3, 5, 7, 1, 7]),
    "none full": torch.tensor([3, 3, 6, 2, 6, 5]),
}


class Net(nn.Module):
    """A recurrent layer in a model that packs, sorts and packs, or hands padding to the layer."""

    def __init__(self, kind="LSTM", layers=1, bidirectional=False, packing="none", head="h_n"):
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 4, layers, bidirectional=bidirectional, batch_first=True)
        self.packing, self.head = packing, head
        self.read = nn.Linear(4 if head == "h_n" else 4 * (1 + bidirectional), 2)

    def forward(self, x, lengths):
        order = lengths.argsort(descending=True) if self.packing == "sorted" else torch.arange(len(x))
        z = x[order]
        if self.packing != "none":
            in_order = self.packing == "sorted"
            z = pack_padded_sequence(z, lengths[order], batch_first=True, enforce_sorted=in_order)
        output, final = self.rnn(z)
        if self.packing != "none":
            output = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0]
        back = order.argsort()
        last = (final[0] if isinstance(final, tuple) else final)[-1][back]
        output = output[back]
        if self.head == "h_n":
            return self.read(last)
        return self.read(output.mean(1) if self.head == "mean" else output)


def loss_of(model, x, y, lengths):
    error = (model(x, lengths) - y).square().mean(-1)
    if error.ndim == 1:
        return error.mean()
    weight = (torch.arange(x.shape[1]) < lengths[:, None]).to(error)
    return ((error * weight).sum(1) / weight.sum(1)).mean()


def check_against_autograd(model, x, y, lengths):
    model = model.double()
    names, weights = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss_of(model, x, y, lengths), weights), strict=True))
    views = find_views(model, sample_of(Batch(x, y, None, lengths)))
    for view in views:
        for name, total in lag_gradients(view, x, y, lengths=lengths).total().items():
            torch.testing.assert_close(total, expected[name], rtol=1e-10, atol=1e-12)
    return views


LAYERS = [("LSTM", 1, False), ("GRU", 1, True), ("LSTM", 2, True), ("RNN", 2, False)]
ALL = list(product(LAYERS, ("none", "packed", "sorted"), ("h_n", "mean", "output"), LENGTHS))
QUICK = ALL[::7]  # 7 is coprime to the sizes of all factors, so every value of every factor occurs


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_identity_with_lengths(case, generator):
    check_identity_with_lengths(case, generator)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=str)
def test_identity_with_all_lengths(case, generator):
    check_identity_with_lengths(case, generator)


def check_identity_with_lengths(case, generator):
    (kind, layers, bidirectional), packing, head, named = case
    lengths = LENGTHS[named]
    x = torch.randn(SEQ, TIME, 3, generator=generator, dtype=torch.float64)
    shape = (SEQ, TIME, 2) if head == "output" else (SEQ, 2)
    y = torch.randn(shape, generator=generator, dtype=torch.float64)
    views = check_against_autograd(Net(kind, layers, bidirectional, packing, head), x, y, lengths)
    assert any(isinstance(view, SortedView) for view in views) == (packing == "sorted")


def test_the_order_of_the_sequences_does_not_decide_what_is_accepted(generator):
    """The check once saw the first two sequences only: full ones hid what the padding does to the others."""
    model = Net("LSTM").double()
    x = torch.randn(SEQ, TIME, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(SEQ, 2, generator=generator, dtype=torch.float64)
    lengths = LENGTHS["long first"]
    whole = lag_gradients(model, x, y, lengths=lengths)
    turned = lag_gradients(model, x.flip(0), y.flip(0), lengths=lengths.flip(0))
    for name, total in whole.total().items():
        torch.testing.assert_close(total, turned.total()[name], rtol=1e-12, atol=1e-14)
    assert any("padding" in warning for warning in whole.warnings)
    assert whole.warnings == turned.warnings


def test_padding_is_not_mentioned_where_nothing_reads_it(generator):
    x = torch.randn(SEQ, TIME, 3, generator=generator, dtype=torch.float64)
    lengths = LENGTHS["short first"]
    for model, y in [
        (Net("LSTM", packing="packed"), torch.zeros(SEQ, 2)),
        (Net("LSTM", head="output"), torch.zeros(SEQ, TIME, 2)),
        (lagreach.GatedRNN("lstm", 3, 4, 2), torch.zeros(SEQ, TIME, 2)),
    ]:
        assert lag_gradients(model.double(), x, y.double(), lengths=lengths).warnings == ()


def test_every_lag_backward_through_padding_against_copies_of_the_weights(generator):
    """A second implementation of the backward direction: it starts in the padding, and every step has its own weights."""
    model = Net("GRU", bidirectional=True, head="output").double()
    x = torch.randn(SEQ, TIME, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(SEQ, TIME, 2, generator=generator, dtype=torch.float64)
    lengths = LENGTHS["short first"]
    copies, state, states = [], None, []
    for t in range(TIME):
        copy = nn.GRUCell(3, 4).double()
        names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        copy.load_state_dict({name: getattr(model.rnn, f"{name}_l0_reverse").detach() for name in names})
        copies.append(copy)
        state = copy(x[:, TIME - 1 - t], state)
        states.append(state)
    leaf = torch.stack(states, 1).detach().requires_grad_()
    forward = model.rnn(x)[0][..., :4].detach()
    error = (model.read(torch.cat((forward, leaf.flip(1)), -1)) - y).square().mean(-1)
    weight = (torch.arange(TIME) < lengths[:, None]).double()
    (delta,) = torch.autograd.grad(((error * weight).sum(1) / weight.sum(1)).mean(), leaf)
    view = find_views(model, Batch(x, y, None, lengths))[1]
    gradients = lag_gradients(view, x, y, lengths=lengths).grads
    for lag in range(TIME):
        expected = torch.zeros_like(copies[0].weight_ih)
        for t in range(lag, TIME):
            (part,) = torch.autograd.grad((states[t] * delta[:, t]).sum(), copies[t - lag].weight_ih, retain_graph=True)
            expected += part
        torch.testing.assert_close(gradients["rnn.weight_ih_l0_reverse"][lag], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_a_model_that_sorts_its_batch_is_diagnosed_as_one_that_does_not(generator):
    """Rows of the layer are in the order of the lengths, rows of the batch are not: pairs would be mixed up."""
    torch.manual_seed(0)
    packed, in_order = Net("LSTM", packing="packed", head="output"), Net("LSTM", packing="sorted", head="output")
    in_order.load_state_dict(packed.state_dict())
    x = torch.randn(48, 9, 3, generator=generator)
    y = torch.roll(x[..., :2], 2, 1)
    lengths = torch.randint(3, 10, (48,), generator=generator)
    diagnoses = [lagreach.diagnose(model, (x, y, None, lengths), lags=[0, 1, 2, 4]) for model in (packed, in_order)]
    one, other = (diagnosis.layers[0].window for diagnosis in diagnoses)
    assert one.adjusted_p.tolist() == pytest.approx(other.adjusted_p.tolist())
    assert one.required_if_present().sequences.tolist() == pytest.approx(
        other.required_if_present().sequences.tolist(), rel=1e-4
    )


class Strided(nn.Module):
    """A front that makes one step of two, then a recurrent layer."""

    def __init__(self, head):
        super().__init__()
        self.front, self.rnn = nn.Conv1d(3, 4, 2, stride=2), nn.GRU(4, 5, batch_first=True)
        self.read, self.head = nn.Linear(5, 2), head

    def forward(self, x):
        output, final = self.rnn(torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2))
        if self.head == "h_n":
            return self.read(final[-1])
        return self.read(output if self.head == "steps" else output.repeat_interleave(2, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["h_n", "steps", "upsampled"])
def test_lengths_of_inputs_before_a_strided_front(head, generator):
    model = Strided(head).double()
    x = torch.randn(SEQ, 8, 3, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([8, 3, 5, 8, 2, 6])
    output = model(x)
    y = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    error = (output - y).square().mean(-1)
    mask = None
    if head == "steps":
        with pytest.raises(InputError, match="x of 8 steps, outputs of 4"):
            lag_gradients(model, x, y, lengths=lengths)
        mask = torch.arange(4) < ((lengths + 1) // 2)[:, None]
    if head != "h_n":
        weight = mask if head == "steps" else torch.arange(8) < lengths[:, None]
        error = (error * weight).sum(1) / weight.sum(1)
    (expected,) = torch.autograd.grad(error.mean(), model.rnn.weight_ih_l0)
    total = lag_gradients(model, x, y, lengths=lengths, mask=mask).total()["rnn.weight_ih_l0"]
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-12)
    many = [torch.randn(3 * SEQ, *v.shape[1:], generator=generator, dtype=torch.float64) for v in (x, y)]
    data = {"x": many[0], "y": many[1], "lengths": lengths.repeat(3)}
    if mask is not None:
        data["mask"] = mask.repeat(3, 1)
    assert lagreach.diagnose(model, data, lags=[0, 1], lags_of="layers").layers[0].rates is not None
    assert lagreach.retention(model, x, lengths=lengths).layers


def test_lengths_and_targets_from_a_loader_are_single_numbers():
    x, lengths = torch.randn(5, 4, 2), torch.tensor([4, 2, 3, 1, 4])
    read = as_sequences([(x[i : i + 1], lengths[i : i + 1], torch.ones(1, 4), lengths[i : i + 1]) for i in range(5)])
    batch = read.read(range(5))
    assert batch.lengths.tolist() == batch.y.tolist() == lengths.tolist()


def test_sequences_to_check_a_model_on_differ():
    lengths = torch.tensor([7, 7, 7, 4, 7, 9])
    mask = torch.ones(6, 9)
    mask[4, 2:] = 0
    rows = telling_rows(6, lengths, mask.sum(1))
    assert {3, 5, 4} <= set(rows)
    assert rows[0] == 3  # the shortest alone must give what it gives in company
    x, y = torch.arange(6.0)[:, None, None].expand(6, 9, 1).contiguous(), torch.zeros(6, 9, 1)
    batches = [(x[i : i + 1], y[i : i + 1], mask[i : i + 1], lengths[i : i + 1]) for i in range(6)]
    for data in ((x, y, mask, lengths), batches):
        assert telling_sample(as_sequences(data)).x[:, 0, 0].tolist() == [float(row) for row in rows]
    assert telling_rows(1) == [0]
    assert telling_rows(5) == [0, 1]
