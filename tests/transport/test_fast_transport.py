"""Fast paths of transport beside the plain ones: closed-form pullbacks, compiled sweeps, shared transports."""

import dataclasses
import math
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from lagreach import GatedRNN, all_cells, effective_rates, fidelity
from lagreach._util.threads import one_thread
from lagreach.adapters.torch_cells import cell_of
from lagreach.cells import Cell
from lagreach.cells.stack import Stack
from lagreach.gradients.band_gradients import proportions
from lagreach.kernels.cpu import kept_run, pullback
from lagreach.papers.livi.matched import matched_statistic
from lagreach.transport import first_order, first_order_sums, joined
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.exact import exact_transport
from lagreach.transport.linearised import Autodiff, Closed, linearise
from lagreach.transport.rollout import rollout

ROWS, INPUT, HIDDEN = 9, 3, 4


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def recurrence_of(cells, generator, input_size=INPUT, hidden=HIDDEN):
    """A recurrence with random weights; only what `linearise` looks at."""
    names, params, width = [], {}, input_size
    for k, cell in enumerate(cells):
        shapes = cell.shapes(width, hidden)
        names.append({short: f"{k}.{short}" for short in shapes})
        params |= {f"{k}.{short}": 0.5 * normal(generator, *shape) for short, shape in shapes.items()}
        width = hidden
    model = GatedRNN("elman", input_size, hidden, 1, dtype=torch.float64)
    template = rollout(model, torch.zeros(1, 2, input_size, dtype=torch.float64)).recurrence
    return dataclasses.replace(template, stack=Stack(tuple(cells), hidden, tuple(names)), params=params)


def carried(part, delta, lags):
    """Copies of what exact transport gives for all weights."""
    transported = exact_transport(part, delta, lags, params=list(part.recurrence.params))
    return [(c.value().clone(), {n: g.clone() for n, g in grads.items()}) for c, grads in transported]


def built_in():
    for name, cls in all_cells().items():
        yield pytest.param((cls(),), id=name)
        if "layernorm" in {f.name for f in dataclasses.fields(cls)}:
            yield pytest.param((cls(layernorm=True),), id=f"{name}-layernorm")
    for module in (nn.LSTM, nn.GRU, nn.RNN):
        for bias in (True, False):
            yield pytest.param((cell_of(module(INPUT, HIDDEN, bias=bias)),), id=f"{module.__name__}-{bias}")
    yield pytest.param((cell_of(nn.RNN(INPUT, HIDDEN, nonlinearity="relu")),), id="relu")
    cells = all_cells()
    yield pytest.param((cells["lstm"](), cells["gru"](layernorm=True), cells["diag_gate"]()), id="three layers")
    yield pytest.param((cell_of(nn.LSTM(INPUT, HIDDEN)), cell_of(nn.LSTM(HIDDEN, HIDDEN))), id="nn.LSTM of two layers")


@pytest.mark.parametrize("cells", list(built_in()))
def test_closed_pullbacks_equal_autodiff(cells, generator):
    recurrence = recurrence_of(cells, generator)
    names = [n for n in recurrence.params if "u_h" not in n]  # which is left to autodiff
    x, s = normal(generator, ROWS, INPUT), normal(generator, ROWS, recurrence.stack.state_size)
    by, cotangent = normal(generator, ROWS, 2), normal(generator, *s.shape)
    pulled = []
    for linear in (linearise(recurrence, x, s, names), Autodiff(recurrence, x, s, names)):
        spread, before = torch.full((ROWS, linear.width), math.nan).double(), torch.full_like(s, math.nan)
        linear.spread(cotangent, spread)
        linear.state(cotangent, spread, before)
        at_once = torch.full_like(spread, math.nan), torch.full_like(s, math.nan)
        with one_thread():
            linear.back(cotangent, *at_once)
        for columns, state in (at_once, (spread, before)):
            sums = linear.weights(columns, linear.weighted(by), [slice(0, 1)], 1)[0]
            pulled.append((state, linear.flat(sums)))
    assert isinstance(linearise(recurrence, x, s, names), Closed)
    for other in pulled[1:]:
        torch.testing.assert_close(pulled[0], other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "names",
    [["0.W_i"], ["1.U_z", "1.b_r"], ["2.W_s"], ["2.b_h", "0.U_f", "1.W_h"], ["1.W_h", "1.W_z", "0.b_g"]],
    ids="-".join,
)
@pytest.mark.parametrize(
    "ranges", [[(0, 3)], [(1, 2)], [(0, 1), (1, 2), (2, 3)], [(0, 2), (2, 3)], [(0, 1), (2, 3)]], ids=str
)
def test_some_weights_of_some_layers_in_any_order(names, ranges, generator):
    """Of three layers that use different factors; the rows are three positions of three sequences."""
    cells = all_cells()
    recurrence = recurrence_of((cells["lstm"](), cells["gru"](), cells["diag_gate"]()), generator)
    x, s = normal(generator, ROWS, INPUT), normal(generator, ROWS, recurrence.stack.state_size)
    by, cotangent = normal(generator, ROWS, 2), normal(generator, *s.shape)
    flat = []
    for linear in (linearise(recurrence, x, s, names), Autodiff(recurrence, x, s, names)):
        spread = torch.full((ROWS, linear.width), math.nan).double()
        linear.spread(cotangent, spread)
        flat.append(linear.flat(linear.weights(spread, linear.weighted(by), [slice(*ends) for ends in ranges], 3)))
    assert isinstance(linearise(recurrence, x, s, names), Closed)
    assert flat[0].shape == (len(ranges), 2, sum(recurrence.params[name].numel() for name in names))
    torch.testing.assert_close(flat[0], flat[1], rtol=1e-12, atol=1e-12)


