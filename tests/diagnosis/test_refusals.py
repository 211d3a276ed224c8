"""Models and data that cannot be diagnosed: whichever function meets them says what is wrong, and where."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import lagreach
from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError


class Recurrent(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.layer, self.read, self.norm = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1), norm

    def forward(self, x):
        hidden = self.layer(x)[0]
        return self.read(hidden if self.norm is None else self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Convolution(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.layer, self.read, self.norm = nn.Conv1d(2, 4, 3), nn.Linear(4, 1), norm

    def forward(self, x):
        hidden = self.layer(nn.functional.pad(x.transpose(1, 2), (2, 0)))
        return self.read((hidden if self.norm is None else self.norm(hidden)).transpose(1, 2))


class Around(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x)


asks = pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.cost, lagreach.forecast])
kinds = pytest.mark.parametrize("kind", [Recurrent, Convolution])


def series(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(40, 10, 2, generator=generator), torch.randn(40, 10, 1, generator=generator)


@pytest.mark.filterwarnings("ignore")  # of torch about tracing
@asks
@kinds
def test_torchscript_is_refused_by_name(ask, kind):
    x, _ = series()
    scripted = (torch.jit.script(kind()), torch.jit.trace(kind(), x), Around(torch.jit.script(kind())))
    for model, name in zip(scripted, ("the model", "the model", "inside"), strict=True):
        with pytest.raises(UnsupportedError, match=f"TorchScript.*\n.*{name}: "):
            ask(model, series())


@asks
@kinds
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_without_statistics_is_not_sent_to_evaluation_mode(ask, kind, training):
    model = kind(nn.BatchNorm1d(4, track_running_stats=False)).train(training)
    with pytest.raises(UnsupportedError, match="without running statistics") as refused:
        ask(model, series())
    assert "eval()" not in str(refused.value)


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
@kinds
@pytest.mark.parametrize("sequence", [0, 33])
@pytest.mark.parametrize("lengths", [False, True])
def test_a_value_that_is_not_finite_is_found_where_the_data_have_it(ask, kind, sequence, lengths):
    parts = ("x", "y") if sequence else ("x",)
    for part in parts:
        x, y = series()
        (x if part == "x" else y)[sequence, 3, 0] = torch.nan
        data = {"x": x, "y": y} | ({"lengths": torch.full((40,), 9)} if lengths and kind is Recurrent else {})
        with pytest.raises(
            InputError, match=rf"{part} holds a value.*\n.*nan at index \[{sequence}, 3, 0\] of the data"
        ):
            ask(kind(), data)


@dataclass(frozen=True)
class TooWide(Cell):
    """A cell whose step returns one unit more than it is given."""

    name: ClassVar[str] = "too wide"

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size + 1, input_size), "U_h": (hidden_size + 1, hidden_size)}

    def step(self, x, s, params):
        return torch.tanh(nn.functional.linear(x, params["W_h"]) + nn.functional.linear(s, params["U_h"]))


@dataclass(frozen=True)
class TooNarrow(TooWide):
    """A cell whose weights do not fit each other."""

    name: ClassVar[str] = "too narrow"

    def shapes(self, input_size, hidden_size):
        return {"W_h": (hidden_size, input_size), "U_h": (hidden_size - 2, hidden_size)}


@pytest.mark.parametrize(("cell", "said"), [(TooWide, "returns a state of another shape"), (TooNarrow, "does not run")])
def test_a_cell_whose_step_has_the_wrong_width_is_refused(cell, said):
    """It was an error of torch about matrices."""
    x, model = torch.randn(32, 8, 2), lagreach.GatedRNN(cell(), 2, 4, 1)
    for ask in (lagreach.diagnose, lagreach.cost):
        with pytest.raises(InputError, match=f"the step of {cell.__name__} {said}"):
            ask(model, (x, x[..., :1]), lags=[0, 1])


class Dividing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.read = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0]) / (1 // 0)


def advise(model, data, **options):
    options.pop("lags", None)
    return lagreach.advise(model, data, 1, **options)


everywhere = pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.cost, lagreach.forecast, advise])


@pytest.mark.usefixtures("_as_users_run_it")
@everywhere
@pytest.mark.parametrize("value", [3, None, 2.5])
def test_lags_that_are_no_list_are_refused_by_name(ask, value):
    """They were a TypeError; a watch swallowed it until the first diagnosis."""
    for name in ("require",) if ask is advise else ("lags", "require"):
        with pytest.raises(InputError, match=f"{name} must be a sequence of integers\n.*{name}={value!r}") as refused:
            ask(Recurrent(), series(), **{name: value})
        assert (f"pass {name}=[3]" in str(refused.value)) == (value == 3)
        with pytest.raises(InputError, match=f"{name} must be a sequence"):
            lagreach.watch(Recurrent(), series(), **{name: value}).diagnose()


@pytest.mark.usefixtures("_as_users_run_it")
def test_lags_may_be_iterated_over_once():
    """The second of two layers found none left."""
    model = nn.Sequential(Recurrent(), nn.Linear(1, 2), Recurrent())
    once = lagreach.diagnose(model, series(), lags=iter([0, 2]), require=iter([5]), lags_of="layers")
    assert len(once.layers) == 2
    assert all(layer.window.required.lags.tolist() == [0, 2, 5] for layer in once.layers)


@everywhere
def test_whatever_a_model_raises_is_said_of_the_data(ask):
    for call in (None, lambda model, batch: model(batch.x)):
        with pytest.raises(InputError, match=r"the model does not run on the data\n.*ZeroDivisionError") as refused:
            ask(Dividing(), series(), call=call)
        assert isinstance(refused.value.__cause__, ZeroDivisionError)


@everywhere
@kinds
def test_models_and_data_without_values_are_refused(ask, kind):
    x, y = series()
    with pytest.raises(UnsupportedError, match=r"the weights of the model have no values\n.*meta device"):
        ask(kind().to("meta"), (x, y))
    for data in ((x.to("meta"), y), (x, y.to("meta"))):
        with pytest.raises(InputError, match=r"these tensors have no values"):
            ask(kind(), data)


@everywhere
@kinds
def test_there_is_no_answer_where_there_are_no_gradients(ask, kind):
    with torch.inference_mode(), pytest.raises(UnsupportedError, match=r"no gradients inside torch.inference_mode\(\)"):
        ask(kind(), series())
    with torch.inference_mode():
        made_inside = kind()
    with pytest.raises(UnsupportedError, match=r"made inside torch.inference_mode\(\)"):
        ask(made_inside, series())
    with pytest.raises((InputError, UnsupportedError), match="gradient"):
        ask(kind(), series(), call=lambda model, batch: model(batch.x).detach())


@everywhere
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_kind_are_refused_by_a_model_of_real_ones(ask, dtype):
    x, y = series()
    with pytest.raises(InputError, match=r"the model does not run on the data\n.*dtype"):
        ask(Recurrent(), ((4 * x.abs()).to(dtype), y))


@everywhere
def test_a_mask_that_is_no_mask_is_named(ask):
    """It was said that the targets are the same in every sequence."""
    x, y = series()
    for mask in (torch.zeros(40, 10), torch.zeros(40, 10, dtype=torch.bool)):
        with pytest.raises(InputError, match=r"the mask leaves out every step of every sequence"):
            ask(Recurrent(), (x, y, mask))
    for value in (-1.0, torch.nan, torch.inf, -1, 1j):
        with pytest.raises(InputError, match=r"the mask of the data holds a value.*\n.*at index \[0, 0\]"):
            ask(Recurrent(), (x, y, torch.full((40, 10), value)))


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
def test_a_sequence_without_a_step_that_counts_is_named_by_its_number(ask):
    x, y = series()
    for row in (0, 7):
        mask = torch.ones(40, 10)
        mask[row] = 0
        with pytest.raises(InputError, match=rf"a sequence has no step that counts\n.*sequence {row}\n"):
            ask(Recurrent(), (x, y, mask))


def test_targets_are_compared_where_they_count():
    """Sequences whose masks have no step in common with that of the first were taken for all alike."""
    x, y = series()
    mask = torch.zeros(40, 10)
    mask[:1, 2] = mask[1:, 5] = 1
    assert lagreach.cost(Recurrent(), (x, y, mask), lags=[0, 1]).available == 40


class Horizon(Recurrent):
    def forward(self, x):
        return super().forward(x)[..., None].expand(-1, -1, 3, -1)


@everywhere
def test_an_output_of_four_axes_says_what_to_do(ask):
    x, y = series()
    targets = y[..., None].expand(-1, -1, 3, -1)
    with pytest.raises(InputError, match=r"too many axes\n.*\n.*\n.*model\(batch.x\).flatten\(2\).*y.flatten\(2\)"):
        ask(Horizon(), (x, targets), lags=[0, 1])
    if ask is not advise:
        ask(Horizon(), (x, targets.flatten(2)), lags=[0, 1], call=lambda model, batch: model(batch.x).flatten(2))


class LastStep(Recurrent):
    def forward(self, x):
        return super().forward(x)[..., -1, :]


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.read = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 1)

    def forward(self, x):
        return self.read(self.attention(x, x, x)[0])


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.cost, lagreach.forecast, lagreach.advise])
@pytest.mark.parametrize("build", [Recurrent, LastStep, lambda: lagreach.GatedRNN("gru", 2, 4, 1), Attending])
def test_one_series_in_the_place_of_sequences_is_told_what_to_do(ask, build):
    """Torch's layers take (time, input) for one sequence: each step passed for a sequence."""
    with pytest.raises((InputError, UnsupportedError), match=r"one series(.|\n)*lagreach\.cut_series\(x, y, length\)"):
        ask(build(), (torch.randn(60, 2), torch.randn(60, 1)))


