"""Outputs that belong to one anchor, whatever their shape: found by the states that feed them."""

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.gradients.output_anchors import AT_THE_END, PER_STEP, decide
from lagreach.transport.rollout import run

TIME = 12


class Net(nn.Module):
    """A GRU and what is made of its states."""

    def __init__(self, form, *, layers=1, bidirectional=False, horizon=TIME, values=1):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.values = form, values
        self.layer = nn.GRU(2, 6, num_layers=layers, bidirectional=bidirectional, batch_first=True)
        width = 6 * (1 + bidirectional)
        self.attend = nn.MultiheadAttention(width, 1, batch_first=True)
        self.readout = nn.Linear(width, values if form.startswith("step") or "attention" in form else horizon * values)
        if form == "convolution":
            self.readout = nn.Conv1d(width, values, 3, padding=1)

    def forward(self, x):
        states, last = self.layer(x)
        if self.form == "steps squeezed":
            return self.readout(states)[..., 0]
        if self.form == "steps":
            return self.readout(states)
        if self.form == "convolution":
            return self.readout(states.transpose(1, 2)).transpose(1, 2)
        if self.form in ("attention", "causal attention"):
            size = states.shape[1]
            mask = torch.ones(size, size).triu(1).bool() if self.form == "causal attention" else None
            return self.readout(self.attend(states, states, states, attn_mask=mask)[0])
        if self.form == "pooled":
            return self.readout(states.mean(1))
        forecast = self.readout(last[-1] if self.form == "h_n" else states[:, -1])
        return forecast if self.form == "flat" else forecast.unflatten(1, (-1, self.values))


def rollouts(net, y):
    batch = Batch(torch.randn(1, TIME, 2, generator=torch.Generator().manual_seed(0)), y[:1])
    return [run(view.bind(batch)) for view in find_views(net, batch)]


def zeros(*shape):
    return torch.zeros(1, *shape)


CASES = [
    (Net("steps"), zeros(TIME, 1), PER_STEP),
    (Net("steps squeezed"), zeros(TIME), PER_STEP),
    (Net("steps", layers=2, bidirectional=True), zeros(TIME, 1), PER_STEP),  # lower layers feed every output
    (Net("convolution"), zeros(TIME, 1), PER_STEP),
    (Net("causal attention"), zeros(TIME, 1), PER_STEP),
    (Net("attention", values=3), zeros(TIME, 3), PER_STEP),  # several values at every step
    (Net("flat"), zeros(TIME), AT_THE_END),
    (Net("h_n"), zeros(TIME, 1), AT_THE_END),
    (Net("forecast"), zeros(TIME, 1), AT_THE_END),
    (Net("forecast", values=3), zeros(TIME, 3), AT_THE_END),
    (Net("forecast", layers=2, bidirectional=True), zeros(TIME, 1), AT_THE_END),
    (Net("flat", horizon=5), zeros(5), AT_THE_END),
    (Net("forecast", horizon=5), zeros(5, 1), AT_THE_END),
    (Net("pooled", horizon=5, values=1), zeros(5), AT_THE_END),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("net", "y", "expected"), CASES, ids=lambda value: getattr(value, "form", None))
def test_gradients_tell_to_which_steps_outputs_belong(net, y, expected):
    assert decide(rollouts(net, y)) == expected


@pytest.mark.thorough
def test_where_both_are_possible_the_user_is_asked():
    x = torch.randn(24, TIME, 2, generator=torch.Generator().manual_seed(0))
    for net in (Net("pooled"), Net("attention")):
        y = torch.randn(24, TIME) if net.form == "pooled" else torch.randn(24, TIME, 1)
        with pytest.raises(InputError, match='pass outputs="per step"'):
            lagreach.diagnose(net, (x, y), lags=[0, 1])
        anchors = [
            lagreach.diagnose(net, (x, y), lags=[0, 1], outputs=which, lags_of="layers").layers[0].window.probe
            for which in (PER_STEP, AT_THE_END)
        ]
        assert (
            anchors[0].sequences < anchors[1].sequences
        ).all()  # a whole forecast that moves together is easier to see
    with pytest.raises(InputError, match="'per step' or 'at the end'"):
        lagreach.diagnose(Net("steps"), (x, x[..., :1]), lags=[0, 1], outputs="both")
    with pytest.raises(InputError, match="an output at every step"):
        lagreach.diagnose(Net("flat", horizon=5), (x, torch.randn(24, 5)), lags=[0, 1], outputs=PER_STEP)
    with pytest.raises(InputError, match='pass outputs="per step"'):
        lagreach.cost(Net("pooled"), (x, torch.randn(24, TIME)), lags=[0, 1])


