"""Models that hand their input to one recurrent layer of torch and its states to a readout, and those that only look like it."""

import copy

import pytest
import torch
from torch import nn

from lagreach.adapters.calling import default_call
from lagreach.adapters.straight import Straight
from lagreach.data.batch import Batch

KINDS = ("LSTM", "GRU", "RNN")


class Plain(nn.Module):
    """A layer and a readout; whoever inherits from it puts something in between."""

    def __init__(self, kind="LSTM", outputs=1, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, kind)(3, 5, batch_first=True, **options)
        self.read, self.drop = nn.Linear(5 * (1 + options.get("bidirectional", False)), outputs), nn.Dropout(0.5)

    def forward(self, x):
        return self.read(self.layer(x)[0])


class WithState(Plain):
    """Also returns the state, and has a dropout that does nothing in evaluation."""

    def forward(self, x):
        states, last = self.layer(x)
        return self.read(self.drop(states)), last


def seen(model, x):
    batch = Batch(x, x[..., :1])
    return Straight.of(model.eval(), model.read, batch, default_call)


def inputs(sequences=4, scale=1.0):
    return scale * torch.randn(sequences, 70, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", [Plain, WithState])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "dropout": 0.3}])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_run_as_torch_runs_it(kind, options, form):
    model = form(kind, **options)
    straight, x = seen(model, inputs(2)), inputs(40, 3.0)
    target, share, index = torch.randn(40, 70), torch.rand(40, 70), torch.randint(0, 70, (40, 6))
    with torch.no_grad():
        features = model.layer(x)[0]
        expected = model.read(features)
    output, sums, picked = straight.output_and_sums(x, target, share, index)
    torch.testing.assert_close(output, expected[..., 0])
    torch.testing.assert_close(sums, ((share * (target - output))[..., None] * features).sum(1))
    torch.testing.assert_close(picked, features[torch.arange(40)[:, None], index])
    for ours, theirs in zip(straight.output_and_features(x), (expected, features), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not ours.requires_grad


def test_weights_are_those_of_the_moment():
    model, x = Plain("GRU", 2), inputs()
    straight = seen(model, x)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
        torch.testing.assert_close(straight.output_and_features(x)[0], model(x))
    index = torch.zeros(4, 1, dtype=torch.long)
    assert straight.output_and_sums(x, x[..., 0], x[..., 0], index) is None  # two outputs


class Clamped(Plain):
    """Numbers do not tell: no input of a small sample, and no state at all, is as large as that."""

    def forward(self, x):
        return self.read(self.layer(x.clamp(-100, 100))[0])


class ClampedStates(Plain):
    def forward(self, x):
        return self.read(self.layer(x)[0].clamp(-1, 1))


class ClampedOutput(Plain):
    def forward(self, x):
        return self.read(self.layer(x)[0]).clamp(-100, 100)


class InPlace(Plain):
    def forward(self, x):
        return self.read(self.layer(x.clamp_(-100, 100))[0])


class StatesInPlace(Plain):
    def forward(self, x):
        return self.read(self.layer(x)[0].clamp_(-1, 1))


class OutputInPlace(Plain):
    def forward(self, x):
        return self.read(self.layer(x)[0]).clamp_(-100, 100)


class GivenState(Plain):
    def forward(self, x):
        zeros = x.new_zeros(1, len(x), 5)
        return self.read(self.layer(x, (zeros, zeros))[0])


class Twice(Plain):
    def forward(self, x):
        self.layer(x)
        return self.read(self.layer(x)[0])


class LastStep(Plain):
    def forward(self, x):
        return self.read(self.layer(x)[0][:, -1])


class Turned(Plain):
    def forward(self, x):
        return self.read(self.layer(x.flip(1).flip(1))[0])


class Inference(Plain):
    @torch.inference_mode()
    def forward(self, x):
        return self.read(self.layer(x)[0])


class ByName(Plain):
    def forward(self, x):
        return self.read(self.layer(input=x)[0])


class TwoLayers(Plain):
    def __init__(self):
        super().__init__()
        self.other = nn.GRU(3, 5, batch_first=True)


class MissingValues(Plain):
    """Does nothing, unless a value is missing."""

    def forward(self, x):
        if (x == -999).any():
            x = x.masked_fill(x == -999, 0.0)
        return super().forward(x)


class ManySequences(Plain):
    def forward(self, x):
        return super().forward(x if len(x) <= 16 else -x)


class Counts(Plain):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x if self.calls < 8 else -x)


class BehindTheVersion(Plain):
    def forward(self, x):
        states = self.layer(x)[0]
        states.data[..., 0] = x[..., 0]
        return self.read(states)


class BehindNumpy(Plain):
    def forward(self, x):
        states = self.layer(x)[0]
        states.detach().numpy()[..., 0] = x[..., 0].numpy()
        return self.read(states)


class OutsideForward(Plain):
    def __call__(self, x):
        return super().__call__(x.abs())


class OtherWeights(Plain):
    def __init__(self):
        super().__init__()
        self.others = {name: 3 * weight.detach() for name, weight in self.layer.named_parameters()}

    def forward(self, x):
        return self.read(torch.func.functional_call(self.layer, self.others, (x,))[0])


class HalfInside(Plain):
    def forward(self, x):
        with torch.autocast("cpu"):
            return super().forward(x)


class WeightDrop(Plain):
    """Weights of the layer are computed before every run."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(self.layer.weight_hh_l0.detach())
        del self.layer._parameters["weight_hh_l0"]
        self.layer.weight_hh_l0 = self.raw.detach()

    def forward(self, x):
        dropped = torch.dropout(self.raw, 0.5, self.training)
        self.layer.weight_hh_l0 = self.layer._flat_weights[1] = dropped
        return super().forward(x)


FORMS = [
    Clamped, ClampedStates, ClampedOutput, InPlace, StatesInPlace, OutputInPlace, GivenState, Twice, LastStep, Turned,
    Inference, ByName, TwoLayers, MissingValues, ManySequences, Counts, BehindTheVersion, BehindNumpy, OutsideForward,
    OtherWeights, HalfInside, WeightDrop,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_only_looks_like_it_is_left_to_torch(form):
    assert seen(form(), inputs()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_weights_may_be_shared(kind):
    model, x = Plain(kind), inputs()
    model.layer.bias_hh_l0 = model.layer.bias_ih_l0
    with torch.no_grad():
        torch.testing.assert_close(seen(model, x).output_and_features(x)[0], model(x))


def test_layers_of_other_kinds_are_left_to_torch():
    assert seen(Plain(bidirectional=True), inputs()) is None
    time_first = Plain()
    time_first.layer.batch_first = False
    assert seen(time_first, inputs()) is None
    no_bias = Plain()
    no_bias.read.bias = None
    assert seen(no_bias, inputs()) is None
    weighed = Plain()
    nn.utils.parametrizations.weight_norm(weighed.read)
    assert seen(weighed, inputs()) is None


def test_nobody_looks_on():
    model, x = Plain(), inputs()
    straight, before = seen(model, x), copy.deepcopy(model)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    model.layer.register_forward_hook(lambda *call: None)
    assert straight.output_and_features(x) is None
    assert straight.output_and_sums(x, x[..., 0], x[..., 0], torch.zeros(4, 1, dtype=torch.long)) is None
    assert seen(model, x) is None
    assert [*before.state_dict()] == [*model.state_dict()]


def test_kernels_are_not_asked_for_what_they_do_not_know():
    rectified = Plain("RNN", nonlinearity="relu")
    assert seen(rectified, inputs()).output_and_features(inputs()) is None