class OneFeature(Recurrent):
    """Adds the axis of the one feature itself, or runs sequence by sequence."""

    def __init__(self, one_by_one):
        super().__init__()
        self.layer, self.one_by_one = nn.GRU(1, 4, batch_first=True), one_by_one

    def forward(self, x):
        if self.one_by_one:
            return torch.stack([super(OneFeature, self).forward(row[:, None]) for row in x])
        return super().forward(x[..., None])


@pytest.mark.parametrize("one_by_one", [False, True])
def test_sequences_of_one_feature_may_lack_its_axis_where_the_model_adds_it(one_by_one):
    x, y = torch.randn(40, 10), torch.randn(40, 10)
    diagnosis = lagreach.diagnose(OneFeature(False), (x, y), lags=[0, 1], lags_of="model")
    assert diagnosis.layers[0].window.lags.tolist() == [0, 1]
    forecast = lagreach.forecast(OneFeature(one_by_one), (x, y), lags=[0, 1], weights="readout")
    assert bool((forecast.readable >= 0).all())  # of numbers, which NaN is none of


class TimeFirst(Recurrent):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(2, 4)


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
def test_a_layer_that_takes_time_first_is_refused(ask):
    """It goes on from sequence to sequence; the first one alone has the same output, and a forecast was made of it."""
    with pytest.raises(
        UnsupportedError, match=r"depends on (the other sequences|rows of another)(.|\n)*batch_first=True"
    ):
        ask(TimeFirst(), series())


