"""The protocol of adapters for gated linear layers: registration, traces, order of claims, the table in the docs."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, logsigmoid
from torch.testing import assert_close

import lagreach
from lagreach.adapters import find_views, scan_layer
from lagreach.adapters.families import families, scan_modules, table
from lagreach.adapters.kept import remembered
from lagreach.adapters.scan_cell import AffineStep, ScanCell, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, named_weights, register
from lagreach.data.batch import Batch
from lagreach.errors import ConformanceError, InputError, UnsupportedError
from lagreach.testing import check_adapter
from tests.adapters.scan_cases import SEQ, TIME, WIDTH, Wrapped, lag_totals, loop, mse, numbers, own_gradients

ROOT = Path(__file__).parent.parent.parent
X, Y = numbers(SEQ, TIME, 2), numbers(SEQ, TIME, 2, seed=1)


class Leaky(nn.Module):
    """A layer that nobody knows."""

    def __init__(self):
        super().__init__()
        self.keep, self.take = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return loop(logsigmoid(self.keep(x)), self.take(x))


@dataclass(frozen=True)
class LeakyCell(ScanCell):
    name: ClassVar[str] = "leaky"
    reads: ClassVar[tuple[str, ...]] = ("take.weight",)

    def write(self, x, params):
        keep, take = (linear(x, params[f"{n}.weight"], params[f"{n}.bias"]) for n in ("keep", "take"))
        return AffineStep(logsigmoid(keep), take)


class LeakyLayer(ScanLayer):
    family, packages, tested = "Leaky", "this test", "itself"

    def __init__(self, module):
        super().__init__(module)
        self.cell = LeakyCell(sizes_of(named_weights(module, ["keep.weight", "keep.bias", "take.weight", "take.bias"])))

    @classmethod
    def claims(cls, module):
        return isinstance(module, Leaky)

    decay_shape = property(lambda self: (WIDTH,))
    state_size = property(lambda self: WIDTH)

    def read_call(self, x):
        return ScanInputs(x, x.new_zeros(len(x), WIDTH), torch.ones(x.shape[:2], dtype=torch.bool))

    def output(self, scan_inputs, states):
        return states


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr(scan_layer, "_REGISTERED", [])


def test_a_layer_of_one_s_own():
    model = Wrapped(Leaky()).double()
    with pytest.raises(UnsupportedError, match="no recurrent layer"):
        find_views(model, Batch(X, Y))
    assert register(LeakyLayer) is LeakyLayer
    register(LeakyLayer)
    assert scan_layer.registered() == (LeakyLayer,)
    (report,) = check_adapter(model, X)
    assert str(report).startswith("Leaky: passed 7 checks")
    totals, expected = lag_totals(model, X, Y), own_gradients(model, mse(model, X, Y))
    for name, total in totals.items():
        assert_close(total, expected[name], rtol=1e-9, atol=1e-13)
    with pytest.raises(UnsupportedError, match="no bias"):
        LeakyLayer(model.layer).retaining(torch.ones(WIDTH))


@pytest.mark.usefixtures("_as_users_run_it")
def test_only_adapters_can_be_registered():
    with pytest.raises(InputError, match="subclass of ScanLayer"):
        register(Leaky)


class Mixing(LeakyLayer):
    """A step whose units see each other a little, too little for the output to show it."""

    def __init__(self, module):
        super().__init__(module)
        self.cell = MixingCell(self.cell.sizes)


@dataclass(frozen=True)
class MixingCell(LeakyCell):
    def step(self, x, s, params):
        return super().step(x, s, params) + 1e-7 * s.sum(-1, keepdim=True)


class Misnamed(LeakyLayer):
    axes = ("channel", "state")


class Halved(LeakyLayer):
    """Says that less is kept than the layer keeps."""

    def __init__(self, module):
        super().__init__(module)
        self.cell = HalvedCell(self.cell.sizes)


@dataclass(frozen=True)
class HalvedCell(LeakyCell):
    def write(self, x, params):
        written = super().write(x, params)
        return written._replace(log_decay=2 * written.log_decay)


@pytest.mark.parametrize(("adapter", "problem"), [(Mixing, "Jacobian"), (Misnamed, "needs a name")])
def test_wrong_adapters_do_not_conform(adapter, problem):
    register(adapter)
    with pytest.raises(ConformanceError, match=problem):
        check_adapter(Wrapped(Leaky()).double(), X)


def test_a_replay_that_is_wrong_is_noticed_at_once():
    register(Halved)
    with pytest.raises(InputError, match="does not compute"):
        check_adapter(Wrapped(Leaky()).double(), X)


def test_a_model_without_such_layers_has_no_adapter_to_check():
    with pytest.raises(InputError, match="no gated linear layer"):
        check_adapter(nn.LSTM(2, 3, batch_first=True), X.float())


def test_nothing_is_left_behind_after_an_exception():
    register(LeakyLayer)
    model = Wrapped(Leaky()).double().train()

    def broken(output, y, mask):
        raise RuntimeError("the loss fails")

    before = [(dict(m._forward_hooks), "forward" in vars(m), m.training) for m in model.modules()]
    with pytest.raises(InputError, match="the loss fails"):
        lagreach.lag_gradients(model, X, Y, broken)
    assert [(dict(m._forward_hooks), "forward" in vars(m), m.training) for m in model.modules()] == before


def test_a_forward_on_the_instance_is_put_back():
    """Some libraries wrap the forward of an instance; replacing it must not lose the wrapper."""
    register(LeakyLayer)
    model = Wrapped(Leaky()).double()
    plain, calls = model.layer.forward, []

    def wrapped(x):
        calls.append(1)
        return plain(x)

    model.layer.forward = wrapped
    lagreach.lag_gradients(model, X, Y)
    assert model.layer.forward is wrapped
    assert calls


def test_states_kept_as_attributes_are_put_back():
    layer = Leaky()
    layer.cache = None
    with remembered(layer):
        layer.cache = torch.ones(3)
    assert layer.cache is None


class CutLeaky(Leaky):
    """The same layer, whose state is cut from the graph before one step."""

    cut = 5

    def forward(self, x):
        state, states = x.new_zeros(len(x), WIDTH), []
        for t, x_t in enumerate(x.unbind(1)):
            state = torch.sigmoid(self.keep(x_t)) * (state.detach() if t == self.cut else state) + self.take(x_t)
            states.append(state)
        return torch.stack(states, 1)


def test_a_detach_inside_a_layer_is_refused():
    """Its output is the same, and its weights act nowhere else: only a gradient tells."""
    register(LeakyLayer)
    model = Wrapped(CutLeaky()).double()
    with pytest.raises(UnsupportedError, match=r"training gets lags 0 to 3 only(\n.*)*the last of 9 outputs"):
        lagreach.lag_gradients(model, X, Y)
    model.layer.cut = None
    lagreach.lag_gradients(model, X, Y)
    with torch.no_grad():  # forgets within a step: nothing would get past the cut
        model.layer.keep.bias.fill_(-60.0)
    model.layer.cut = 5
    lagreach.lag_gradients(model, X, Y)


def test_computed_weights_are_refused():
    register(LeakyLayer)
    layer = Leaky()
    nn.utils.parametrizations.weight_norm(layer.take)
    with pytest.raises(UnsupportedError, match="computed, not stored"):
        find_views(Wrapped(layer).double(), Batch(X, Y))


def test_a_layer_called_twice_is_refused():
    class Twice(Wrapped):
        def forward(self, x):
            return self.read(self.layer(self.layer(self.front(x))))

    register(LeakyLayer)
    with pytest.raises(UnsupportedError, match="called 2 times"):
        find_views(Twice(Leaky()).double(), Batch(X, Y))


def test_beside_a_recurrent_layer_of_torch():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.leaky = nn.GRU(2, WIDTH, batch_first=True), Leaky()

        def forward(self, x):
            return self.leaky(self.gru(x)[0])

    register(LeakyLayer)
    model = Both().double()
    views = find_views(model, Batch(X, Y))
    assert [(view.name, view.local) for view in views] == [("gru", True), ("leaky", True)]
    y = numbers(SEQ, TIME, WIDTH)
    expected = own_gradients(model, mse(model, X, y))
    for view in views:
        for name, total in lagreach.lag_gradients(view, X, y).total().items():
            assert_close(total, expected[name], rtol=1e-9, atol=1e-13)


def test_what_lies_inside_a_layer_belongs_to_it():
    class Outer(Leaky):
        def __init__(self):
            super().__init__()
            self.inner = Leaky()

    register(LeakyLayer)
    assert [path for path, *_ in scan_modules(nn.Sequential(Outer(), Leaky()))] == ["0", "1"]


@pytest.mark.thorough
def test_no_adapter_imports_the_package_it_is_for():
    """So taking a package away takes nothing else away."""
    packages = ["mambapy", "transformers", "minGRU_pytorch", "s5", "fla", "mamba_ssm", "xlstm", "einops"]
    code = f"import sys, lagreach.testing, lagreach.advice.gates; print(*[p for p in {packages!r} if p in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_table_in_the_documentation_is_generated():
    text = (ROOT / "docs" / "adapters.md").read_text()
    assert table() in text


def test_every_family_has_a_test_of_its_own():
    text = "\n".join(path.read_text() for path in (Path(__file__).parent / "layers").glob("test_*.py"))
    for family in families():
        module = family.__module__.rpartition(".")[2]
        assert (Path(__file__).parent / "layers" / f"test_{module}.py").exists()
        assert re.search(rf'"{re.escape(family.family)}"|REFUSED', text), family.family