def test_what_a_closed_form_does_not_know_goes_through_autodiff(generator):
    class Leak(Cell):
        name = "leak"

        def shapes(self, input_size, hidden_size):
            return {"W_h": (hidden_size, input_size), "b_h": (hidden_size,)}

        def step(self, x, s, params):
            return 0.5 * s + nn.functional.linear(x, params["W_h"], params["b_h"]).sin() * s.cos()

    gated, diagonal = all_cells()["diag_gate"](), all_cells()["diag_elman"]()
    for cells, names in (((Leak(),), ["0.W_h"]), ((diagonal,), ["0.u_h"]), ((gated, Leak()), [])):
        recurrence = recurrence_of(cells, generator)
        x, s = normal(generator, ROWS, INPUT), normal(generator, ROWS, recurrence.stack.state_size)
        assert isinstance(linearise(recurrence, x, s, names), Autodiff)


KNOWN = [name for name in sorted(all_cells()) if name not in ("diag_elman", "min_gru")]  # these have no products


def stacks():
    """Layers that kernels know, one or several, with and without LayerNorm."""
    cells = all_cells()
    for name in KNOWN:
        yield pytest.param((cells[name](),), id=name)
        yield pytest.param((cells[name](layernorm=True),), id=f"{name}-layernorm")
    yield pytest.param((cells["lstm"](), cells["gru"](layernorm=True), cells["diag_gate"]()), id="three layers")
    yield pytest.param((cells["torch_gru"](layernorm=True), cells["lstm"]()), id="two layers")


