"""Which steps count in the loss, and how much: beside autograd on a loss written out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lagreach import LagreachError, effective_rates, lag_gradients
from lagreach.errors import InputError
from lagreach.transport.objective import valid_steps
from tests.cases import TOLERANCE, autograd_gradient, normal, small_model

SEQ, TIME, OUT = 3, 6, 2
EXACT = TOLERANCE[torch.float64]


@pytest.fixture(name="model")
def _model(generator):
    return small_model("diag_gate", generator)


@pytest.fixture(name="x")
def _x():
    return normal(torch.Generator().manual_seed(1), SEQ, TIME, 3)


def assert_gradient_of(expected, model, x, y, loss="mse", **options):
    result = lag_gradients(model, x, y, loss, **options)
    torch.testing.assert_close(result.loss, expected.detach(), **EXACT)
    for name, grad in autograd_gradient(model, expected).items():
        torch.testing.assert_close(result.total()[name], grad, **EXACT)


def test_a_mask_may_weigh_steps_and_leave_some_out(model, x, generator):
    y, mask = normal(generator, SEQ, TIME, OUT), torch.rand(SEQ, TIME, generator=generator, dtype=torch.float64)
    mask[0, 2] = mask[2, 5] = 0.0
    each = (model(x) - y).square().mean(-1)
    assert_gradient_of(((each * mask).sum(1) / mask.sum(1)).mean(), model, x, y, mask=mask)


def test_a_mask_also_covers_chosen_steps(model, x, generator):
    y, mask = normal(generator, SEQ, 2, OUT), torch.ones(SEQ, TIME, dtype=torch.bool)
    mask[1, 4] = False
    each = (model(x)[:, [0, 4]] - y).square().mean(-1)
    assert_gradient_of((each[0].mean() + each[1, 0] + each[2].mean()) / 3, model, x, y, mask=mask, steps=[0, 4])


@pytest.mark.parametrize("steps", [list(reversed(range(TIME))), torch.arange(TIME).flip(0)], ids=["list", "tensor"])
def test_as_many_targets_as_steps_may_still_be_named(steps, model, x, generator):
    y = normal(generator, SEQ, TIME, OUT)
    assert_gradient_of((model(x).flip(1) - y).square().mean(), model, x, y, steps=steps)
    classes = torch.randint(0, OUT, (SEQ, TIME), generator=generator)
    expected = cross_entropy(model(x).flip(1).flatten(0, 1), classes.flatten())
    assert_gradient_of(expected, model, x, classes, "cross_entropy", steps=steps)


def test_two_classes_are_enough(model, x, generator):
    """Two outputs, at every step, at chosen ones, and at the last."""
    y = torch.randint(0, OUT, (SEQ, TIME), generator=generator)
    out = model(x)
    assert_gradient_of(cross_entropy(out.flatten(0, 1), y.flatten()), model, x, y, "cross_entropy")
    chosen = cross_entropy(model(x)[:, [1, 5]].flatten(0, 1), y[:, :2].flatten())
    assert_gradient_of(chosen, model, x, y[:, :2], "cross_entropy", steps=[1, 5])
    for options in ({}, {"steps": "last"}):
        last = cross_entropy(model(x)[:, -1], y[:, 0])
        assert_gradient_of(last, model, x, y[:, 0], "cross_entropy", **options)


def test_the_last_step_may_be_asked_for_by_name(model, x, generator):
    y, lengths = normal(generator, SEQ, OUT), torch.tensor([6, 1, 3])
    for target, form in ((y, lengths), (y[:, None], lengths.tolist())):
        last = model(x)[torch.arange(SEQ), lengths - 1]
        assert_gradient_of((last - y).square().mean(), model, x, target, lengths=form, steps="last")


def test_one_output_needs_no_axis_of_its_own(x, generator):
    model = small_model("diag_gate", generator, output_size=1)
    y = normal(generator, SEQ)
    assert_gradient_of((model(x)[:, -1, 0] - y).square().mean(), model, x, y)


def test_a_loss_of_ones_own_gets_targets_in_the_models_type(model, x, generator):
    seen = []

    def loss(output, target, counts):
        seen.append(target.dtype)
        return (output - target[..., None]).square().mean((1, 2))

    for y in (normal(generator, SEQ, TIME, dtype=torch.float32), torch.ones(SEQ, TIME, dtype=torch.long)):
        assert_gradient_of((model(x) - y.double()[..., None]).square().mean(), model, x, y, loss)
    assert set(seen) == {torch.float64, torch.long}


@pytest.mark.parametrize(("dtype", "refused"), [(torch.float64, True), (torch.float32, False)])
def test_a_hint_of_coupling_counts_only_where_it_cannot_be_rounding(dtype, refused, generator):
    model = small_model("diag_gate", generator, dtype=dtype)
    x, y = normal(generator, SEQ, TIME, 3, dtype=dtype), normal(generator, SEQ, TIME, OUT, dtype=dtype)

    def loss(output, target, counts):
        return (output - target).square().mean((1, 2)) * (1 + 1e-5 * len(output))

    if refused:
        with pytest.raises(InputError, match="depends on the other sequences"):
            lag_gradients(model, x, y, loss)
    else:
        assert lag_gradients(model, x, y, loss).loss.isfinite()


def with_(tensor, place, value):
    changed = tensor.clone()
    changed[place] = value
    return changed


BAD = {
    "negative mask": ({"mask": with_(torch.ones(SEQ, TIME), (1, 2), -0.5)}, "mask must weight"),
    "mask that is no number": ({"mask": with_(torch.ones(SEQ, TIME), (1, 2), torch.nan)}, "the mask"),
    "nothing counts in one": ({"mask": with_(torch.ones(SEQ, TIME), 2, 0.0)}, r"sequence 2\n"),
    "nor for one's own loss": (
        {"mask": with_(torch.ones(SEQ, TIME), 2, 0.0), "loss": lambda o, y, m: (o - y).square().mean((1, 2))},
        "no step that counts",
    ),
    "loss is a number": ({"loss": lambda o, y, m: 1.0}, r"one value per sequence(.|\n)*float"),
    "loss has too many": ({"loss": lambda o, y, m: (o - y).square().mean(2)}, r"one value per sequence(.|\n)*\(2, 6\)"),
    "no length": ({"lengths": [6, 0, 3]}, r"1\.\.6"),
    "too long": ({"lengths": [6, 7, 3]}, r"1\.\.6"),
    "too many lengths": ({"lengths": [6, 6, 3, 3]}, r"shape \(4,\)"),
    "negative step": ({"steps": [-1, 2], "y": torch.zeros(SEQ, 2, OUT)}, "one time index per target"),
    "step behind the end": ({"steps": [0, 6], "y": torch.zeros(SEQ, 2, OUT)}, "one time index per target"),
    "too few steps": ({"steps": [0, 5], "y": torch.zeros(SEQ, 3, OUT)}, "one time index per target"),
    "steps of each": ({"steps": [[0, 5]] * SEQ, "y": torch.zeros(SEQ, SEQ, OUT)}, "one time index per target"),
    "two outputs, one target": ({"y": torch.zeros(SEQ)}, "do not fit the outputs"),
    "classes of classes": (
        {"y": torch.zeros(SEQ, TIME, OUT, dtype=torch.long), "loss": "cross_entropy"},
        "class targets do not fit",
    ),
    "vector": ({"x": torch.zeros(TIME)}, "nothing to run on"),
}


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_meant_is_refused(case, model, x):
    options, complaint = BAD[case]
    arguments = {"x": x, "y": torch.zeros(SEQ, TIME, OUT, dtype=torch.float64)} | options
    with pytest.raises(LagreachError, match=complaint):
        lag_gradients(model, **arguments)


def test_one_output_has_no_classes(x, generator):
    model = small_model("diag_gate", generator, output_size=1)
    with pytest.raises(InputError, match="at least two outputs"):
        lag_gradients(model, x, torch.zeros(SEQ, TIME, dtype=torch.long), "cross_entropy")


def test_steps_within_the_lengths():
    valid = valid_steps([1, 3, 4], 3, 4, torch.device("cpu"))
    assert valid.int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert valid_steps(None, 2, 3, torch.device("cpu")).tolist() == [[True] * 3] * 2


def test_what_lies_beyond_the_lengths_may_be_anything(model, x):
    padded, lengths = x.clone(), [2, 6, 5]
    padded[0, 2:] = torch.nan
    rates = effective_rates(model, padded, [0, 1, 4], lengths=lengths)
    torch.testing.assert_close(rates.rates, effective_rates(model, x, [0, 1, 4], lengths=lengths).rates)
    padded[0, 1] = torch.inf
    with pytest.raises(InputError, match="the input x"):
        effective_rates(model, padded, [0, 1], lengths=lengths)


def test_a_memory_that_nobody_reads_has_no_gradient(x, generator):
    class Blind(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.read = nn.GRU(3, 4, batch_first=True), nn.Linear(3, OUT)

        def forward(self, x):
            self.memory(x)
            return self.read(x)

    result = lag_gradients(Blind().double(), x, normal(generator, SEQ, TIME, OUT))
    assert all((grad == 0).all() for grad in result.total().values())


def test_one_sequence_is_enough_for_a_model_of_ones_own(x, generator):
    """The model is run on a few sequences to be understood: there may be just one."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.read = nn.GRU(3, 4, batch_first=True), nn.Linear(4, OUT)

        def forward(self, x):
            if len(x) == 0:
                raise ValueError("nothing to read")
            return self.read(self.memory(x)[0])

    torch.manual_seed(0)
    model, y = Reader().double(), normal(generator, 1, TIME, OUT)
    expected = autograd_gradient(model, (model(x[:1]) - y).square().mean())
    totals = lag_gradients(model, x[:1], y).total()
    assert len(totals) == 4  # the weights of the recurrence
    for name, grad in totals.items():
        torch.testing.assert_close(grad, expected[name], **EXACT)