def numbers(diagnosis):
    window = diagnosis.layers[0].window
    return {
        "N if present": window.probe.sequences,
        "N in the data": window.required.sequences,
        "rise": window.reliance.rise,
        "dependences": np.array(window.dependences),
        "gain": diagnosis.layers[0].fidelity.log10_exact.numpy(),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
def test_a_forecast_as_long_as_the_look_back_is_one_forecast(masked):
    """The shape of an output changes nothing: (N, T), (N, T, 1) and (N, 1, T) of the same network are one and the same."""

    class Shaped(nn.Module):
        def __init__(self, shape):
            super().__init__()
            torch.manual_seed(1)
            self.layer, self.readout, self.shape = nn.GRU(2, 6, batch_first=True), nn.Linear(6, TIME), shape

        def forward(self, x):
            return self.readout(self.layer(x)[0][:, -1]).reshape(len(x), *self.shape)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, TIME, 2, generator=generator)
    y = 0.5 * torch.randn(64, TIME, generator=generator)
    y[:, :4] += x[:, -3, :1]
    diagnoses = []
    for shape in ((1, TIME), (TIME,), (TIME, 1)):
        data = {"x": x, "y": y.reshape(64, *shape)}
        if masked:
            data["mask"] = torch.ones(64, shape[0] if len(shape) > 1 else TIME)
        diagnoses.append(lagreach.diagnose(Shaped(shape), data, lags=[0, 2, 5]))
    assert diagnoses[0].settings["anchors"] == 1
    for other in diagnoses[1:]:
        for name, value in numbers(diagnoses[0]).items():
            np.testing.assert_allclose(numbers(other)[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.thorough
def test_masked_parts_of_a_forecast_do_not_count():
    """A forecast of which the last half is masked everywhere is a forecast of the first half, seen along half of a direction."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, TIME, 2, generator=generator)
    y = torch.randn(64, TIME, 1, generator=generator)
    mask = torch.ones(64, TIME)
    mask[:, TIME // 2 :] = 0
    moved = y.clone()
    moved[:, TIME // 2 :] += 100
    net = Net("forecast")
    diagnoses = [lagreach.diagnose(net, {"x": x, "y": target, "mask": mask}, lags=[0, 1]) for target in (y, moved)]
    np.testing.assert_allclose(*(one.layers[0].window.probe.sequences for one in diagnoses), rtol=1e-6)
    assert np.isfinite(diagnoses[0].layers[0].window.probe.sequences).all()


@pytest.mark.thorough
def test_lengths_do_not_cut_a_forecast_made_at_the_end():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, TIME, 2, generator=generator), torch.randn(64, TIME, 1, generator=generator)

    def call(model, batch):
        packed = nn.utils.rnn.pack_padded_sequence(batch.x, batch.lengths, batch_first=True, enforce_sorted=False)
        return model.readout(model.layer(packed)[1][-1]).unflatten(1, (-1, 1))

    lengths = torch.randint(4, TIME + 1, (64,), generator=generator)
    data = {"x": x, "y": y, "lengths": lengths}
    changed = {
        "x": x,
        "y": torch.where(torch.arange(TIME)[None, :, None] < lengths[:, None, None], y, y + 3),
        "lengths": lengths,
    }
    one, other = (
        lagreach.diagnose(Net("h_n"), inputs, lags=[0, 1], call=call).layers[0].window for inputs in (data, changed)
    )
    # what lies beyond the lengths of the inputs is forecast all the same
    assert not np.allclose(one.delta, other.delta)
