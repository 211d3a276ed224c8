"""A model is left as it was: by interrupts at any moment, by forwards that write into what they keep, inside no_grad."""

import random
import subprocess
import sys

import pytest
import torch
from torch import nn

import lagreach
from lagreach.adapters.as_it_was import AsItWas, leaves_as_it_was

EXCHANGING = ("calling.py", "kept.py", "as_it_was.py", "contextlib.py", "stateless.py", "_named_member_accessor.py")
LOOK = {"lags": [0, 3], "outputs": "per step"}
# interrupts of what is being thrown away are lost
INTERRUPTED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Keeping(nn.Module):
    """A recurrent layer that goes on from the state of the call before."""

    def __init__(self):
        super().__init__()
        self.layer, self.readout, self.h = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1), None

    def forward(self, x):
        out, h = self.layer(x, self.h)
        self.h = h.detach()
        return self.readout(out)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.readout = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0])


def attending():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.Sequential(nn.Linear(2, 4), nn.TransformerEncoder(layer, 1), nn.Linear(4, 1))


@pytest.fixture
def data(generator):
    x = torch.randn(48, 10, 2, generator=generator)
    noise = torch.randn(48, 10, 1, generator=generator)
    return x, nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0)) + 0.3 * noise


def state_of(model):
    """All that may change, the very same objects and their values."""
    own = [
        (name, value, list(value.items()) if isinstance(value, dict) else value)
        for part in model.modules()
        for name, value in vars(part).items()
    ]
    return (
        [(name, id(value), [id(one) for _, one in inside] if isinstance(value, dict) else 0) for name, value, inside in own],
        [(p.requires_grad, id(p.grad)) for p in model.parameters()],
        [t.tolist() for t in model.state_dict().values()],
        (torch.is_grad_enabled(), torch.get_num_threads(), torch.backends.cudnn.enabled),
    )  # fmt: skip


def count_calls(work, at=None):
    """Calls of Python functions that exchange something for a while; at one of them comes an interrupt."""
    seen = 0

    def look(frame, event, _):
        nonlocal seen
        if event in ("call", "return") and frame.f_code.co_filename.endswith(EXCHANGING):
            seen += 1
            if seen == at:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen


LOOKS = {
    "forecast": (
        Recurrent,
        lambda m, xy: lagreach.forecast(m, xy, 100, [0, 3], directions=8, derivatives="difference"),
    ),
    "whole model": (attending, lambda m, xy: lagreach.diagnose(m, xy, **LOOK)),
    "kept state": (Keeping, lambda m, xy: lagreach.diagnose(m, xy, **LOOK)),
    "cost": (attending, lambda m, xy: lagreach.cost(m, xy, **LOOK)),
    "retention": (Recurrent, lambda m, xy: lagreach.retention(m, xy[0])),
    "watch": (Recurrent, lambda m, xy: lagreach.watch(m, xy, **LOOK).step()),
}


QUICK_LOOKS = ("forecast", "cost")


@INTERRUPTED
@pytest.mark.parametrize(
    "kind", [*QUICK_LOOKS, *(pytest.param(k, marks=pytest.mark.thorough) for k in LOOKS if k not in QUICK_LOOKS)]
)
def test_an_interrupt_at_any_moment_leaves_a_model_as_it_was(kind, data):
    make, look = LOOKS[kind]
    model = make()
    next(model.parameters()).requires_grad_(False)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    look(model, data)  # what is compiled, is compiled
    before = state_of(model)
    moments = count_calls(lambda: look(model, data))
    drawn = random.Random(0)
    for moment in sorted(drawn.sample(range(1, moments), min(moments - 1, 6))):
        count_calls(lambda: look(model, data), at=moment)
        assert state_of(model) == before, moment


@INTERRUPTED
def test_an_interrupt_while_a_model_is_put_back_is_no_harm():
    model = Recurrent()
    before = state_of(model)

    @leaves_as_it_was
    def damage(model):
        model.eval()
        model.readout.forward = lambda x: x
        model.layer._parameters["weight_ih_l0"] = torch.zeros(12, 2)
        model.layer.register_forward_hook(lambda *_: None)
        model.readout.bias.requires_grad_(False)
        torch.set_grad_enabled(False)

    moments = count_calls(lambda: damage(model))
    assert moments > 20
    for moment in range(3, moments + 1):
        count_calls(lambda: damage(model), at=moment)
        assert state_of(model) == before, moment