@everywhere
@pytest.mark.parametrize("token", [12, -3])
def test_a_token_beyond_the_vocabulary_is_named_with_its_sequence(ask, token):
    x = torch.randint(0, 10, (40, 10), generator=torch.Generator().manual_seed(0))
    x[33, 4] = token
    model = nn.Sequential(nn.Embedding(10, 2), Recurrent())
    with pytest.raises(
        InputError, match=rf"beyond the vocabulary.*\n.*token {token}, in sequence 33\n.*0 to 9.*10 rows"
    ):
        ask(model, (x, torch.randn(40, 10, 1)))


class Clipping(Recurrent):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, x):
        return super().forward(self.table(x.clamp(max=9)))


def test_tokens_that_a_model_clips_are_its_own_affair():
    x = torch.randint(0, 20, (40, 10), generator=torch.Generator().manual_seed(0))
    made = lagreach.forecast(Clipping(), (x, torch.randn(40, 10, 1)), lags=[0, 1], weights="readout")
    assert bool((made.readable >= 0).all())


@pytest.mark.parametrize("ask", [lagreach.diagnose, lagreach.forecast])
def test_classes_without_their_loss_are_told_of_it(ask):
    x, _ = series()
    model = nn.Sequential(Recurrent(), nn.Linear(1, 3))
    for y in (torch.arange(40) % 3, (x[..., 0] > 0).long()):
        with pytest.raises(InputError, match=r'do not fit the outputs(.|\n)*loss="cross_entropy" if these are classes'):
            ask(model, (x, y))