class TestCompiledPullbacks:
    """A layer is pulled back by one compiled call, a few rows at a time."""

    def pulled(self, generator, cells, dtype=torch.float32, hidden=HIDDEN, count=ROWS, scale=1.0, whole=True):
        """Spreads, as far as weights read them, and gradient one step before: in one call, and one after the other."""
        recurrence = recurrence_of(cells, generator, hidden=hidden)
        params = {name: p.to(dtype) for name, p in recurrence.params.items()}
        recurrence, size = dataclasses.replace(recurrence, params=params), recurrence.stack.state_size
        x, s = normal(generator, count, INPUT).to(dtype), normal(generator, count, size).to(dtype)
        cotangent = (scale * normal(generator, count, size)).to(dtype)
        linear = linearise(recurrence, x, s, list(params))
        ways = [(cotangent.new_full((count, linear.width), math.nan), torch.full_like(s, math.nan)) for _ in range(2)]
        with one_thread():  # on several, a whole spread is left to torch
            linear.back(cotangent, *ways[0], whole=whole)
        linear.spread(cotangent, ways[1][0])
        linear.state(cotangent, *ways[1])

        def read(spread):
            return [own[:, :used] for own, used in zip(linear._split(spread)[0], linear.columns, strict=True)]

        return linear.compiled, *((read(spread), before) for spread, before in ways)

    @pytest.mark.parametrize("count", [1, 64, 200])
    @pytest.mark.parametrize("hidden", [1, 5, 64, 67])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("cells", list(stacks()))
    def test_equal_plain_torch(self, generator, cells, dtype, hidden, count):
        for whole in (True, False):
            compiled, at_once, plain = self.pulled(generator, cells, dtype, hidden, count, whole=whole)
            assert compiled
            tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype] * hidden**0.5
            torch.testing.assert_close(at_once[1], plain[1], rtol=tolerance, atol=tolerance)
            if whole:
                torch.testing.assert_close(at_once[0], plain[0], rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize("scale", [1e-30, 1e30, math.inf, math.nan])
    @pytest.mark.parametrize("name", KNOWN)
    def test_keep_what_is_tiny_and_what_is_not_finite(self, generator, name, scale):
        compiled, at_once, plain = self.pulled(generator, [all_cells()[name]()], scale=scale)
        assert compiled
        atol = 1e-5 * scale if math.isfinite(scale) else 0.0
        torch.testing.assert_close(at_once, plain, rtol=1e-5, atol=atol, equal_nan=True)

    @pytest.mark.parametrize("scale", [1.0, 1e-42, math.inf, math.nan])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("name", ["shared_gate", "gru", "lstm"])
    def test_tell_the_largest_value_of_each_row(self, generator, name, dtype, scale):
        layers = [all_cells()[name]()] * (2 if name == "lstm" else 1)
        recurrence = recurrence_of(layers, generator)
        recurrence = dataclasses.replace(recurrence, params={n: p.to(dtype) for n, p in recurrence.params.items()})
        x, s = normal(generator, 70, INPUT).to(dtype), normal(generator, 70, recurrence.stack.state_size).to(dtype)
        linear = linearise(recurrence, x, s, [])
        cotangent, before, sizes = (scale * s).contiguous(), torch.empty_like(s), s.new_full((70,), -1)
        linear.back(cotangent, s.new_empty(70, linear.width), before, whole=False, sizes=sizes)
        assert linear.compiled
        torch.testing.assert_close(sizes, before.abs().amax(1), rtol=0, atol=0, equal_nan=True)

    def test_are_left_out_where_they_do_not_fit(self, generator, monkeypatch):
        shared, scanned = all_cells()["shared_gate"](), all_cells()["min_gru"]()
        for cells, dtype in (([shared], torch.bfloat16), ([shared, scanned], torch.float32)):
            compiled, at_once, plain = self.pulled(generator, cells, dtype)
            assert not compiled
            torch.testing.assert_close(at_once, plain)
        monkeypatch.setattr("lagreach.kernels.cpu.has_numba", lambda: False)
        compiled, at_once, plain = self.pulled(generator, [shared])
        assert not compiled
        torch.testing.assert_close(at_once, plain)

    def test_a_whole_spread_is_left_to_torch_on_several_threads(self, generator, monkeypatch):
        calls = []
        monkeypatch.setitem(pullback.KERNELS, "lstm", lambda *_: calls.append("called"))
        recurrence = recurrence_of([all_cells()["lstm"]()], generator)
        x, s = normal(generator, ROWS, INPUT), normal(generator, ROWS, 2 * HIDDEN)
        linear = linearise(recurrence, x, s, [])
        before = torch.get_num_threads()
        try:
            for threads, whole in ((2, True), (2, False), (1, True), (1, False)):
                torch.set_num_threads(threads)
                linear.back(s, s.new_empty(ROWS, linear.width), torch.empty_like(s), whole=whole)
                assert bool(calls) == (threads == 1 or not whole)
                calls.clear()
        finally:
            torch.set_num_threads(before)

    def test_compiling_is_announced_once_for_each_precision(self, generator, monkeypatch):
        shown = []
        monkeypatch.setattr(pullback, "waiting", lambda text: shown.append(text) or nullcontext())
        monkeypatch.setattr(pullback, "_ready", set())
        for dtype, announced in ((torch.float32, 1), (torch.float32, 1), (torch.float64, 2)):
            self.pulled(generator, [all_cells()["gru"]()], dtype)
            assert len(shown) == announced


@pytest.mark.parametrize("name", ["shared_gate", "diag_gate", "lstm"])
def test_nothing_is_read_before_it_is_written(monkeypatch, generator, name):
    """Buffers are not cleared first; here they start as NaN."""
    part = rollout(GatedRNN(name, 2, 3, 1, generator=generator), torch.randn(3, 8, 2, generator=generator))
    delta = torch.randn(part.states.shape, generator=generator)

    def everything():
        with one_thread():
            passing = [c.value().clone() for c, _ in exact_transport(part, delta, range(8))]
        return carried(part, delta, range(8)), passing

    plain = everything()
    for module in (joined, kept_run):
        monkeypatch.setattr(module, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    torch.use_deterministic_algorithms(True)  # torch.empty is then full of NaN
    try:
        assert torch.empty(3).isnan().all()
        torch.testing.assert_close(everything(), plain, rtol=0, atol=0)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("count", [1, 2, 70])
@pytest.mark.parametrize(("name", "layers"), [*((name, 1) for name in KNOWN), ("lstm", 2), ("gru", 3)])
def test_passing_gradients_need_no_second_buffer(generator, name, layers, count):
    """Rows are written over rows that have been read before, however few sequences stand between them."""
    model = GatedRNN(name, 2, 5, 1, num_layers=layers, generator=generator)
    part = rollout(model, torch.randn(count, 90, 2, generator=generator))
    delta = torch.randn(part.states.shape, generator=generator)
    with one_thread():
        steps = Steps(part)
        passing, plain = Carry(steps, delta, passing=True), Carry(steps, delta)
        assert passing._next is passing._now
        for _ in range(90):
            torch.testing.assert_close(passing.cotangent().value(), plain.cotangent().value(), rtol=0, atol=0)
            passing.step()
            plain.step()


@pytest.mark.parametrize(("name", "layers"), [("shared_gate", 1), ("lstm", 2)])
def test_the_number_of_threads_does_not_matter(monkeypatch, generator, name, layers):
    monkeypatch.setattr("lagreach.transport.carry.ROWS", 6)
    model = GatedRNN(name, 2, 3, 1, num_layers=layers, generator=generator)
    part = rollout(model, torch.randn(3, 40, 2, generator=generator))
    delta = torch.randn(part.states.shape, generator=generator)
    before, seen = torch.get_num_threads(), set()
    pull = Carry._pull
    monkeypatch.setattr(Carry, "_pull", lambda *a, **k: seen.add(threading.get_ident()) or pull(*a, **k))
    by_threads = []
    try:
        for number in (1, 3, 2):
            torch.set_num_threads(number)
            by_threads.append([c.value().clone() for c, _ in exact_transport(part, delta, range(0, 40, 3))])
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 1
    for other in by_threads[1:]:
        torch.testing.assert_close(other, by_threads[0], rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 5, 6, 1000])
@pytest.mark.parametrize("layers", [1, 2])
def test_blocks_of_rows_do_not_matter(monkeypatch, generator, rows, layers):
    model = GatedRNN("gru", 2, 3, 1, num_layers=layers, generator=generator, dtype=torch.float64)
    part = rollout(model, normal(generator, 3, 8, 2))
    delta = normal(generator, *part.states.shape)
    whole = carried(part, delta, [0, 1, 4, 7])
    monkeypatch.setattr("lagreach.transport.carry.ROWS", rows)
    torch.testing.assert_close(carried(part, delta, [0, 1, 4, 7]), whole, rtol=1e-12, atol=1e-14)


def test_sets_of_weights_of_anchors(generator):
    """One transport with several sets of weights at its start equals a transport of each start that was weighted so."""
    model = GatedRNN("lstm", 2, 3, 1, generator=generator, dtype=torch.float64)
    part = rollout(model, normal(generator, 3, 8, 2))
    delta, anchors = normal(generator, *part.states.shape), normal(generator, 3, 8, 2)
    steps = Steps(part, ["layers.0.W_i", "layers.0.U_g"])
    one, joint = Carry(steps, delta), WeightSums(steps, anchors=anchors)
    others = [(Carry(steps, delta * anchors[..., k, None]), WeightSums(steps)) for k in range(2)]
    for lag in range(8):
        one.step([joint], go_on=lag < 7)
        for carry, sums in others:
            carry.step([sums], go_on=lag < 7)
        apart = torch.cat([sums.take() for _, sums in others], dim=1)
        torch.testing.assert_close(joint.take(), apart, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("cell", "names"),
    [("diag_gate", ["layers.0.W_s", "layers.1.ln_gain", "layers.1.b_h"]), ("diag_elman", ["layers.0.u_h"])],
    ids=["closed", "autodiff"],
)
def test_groups_of_sequences_are_summed_apart(generator, cell, names):
    options = {"layernorm": True, "num_layers": 2} if cell == "diag_gate" else {}
    model = GatedRNN(cell, 2, 3, 1, **options, generator=generator, dtype=torch.float64)
    part = rollout(model, normal(generator, 5, 8, 2))
    delta, reached = normal(generator, *part.states.shape), normal(generator, 5, 8, 2)
    groups = [slice(0, 2), slice(2, 3), slice(3, 5)]

    def summed(rows, groups=None):
        chosen = dataclasses.replace(part, x=part.x[rows], initial=part.initial[rows], states=part.states[rows])
        steps = Steps(chosen, names, groups)
        carry, sums = Carry(steps, delta[rows]), WeightSums(steps, reached[rows])
        for lag in range(8):
            carry.step([sums] if lag in (2, 3, 5) else [], go_on=lag < 7)
        return sums.take()

    apart = torch.cat([summed(rows) for rows in groups])
    torch.testing.assert_close(summed(slice(0, 5), groups), apart, rtol=1e-12, atol=1e-14)


def test_sums_keep_what_is_far_below_float32(generator):
    """Anchors of very different size, some exactly zero: the exponents must not push them out of a sum."""
    model = GatedRNN("const_gate", 1, 2, 1, gate_init=1 - 2.0**-8, generator=generator)
    nn.init.zeros_(model.layers[0]["U_h"])
    part = rollout(model, torch.randn(1, 64, 1, generator=generator))
    delta = torch.zeros_like(part.states)
    delta[:, -1] = 1.0
    steps = Steps(part, ["layers.0.b_h"])
    carry, sums = Carry(steps, delta), WeightSums(steps)
    for _ in range(40):
        carry.step()
    carry.step([sums], go_on=False)
    slope = 1 - part.states[0, 23].double().sub(part.states[0, 22].double() * 2.0**-8).div(1 - 2.0**-8).square()
    torch.testing.assert_close(sums.take()[0, 0], 2.0**-320 * (1 - 2.0**-8) * slope, rtol=1e-4, atol=0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(all_cells()))
def test_the_compiled_sweep_equals_the_plain_windows(monkeypatch, generator, name, dtype):
    layers = 2 if name in ("lstm", "diag_gate") else 1
    model = GatedRNN(name, 2, 19, 1, num_layers=layers, generator=generator, dtype=dtype)
    x, y = torch.randn(4, 300, 2, generator=generator), torch.randn(4, 300, 1, generator=generator)
    lags, lengths = [0, 1, 2, 3, 7, 40, 41, 250, 299], [300, 7, 256, 1]
    assert first_order_sums.kernels() is not None

    def measured():
        rates = effective_rates(model, x, lags, lengths=lengths)
        gains = fidelity(model, x, y, lags, lengths=lengths)
        matched = matched_statistic(model, x, y, lags, orientation="none", lengths=lengths)
        return rates.log10_rates, rates.log10_channels, gains.log10_first_order, torch.from_numpy(matched.values)

    fused = measured()
    monkeypatch.setattr(first_order_sums, "kernels", lambda: None)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(fused, measured(), equal_nan=True, **tolerance)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1.0])