def test_contexts_that_an_interrupt_left_open_undo_nothing_later(data):
    model = Recurrent()

    @leaves_as_it_was
    def look(model):
        def end(frame, event, _):
            if (
                event == "call"
                and frame.f_code.co_name == "__exit__"
                and frame.f_code.co_filename.endswith("contextlib.py")
            ):
                raise KeyboardInterrupt

        model.eval()
        with lagreach.callbacks.training_untouched(model):
            sys.setprofile(end)

    with pytest.raises(KeyboardInterrupt) as interrupt:
        look(model)
    sys.setprofile(None)
    assert model.training
    del interrupt
    assert model.training


class Counting(nn.Module):
    """Writes into a buffer and into a tensor that it keeps, at every call."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.register_buffer("calls", torch.zeros(()))
        self.seen = torch.zeros(2)

    def forward(self, x):
        self.calls += 1
        self.seen.data += 1
        return self.inside(x)


@pytest.mark.parametrize("inside", [Recurrent, attending])
@pytest.mark.parametrize("function", ["diagnose", "forecast", "cost", "retention"])
def test_what_a_forward_writes_into_has_its_values_again(inside, function, data):
    model = Counting(inside())
    if function == "retention":
        if inside is attending:
            pytest.skip("which has no recurrent layer")
        lagreach.retention(model, data[0])
    else:
        options = {"directions": 8} if function == "forecast" else {}
        getattr(lagreach, function)(model, data, **LOOK, **options)
    assert (model.calls, model.seen.tolist()) == (0, [0, 0])


@pytest.mark.parametrize("inside", [Recurrent, attending])
@pytest.mark.parametrize("function", ["diagnose", "forecast", "cost"])
def test_torchs_random_state_stays(inside, function, data):
    model = nn.Sequential(nn.Dropout(0.1), inside(), nn.Dropout(0.1))
    before = torch.get_rng_state()
    options = {"directions": 8} if function == "forecast" else {}
    getattr(lagreach, function)(model, data, **LOOK, **options)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_is_run_in_evaluation_mode_alone(data):
    modes = set()

    class Seen(nn.Module):
        def forward(self, x):
            modes.add(self.training)
            return x

    for inside in (Recurrent, attending):
        model = nn.Sequential(inside(), Seen())
        lagreach.diagnose(model, data, **LOOK)
        lagreach.forecast(model, data, **LOOK, directions=8)
        lagreach.cost(model, data, **LOOK)
    assert modes == {False}


@pytest.mark.parametrize("shown", ["print(made)", "made.report('page.html')"])
def test_pythons_random_state_stays_when_results_are_shown(shown, tmp_path):
    code = f"""
import random, torch, lagreach
x = torch.randn(32, 8, 1)
before = random.getstate()
made = lagreach.diagnose(lagreach.GatedRNN("diag_gate", 1, 4, 1), (x, x), lags=[0, 3], progress=True)
assert random.getstate() == before, "diagnosed"
{shown}
assert random.getstate() == before, "shown"
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)


@pytest.mark.parametrize("inside", [Recurrent, attending])
def test_no_grad_around_it_does_no_harm(inside, data):
    model = inside()

    def looks():
        torch.manual_seed(0)
        diagnosis = lagreach.diagnose(model, data, **LOOK)
        forecast = lagreach.forecast(model, data, **LOOK, directions=8)
        advice = lagreach.advise(model, data, 3, sequences=100, outputs="per step", directions=8)
        return (
            str(diagnosis.window()),
            forecast.readable.values.tolist(),
            advice.share,
            lagreach.cost(model, data, **LOOK).lags,
        )

    with torch.no_grad():
        inside_it = looks()
        assert not torch.is_grad_enabled()
    assert str(inside_it) == str(looks())


def test_lazy_modules_stay_what_the_first_run_makes_of_them():
    model = nn.Sequential(nn.LazyLinear(3))
    before = AsItWas(model)
    model(torch.ones(1, 2))
    before.restore()
    assert model(torch.ones(1, 2)).shape == (1, 3)
