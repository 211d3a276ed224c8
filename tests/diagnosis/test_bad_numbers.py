"""Numbers that no diagnosis can be made of are refused, or named as the cause: huge, NaN, constant, overflowing."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.errors import InputError
from lagreach.gradients.significance import flip_test


class Net(nn.Module):
    def __init__(self, kind="LSTM", name="layer"):
        super().__init__()
        torch.manual_seed(0)
        self.name = name
        self.add_module(name, getattr(nn, kind)(1, 8, batch_first=True))
        self.readout = nn.Linear(8, 1)

    def forward(self, x):
        return self.readout(getattr(self, self.name)(x)[0])


def data(sequences=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, 12, 1, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0)) + 0.1 * torch.randn(sequences, 12, 1, generator=generator)
    return x, y


def test_gradients_that_overflow_are_not_called_dependences():
    """Inputs and targets of 1e30 once gave p = 0 at every lag."""
    x, y = data()
    with pytest.raises(InputError, match="lag gradients of layer overflow") as error:
        lagreach.diagnose(Net(), (1e30 * x, 1e30 * y), lags=[0, 1, 3])
    assert "inputs of this layer are of size 1e+30" in str(error.value)
    with pytest.raises(InputError, match="overflow"):
        flip_test(np.full((8, 2, 3), np.nan), flips=99, generator=np.random.default_rng(0))


@pytest.mark.thorough
def test_inputs_that_saturate_everything_are_named():
    x, y = data()
    window = lagreach.diagnose(Net(), (1e30 * x, y), lags=[0, 1, 3]).layers[0].window
    assert window.dependences == ()
    assert any("its inputs are of size 1e+30: scale them" in warning for warning in window.warnings)
    dead = Net()
    nn.init.zeros_(dead.readout.weight)
    window = lagreach.diagnose(dead, (x, y), lags=[0, 1, 3]).layers[0].window
    assert any(warning.endswith("or nothing reads them") for warning in window.warnings)
    usual = lagreach.diagnose(Net(), (x, y), lags=[0, 1, 3]).layers[0].window
    assert not any("no gradient reaches" in warning for warning in usual.warnings)


@pytest.mark.parametrize(("kind", "seed"), [("LSTM", 1), ("LSTM", 4), ("GRU", 3)])
def test_inputs_that_leave_gradients_at_rounding_are_named(kind, seed):
    """They once were a sum that does not add up, for a detach() that is not there, or an OverflowError."""
    torch.manual_seed(seed)
    x = torch.randn(64, 16, 1)
    y = torch.nn.functional.pad(x[:, :-3], (0, 0, 3, 0)) + 0.1 * torch.randn(64, 16, 1)
    model = nn.Sequential(getattr(nn, kind)(1, 8, batch_first=True), First(), nn.Linear(8, 1))
    diagnosis = lagreach.diagnose(model, (1e5 * x, y), lags=[0, 3, 8])
    assert any("is saturated" in said and "scale the inputs to about one" in said for said in diagnosis.warnings)


def test_targets_whose_squares_overflow_leave_no_warning_of_numpy():
    x, y = data()
    reliance = lagreach.diagnose(Net(), (x, 1e30 * y), lags=[0, 3]).layers[0].window.reliance
    assert np.isnan(reliance.explained)


class First(nn.Module):
    def forward(self, result):
        return result[0]


@pytest.mark.parametrize("double", [False, True])
def test_large_inputs_are_no_fault_where_units_follow_them(double):
    x, y = data()
    model = Exploding(0.5).double() if double else Exploding(0.5)
    assert not any("saturated" in said for said in lagreach.diagnose(model, (1e5 * x, y), lags=[0, 1]).warnings)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", [0, 1, 40])
def test_inputs_that_are_no_numbers_are_named_wherever_they_are(where, value):
    x, y = data()
    x[where, 5] = value
    with pytest.raises(InputError, match="the input x holds a value that is not finite") as error:
        lagreach.diagnose(Net(), (x, y), lags=[0, 1])
    assert f"[{where}, 5, 0]" in str(error.value)


@pytest.mark.thorough
def test_padding_may_hold_anything():
    x, y = data()
    lengths = torch.full((64,), 9)
    windows = []
    for fill in (0.0, torch.nan):
        x[:, 9:] = fill
        model = lagreach.GatedRNN("gru", 1, 6, 1, generator=torch.Generator().manual_seed(0))
        windows.append(lagreach.diagnose(model, {"x": x, "y": y, "lengths": lengths}, lags=[0, 3]).layers[0].window)
    np.testing.assert_array_equal(windows[0].probe.sequences, windows[1].probe.sequences)


@pytest.mark.parametrize("course", ["constant", "the same for all"])
@pytest.mark.parametrize("shape", [(12, 1), (1,)])
def test_targets_that_are_the_same_everywhere_are_refused(course, shape):
    x, _ = data()
    y = torch.full((64, *shape), 1.5)
    if course != "constant":
        y = y * torch.arange(1.0, 1 + y[0].numel()).view(shape)
    shown = "1.5 throughout" if course == "constant" or shape == (1,) else "the same course over time"
    for asked in (lagreach.diagnose, lagreach.cost):
        with pytest.raises(InputError, match="the targets are the same in every sequence") as error:
            asked(Net() if len(shape) > 1 else lagreach.GatedRNN("gru", 1, 4, 1), (x, y), lags=[0, 1])
        assert shown in str(error.value)
    lagreach.diagnose(lagreach.GatedRNN("gru", 1, 4, 1), (x, y), lags=[0, 1], signal="gradient")  # needs no difference


def test_targets_that_differ_late_or_only_where_they_count():
    x, _ = data()
    y = torch.ones(64, 12, 1)
    y[63, 4] = 2.0
    lagreach.diagnose(Net(), (x, y), lags=[0, 1])
    mask = torch.ones(64, 12)
    mask[63, 4] = 0
    with pytest.raises(InputError, match="the targets are the same"):
        lagreach.diagnose(Net(), {"x": x, "y": y, "mask": mask}, lags=[0, 1])
    with pytest.raises(InputError, match="the targets are the same"):
        lagreach.diagnose(Net(), {"x": x, "y": y, "lengths": torch.full((64,), 4)}, lags=[0, 1])


class Exploding(nn.Module):
    """A relu network whose states double at every step."""

    def __init__(self, growth):
        super().__init__()
        self.layer, self.readout = nn.RNN(1, 4, nonlinearity="relu", batch_first=True), nn.Linear(4, 1)
        with torch.no_grad():
            self.layer.weight_hh_l0.copy_(growth * torch.eye(4))
            self.layer.weight_ih_l0.fill_(1.0)
            self.layer.bias_ih_l0.zero_()
            self.layer.bias_hh_l0.zero_()

    def forward(self, x):
        return self.readout(self.layer(x)[0])


def test_states_that_overflow_are_named():
    x, y = data()
    for model in (Exploding(1e9), Exploding(1e9).double()):
        scaled = x.abs() if model.readout.weight.dtype == torch.float32 else 1e290 * x.abs().double()
        with pytest.raises(InputError, match="the output of the model is not finite") as error:
            lagreach.diagnose(model, (scaled, y), lags=[0, 1])
        assert "its states overflow" in str(error.value)
    late = 1 + x.abs()
    late[:30] = 0  # the first sequences show nothing
    with pytest.raises(InputError, match="the states of the recurrence overflow") as error:
        lagreach.diagnose(Exploding(1e9), (late, y), lags=[0, 1])
    assert "inf after step 5, in float32" in str(error.value)
    with pytest.raises(InputError, match="the states of the recurrence overflow"):
        lagreach.lag_gradients(Exploding(1e9), late, y)


def test_weights_that_are_no_numbers_are_named():
    model, (x, y) = Net(), data()
    with torch.no_grad():
        model.readout.weight[0, 2] = torch.nan
    with pytest.raises(InputError, match=r"the weight readout\.weight holds a value that is not finite"):
        lagreach.diagnose(model, (x, y), lags=[0, 1])


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("seed", [2**70, -1, 1.5])
def test_seeds_that_no_generator_takes_are_refused(seed):
    with pytest.raises(InputError, match="seed is a whole number"):
        lagreach.diagnose(lagreach.GatedRNN("gru", 1, 4, 1), data(), lags=[0, 1], seed=seed)
    with pytest.raises(InputError, match="seed is a whole number"):
        lagreach.testing.check_cell("gru", seed=seed)
    lagreach.diagnose(lagreach.GatedRNN("gru", 1, 4, 1), data(20), lags=[0, 1], seed=2**63 - 1)


def test_names_that_files_cannot_hold(tmp_path):
    diagnosis = lagreach.diagnose(Net(name="a\0b"), data(), lags=[0, 1])
    diagnosis.save(tmp_path / "found.nc")
    again = lagreach.load(tmp_path / "found.nc")
    assert again.layers[0].name == diagnosis.layers[0].name == "a\\0b"