def test_the_compiled_sweep_passes_closed_gates(monkeypatch, generator, value):
    """A gate that shuts at some steps, and lets through 1e-38 or nothing."""
    model = GatedRNN("diag_gate", 2, 3, 1, generator=generator)
    part = rollout(model, torch.randn(2, 400, 2, generator=generator))
    shut = torch.rand(2, 400, 3, generator=generator) < 0.05

    class Shut(type(model.cell)):  # its factors are not those that the compiled kernels know
        def factors(self, x, s, params):
            kept = self.retention(x, s, params)
            return first_order.Factors.uniform(first_order.Dual(torch.where(shut, value, kept), 0.01 * kept))

    layer = first_order._layers(part)[0]._replace(cell=Shut())
    lags, anchors = [1, 5, 64, 399], torch.ones(2, 400, dtype=torch.bool)
    fused = first_order._sum_rates(layer, lags, anchors, "jacobian")
    monkeypatch.setattr(first_order_sums, "kernels", lambda: None)
    plain = first_order._sum_rates(layer, lags, anchors, "jacobian")
    for name, sums in plain.items():
        torch.testing.assert_close(fused[name].log10(), sums.log10(), rtol=1e-6, atol=1e-6)  # float32


def test_what_is_proportional_is_found_and_nothing_else(generator):
    to, factor = torch.randn(3, 5, 4, generator=generator), torch.randn(3, 5, generator=generator)
    factor[0, 0] = 0.0
    (proportion,) = proportions([to * factor[..., None]], to)
    torch.testing.assert_close(proportion.float(), factor, rtol=1e-5, atol=1e-7)
    bent = to * factor[..., None]
    bent[1, 2, 3] *= 1.001
    assert proportions([bent, to], to)[0] is None
    to[2, 4] = 0.0
    assert proportions([torch.ones_like(to)], to) == [None]
    np.testing.assert_array_equal(proportions([torch.zeros_like(to)], to)[0], np.zeros((3, 5)))
