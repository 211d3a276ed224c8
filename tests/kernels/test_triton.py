"""The Triton kernels compute what the plain loop does, as run on the CPU by Triton's interpreter.

The interpreter is chosen by an environment variable before triton is imported, so this file runs itself in a process of
its own, once, and the tests look at what it measured: relative errors against the plain loop in float64.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lagreach import GatedRNN
from lagreach.adapters import find_views
from lagreach.cells import all_cells
from lagreach.cells.activations import ACTIVATIONS, Activation
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.diag_gate import DiagGate
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.kernels import scan, scan_pullback, scan_stack, scan_tangent
from lagreach.kernels.gpu import missing, plan, precision, products
from lagreach.kernels.gpu.products import weight_gradients
from lagreach.kernels.gpu.readout import ReadOne
from lagreach.kernels.packing import products_of
from lagreach.study.replicas import read
from lagreach.transport.windows import Windows

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent.parent
CELLS = [name for name in all_cells() if name in plan.FAMILIES]
DENSE = [name for name in CELLS if plan.FAMILIES[name].dense]
UNITS_FIRST = ["const_gate", "diag_gate", "gru", "torch_gru", "lstm"]  # one cell for each of the kernels
SUMMED = ["diag_gate", "gru", "torch_gru", "lstm"]  # for each way to put their gradients together
SMALL_SUMS = {"sums": True, "sums_tile": (16, 16, 1, 1)}
EXACT, SINGLE = 1e-12, 2e-6  # relative errors in float64 and float32


def build(name, **options):
    return all_cells()[name](**options)


def problem(cell, hidden, sequences, time, dtype=torch.float64, replicas=2, inputs=3):
    generator = torch.Generator().manual_seed(hidden + sequences)
    sizes = {"input_size": inputs, "hidden_size": hidden, "sequences": sequences, "time": time}
    drawn = [cell.example(generator, **sizes) for _ in range(replicas)]
    params = {name: torch.stack([p[name] for _, _, p in drawn]).to(dtype) for name in drawn[0][2]}
    return [torch.stack([d[0] for d in drawn]).to(dtype), torch.stack([d[1][:, 0] for d in drawn]).to(dtype)], params


def measured(cell, kernel, inputs, params, pull, push, dtype):
    """States, gradients of every input, tangent of the states."""

    def run(x, s0, *weights):
        return scan(cell, x, s0, dict(zip(params, weights, strict=True)), kernel=kernel)

    leaves = [v.to(dtype).requires_grad_() for v in (*inputs, *params.values())]
    states = run(*leaves)
    gradients = torch.autograd.grad(states, leaves, pull.to(dtype))
    _, tangent = torch.func.jvp(run, tuple(v.detach() for v in leaves), tuple(v.to(dtype) for v in push))
    return dict(zip(["states", "tangent", "x", "s0", *params], [states.detach(), tangent, *gradients], strict=True))


def errors(cell, hidden, sequences, time, dtype=torch.float64, size=1.0, replicas=1, inputs=3):
    inputs, params = problem(cell, hidden, sequences, time, dtype, replicas, inputs)
    generator = torch.Generator().manual_seed(1)

    def like(v):
        return size * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype)

    push = [like(v) for v in (*inputs, *params.values())]
    pull = like(torch.empty(replicas, sequences, time, cell.state_size(hidden)))
    got = measured(cell, "triton", inputs, params, pull, push, dtype)
    expected = measured(cell, "reference", inputs, params, pull, push, torch.float64)
    return {k: float((got[k].double() / size - v / size).norm() / (v / size).norm()) for k, v in expected.items()}


def streamed(cell, blocks):
    """Errors when only some blocks of the weights stay in shared memory, at two slices of the summed axis."""
    old = plan.RESIDENT_BYTES, plan.STREAMING_BYTES, plan.STREAMED_SLICE
    plan.RESIDENT_BYTES, plan.STREAMING_BYTES, plan.STREAMED_SLICE = 0, blocks * 4 * 32 * 32, 16
    sizes = errors(cell, 20, 3, 3, replicas=2)
    plan.RESIDENT_BYTES, plan.STREAMING_BYTES, plan.STREAMED_SLICE = old
    return sizes


def in_half_precision(cell):
    with precision("float16"):
        return errors(cell, 16, 3, 2, torch.float32)


def units_first(name, way):
    """Errors of the units-first kernels: with LayerNorm and more sequences than one program takes; plain, in float32.

    The weights' gradients are summed on the scale that the units-first kernels found.
    """
    with plan.shaped(**{way: True}, **SMALL_SUMS):
        exact = [errors(build(name), 5, 9, 2), errors(build(name, layernorm=True), 5, 3, 3, replicas=2)]
        return {
            "exact": max(e for sizes in exact for e in sizes.values()),
            "float32": max(errors(build(name, layernorm=True), 16, 9, 3, torch.float32, size=2.0**-70).values()),
            "same tile": getattr(tile_of(name, 5), way),
        }


def tile_of(name, hidden):
    kernel = plan.Plan(
        plan.FAMILIES[name], False, 0.5, "float32", shape=plan.chosen_shape(plan.FAMILIES[name], hidden, 9)
    )
    return kernel.tile(torch.empty(1, 9, 2, 3), torch.empty(1, hidden, hidden))


def summed(name, time, hidden, inputs=3):
    """Errors of the weights' gradients when one kernel sums them all."""
    with plan.shaped(**SMALL_SUMS):
        exact, single = (
            errors(build(name), hidden, 3, time, inputs=inputs),
            errors(build(name), hidden, 3, time, torch.float32, 2.0**-70, inputs=inputs),
        )
    return {"exact": max(exact.values()), "float32": max(single.values())}


def small_rows():
    """Largest error of a row of the weights' gradients, relative to itself, where units differ by up to 1e-8."""
    hidden, generator = 16, torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(1, 3, *shape, generator=generator)

    x, first, states, d = drawn(17, 3), drawn(hidden), drawn(17, hidden).tanh(), drawn(17, 2 * hidden)
    d *= torch.logspace(0, -8, 2 * hidden)
    chosen = plan.Plan(plan.FAMILIES["diag_gate"], False, 0.5, "float32", shape=plan.Shape(**SMALL_SUMS))
    tile = chosen.tile(x, torch.empty(1, 2 * hidden, hidden))
    gradients = weight_gradients(chosen, tile, d, torch.empty(0), first, states, states, x)
    before = torch.cat((first[:, :, None], states[:, :, :-1]), dim=2)
    worst = []
    for gradient, factor in zip(gradients, (before, x), strict=True):
        expected = torch.einsum("rstg,rsti->rgi", d.double(), factor.double())
        worst.append(((gradient - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
    return float(max(worst))


def some_tangents(cell):
    """Errors of tangents along one input at a time: the others have none."""
    inputs, params = problem(cell, 5, 3, 2, replicas=1)
    values = dict(zip(["x", "s0"], inputs, strict=True)) | params
    sizes = {}
    for name in ("x", "s0", list(params)[-1]):
        value = values[name]

        def run(v, kernel, name=name):
            moved = values | {name: v}
            return scan(cell, moved["x"], moved["s0"], {k: moved[k] for k in params}, kernel=kernel)

        tangents = [
            torch.func.jvp(lambda v, kernel=kernel: run(v, kernel), (value,), (torch.ones_like(value),))[1]
            for kernel in ("triton", "reference")
        ]
        sizes[name] = float((tangents[0] - tangents[1]).norm() / tangents[1].norm())
    return sizes


def along_weights(cell):
    """Error of `scan_tangent`, which diagnoses ask for: along all weights, inputs and first state held fixed."""
    inputs, params = problem(cell, 5, 3, 3, replicas=1)
    (x, s0), params = (v[0] for v in inputs), {name: p[0] for name, p in params.items()}
    stack = Stack((cell,), 5, ({name: name for name in params},))
    direction = {name: torch.ones_like(p) for name, p in params.items()}
    got, expected = (scan_tangent(stack, x, s0, params, direction, kernel=kernel) for kernel in ("triton", "reference"))
    return float((got - expected).norm() / expected.norm())


def at_blocks(cell):
    """Errors of what `scan_pullback` says, which diagnoses ask for: gradients of inputs, and of weights by their products."""
    inputs, params = problem(cell, 5, 3, 3, replicas=1)
    (x, s0), params = (v[0] for v in inputs), {name: p[0] for name, p in params.items()}
    leaves = {name: v.clone().requires_grad_() for name, v in ({"x": x} | params).items()}
    states = scan(cell, leaves["x"], s0, {name: leaves[name] for name in params}, kernel="reference")
    pull = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    expected = dict(zip(leaves, torch.autograd.grad(states, list(leaves.values()), pull), strict=True))
    blocks, of_inputs = scan_pullback(cell, x, s0, params, pull, kernel="triton")
    before = cell.output(torch.cat((s0[:, None], states.detach()[:, :-1]), dim=1))
    got = {"x": of_inputs}
    for bias, (of_input, of_state) in products_of(cell).items():
        got[bias] = blocks[bias].sum((0, 1))
        got |= {
            name: torch.einsum("stb,stk->bk", blocks[bias], factor)
            for name, factor in ((of_input, x), (of_state, before))
            if name
        }
    return {name: float((v - expected[name]).norm() / expected[name].norm()) for name, v in got.items()}


def to_first_step(name, size=1.0, dtype=torch.float64):
    """How far what `Windows` lead back in one launch for each lag is from what they lead back step by step."""
    model = GatedRNN(name, 3, 5, 1, generator=torch.Generator().manual_seed(0)).to(dtype)
    (x, s0), _ = problem(build(name), 5, 3, 6, dtype, replicas=1)
    recurrence = find_views(model, Batch(x[0], x[0, ..., :1]))[0].template
    states = scan_stack(recurrence.stack, x[0], s0[0], recurrence.params, kernel="reference").detach()
    windows = Windows(recurrence, x[0].transpose(0, 1), s0[0], states.transpose(0, 1)[:-1])
    generator = torch.Generator().manual_seed(1)
    starts = size * torch.randn(3, *s0[0].shape, generator=generator, dtype=torch.float64).to(dtype)
    lags = [0, 2, 5]
    launched, stepped = windows._in_one_launch(starts, lags), windows._step_by_step(starts, lags)
    if launched is None:
        return None
    (got, got_power), (expected, power) = launched, stepped
    apart = [(got[lag].double() * got_power[lag] - expected[lag].double() * power[lag]).norm() for lag in lags]
    return max(
        float(a / max(float(expected[lag].double().norm() * power[lag]), 1e-300))
        for a, lag in zip(apart, lags, strict=True)
    )


def broken_sequences(cell):
    """A NaN in one sequence stays there: says which of (replica, sequence, time) are finite."""
    inputs, params = problem(cell, 5, 3, 3)
    inputs[0][1, 2, 1] = torch.nan
    return scan(cell, *inputs, params, kernel="triton").isfinite().all(-1).tolist()


def wide_inputs():
    """Inputs too wide to be summed along: their weights' gradient is torch's."""
    generator = torch.Generator().manual_seed(0)
    cell = build("const_gate")
    x, s, params = cell.example(generator, input_size=65, hidden_size=4, sequences=2, time=2)
    gradients = []
    for kernel in ("triton", "reference"):
        leaf = params["W_h"].clone().requires_grad_()
        scan(cell, x, s[:, 0], params | {"W_h": leaf}, kernel=kernel).square().sum().backward()
        gradients.append(leaf.grad)
    return float((gradients[0] - gradients[1]).norm() / gradients[1].norm())


class Zeros(TorchDispatchMode):
    """Notes how many zeros are written at once, at most."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if function in (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default):
            self.most = max(self.most, result.numel())
        return result


def zeros_on_the_way_back(cell):
    """Most zeros written at once by a backward pass, over the number of states: 0 but for small ones."""
    inputs, params = problem(cell, 5, 3, 20)
    leaf = next(iter(params.values())).requires_grad_()
    states = scan(cell, *inputs, params, kernel="triton")
    with Zeros() as seen:
        torch.autograd.grad(states.square().sum(), leaf)
    return seen.most / states.numel()


def replicas_apart(cell):
    inputs, params = problem(cell, 16, 3, 2, torch.float32)
    together = scan(cell, *inputs, params, kernel="triton")
    alone = [scan(cell, *(v[r] for v in inputs), {k: p[r] for k, p in params.items()}, kernel="triton") for r in (0, 1)]
    return torch.equal(together, torch.stack(alone))


def readout():
    """Largest differences of the readout's outputs and gradients, with states beside what it reads."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 70, 12), (2, 1, 6), (2, 1), (2, 3, 70, 1)
    states, weight, bias, pull = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    leaves = [v.requires_grad_() for v in (states, weight, bias)]
    whole = torch.nn.functional.pad(weight, (4, 2))
    outputs = ReadOne.apply(states, whole, bias, 4, 10), read(states, whole, bias)
    got, expected = ([out, *torch.autograd.grad(out, leaves, pull, retain_graph=True)] for out in outputs)
    return [float((a - b).detach().abs().max()) for a, b in zip(got, expected, strict=True)]


def run_all():
    with plan.shaped():  # the kernels for any number of sequences
        results = run_usual()
    for name in UNITS_FIRST:
        results[f"{name} units_first"] = units_first(name, "units_first")
        results[f"{name} alone"] = units_first(name, "alone")
    return results


def run_usual():
    results = {}
    for name in CELLS:
        cell = build(name)
        results[f"{name} plain"] = errors(cell, 5, 3, 3, replicas=2)
        results[f"{name} one step"] = errors(cell, 16, 16, 1)
        results[f"{name} float32"] = errors(cell, 16, 17, 3, torch.float32, size=2.0**-70)
        results[f"{name} tangents"] = some_tangents(cell)
        results[f"{name} along weights"] = along_weights(cell)
        results[f"{name} blocks"] = at_blocks(cell)
        results[f"{name} windows"] = to_first_step(name)
        results[f"{name} broken"] = broken_sequences(cell)
        results[f"{name} apart"] = replicas_apart(cell)
        results[f"{name} zeros"] = zeros_on_the_way_back(cell)
    for name in DENSE:
        results[f"{name} layernorm"] = errors(build(name, layernorm=True), 5, 3, 2)
        results[f"{name} streamed"] = streamed(build(name, layernorm=True), 1)
        results[f"{name} float16"] = in_half_precision(build(name))
    for name in SUMMED:
        results[f"{name} sums"] = summed(name, 2, 5)
    results["long sums"] = summed("gru", 17, 20)  # several tiles of units and of times, and the factor r h
    results["even sums"] = summed("gru", 32, 16, inputs=16)  # tiles that end where their tensors do
    products.STRETCH_TILES = 1
    results["cut sums"] = summed("gru", 64, 5)  # sequences in stretches
    with plan.shaped(**SMALL_SUMS):
        results["wide inputs"] = wide_inputs()
    results["small rows"] = small_rows()
    results["readout"] = readout()
    results["windows of nothing"], results["endless windows"] = (
        to_first_step("lstm", size) for size in (0.0, torch.inf)
    )
    results["windows far below one"] = to_first_step("lstm", 1e-30, torch.float32)
    results["lstm all streamed"] = streamed(build("lstm"), 0)
    for activation in ACTIVATIONS:
        results[f"activation {activation}"] = errors(DiagElman(activation=activation), 5, 3, 2)
    return results


@pytest.fixture(scope="module")
def results():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("case", ["plain", "one step", "tangents", "blocks"])
def test_values_gradients_and_tangents(results, name, case):
    assert max(results[f"{name} {case}"].values()) < EXACT


@pytest.mark.parametrize("name", CELLS)
def test_tangents_along_weights(results, name):
    assert results[f"{name} along weights"] < EXACT


@pytest.mark.parametrize("name", CELLS)
def test_windows_are_led_back_in_one_launch(results, name):
    assert results[f"{name} windows"] < EXACT


def test_windows_out_of_range_are_led_back_step_by_step(results):
    assert results["windows far below one"] < SINGLE
    assert results["windows of nothing"] == 0
    assert results["endless windows"] is None


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("case", ["layernorm", "streamed"])
def test_layernorm_and_streamed_weights(results, name, case):
    assert max(results[f"{name} {case}"].values()) < EXACT
    assert max(results["lstm all streamed"].values()) < EXACT


@pytest.mark.parametrize("name", UNITS_FIRST)
@pytest.mark.parametrize("way", ["units_first", "alone"])
def test_units_first_kernels(results, name, way):
    of_cell = results[f"{name} {way}"]
    assert of_cell["same tile"]
    assert of_cell["exact"] < EXACT
    assert of_cell["float32"] < SINGLE


@pytest.mark.parametrize("case", [*(f"{name} sums" for name in SUMMED), "long sums", "even sums", "cut sums"])
def test_gradients_of_weights_in_one_pass(results, case):
    assert results[case]["exact"] < EXACT
    assert results[case]["float32"] < SINGLE
    assert results["wide inputs"] < EXACT


def test_units_with_small_gradients_keep_their_accuracy(results):
    assert results["small rows"] < SINGLE


def test_a_readout_of_one_number(results):
    assert max(results["readout"]) < EXACT


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(results, activation):
    assert max(results[f"activation {activation}"].values()) < EXACT


@pytest.mark.parametrize("name", CELLS)
def test_split_products_have_float32_accuracy_at_any_scale(results, name):
    """Gradients and tangents are far below the range of float16 here."""
    assert max(results[f"{name} float32"].values()) < SINGLE


@pytest.mark.parametrize("name", DENSE)
def test_the_faster_precision_is_coarser_but_close(results, name):
    assert SINGLE < max(results[f"{name} float16"].values()) < 5e-3


@pytest.mark.parametrize("name", CELLS)
def test_a_broken_sequence_stays_alone(results, name):
    finite = torch.tensor(results[f"{name} broken"])
    expected = torch.ones(2, 3, 3, dtype=torch.bool)
    expected[1, 2, 1:] = False
    torch.testing.assert_close(finite, expected)


@pytest.mark.parametrize("name", CELLS)
def test_a_replica_is_the_same_alone(results, name):
    assert results[f"{name} apart"]


@pytest.mark.parametrize("name", CELLS)
def test_no_gradients_of_what_is_only_kept(results, name):
    """Autograd would fill them with zeros at every training step."""
    assert results[f"{name} zeros"] < 0.2


@dataclass(frozen=True)
class MyGate(DiagGate):
    """A cell of the user's own."""


CUDA, CPU = torch.device("cuda"), torch.device("cpu")
OWN = Activation("tanh", torch.sin, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("cell", "device", "dtype", "reason"),
    [
        (DiagGate(), CUDA, torch.float32, None),
        (DiagGate(), CPU, torch.float32, "CUDA"),
        (DiagGate(), CUDA, torch.float64, "float32"),
        (MyGate(), CUDA, torch.float32, "cell"),
        (DiagElman(activation=OWN), CUDA, torch.float32, "activation"),
    ],
)
def test_it_says_what_it_cannot_do(cell, device, dtype, reason):
    said = missing(cell, device, dtype)
    assert said is None if reason is None else reason in said


def test_asking_for_it_without_a_gpu_is_refused(generator):
    x, s, params = DiagGate().example(generator)
    with pytest.raises(UnsupportedError, match="CUDA"):
        scan(DiagGate(), x, s[:, 0], params, kernel="triton")


def test_too_wide_networks_are_refused():
    wide = plan.Plan(plan.LEAKY, layernorm=False, fixed=0.5, precision="float32")
    assert wide.tile(torch.empty(1, 17, 1, 1), torch.empty(1, 512, 512)).grid == (2, 1)
    with pytest.raises(UnsupportedError, match="513"):
        wide.tile(torch.empty(1, 1, 1, 1), torch.empty(1, 513, 513))


def test_shapes_are_chosen_by_size_and_by_hand():
    def tile(hidden, name="lstm", replicas=30):
        shape = plan.chosen_shape(plan.FAMILIES[name], hidden, 20 * replicas)
        kernel = plan.Plan(plan.FAMILIES[name], False, 0.5, "float32", shape=shape)
        return kernel.tile(torch.empty(replicas, 20, 1, 1), torch.empty(replicas, hidden, hidden))

    assert (tile(60).units_first, tile(60).rows, tile(60).warps, tile(60).grid) == (True, 8, 4, (3, 30))
    assert tile(65).units_first
    assert (tile(129).units_first, tile(129).rows, tile(129).warps, tile(129).resident) == (False, 16, 8, 0)
    with plan.shaped():
        assert (tile(65).units_first, tile(65).rows, tile(65).warps, tile(65).resident) == (False, 16, 8, 2)
    with plan.shaped(units_first=True):
        assert tile(128).units_first
        assert not tile(128).staged
        assert not tile(256).units_first  # its weights do not fit
        assert not tile(64, "diag_elman").units_first  # it has no such kernels
    with plan.shaped(rows=32, warps=16, resident=3, slice=16):
        by_hand = tile(128)
        assert (by_hand.rows, by_hand.warps, by_hand.resident, by_hand.slice) == (32, 16, 3, 16)
    assert tile(60).units_first
    assert not tile(60).alone


@pytest.mark.parametrize(
    ("name", "hidden", "layernorm", "warps"),
    [
        ("const_gate", 128, True, 4),
        ("const_gate", 128, False, 8),
        ("const_gate", 64, True, 4),
        ("diag_gate", 128, True, 8),
    ],
)
def test_programs_share_a_multiprocessor_where_they_would_wait(name, hidden, layernorm, warps):
    shape = plan.chosen_shape(plan.FAMILIES[name], hidden, 4000)
    kernel = plan.Plan(plan.FAMILIES[name], layernorm, 0.5, "float32", shape=shape)
    tile = kernel.tile(torch.empty(8, 500, 1, 1), torch.empty(8, hidden, hidden))
    assert (tile.units_first, tile.alone, tile.warps) == (True, False, warps)


def test_few_sequences_run_alone():
    def tile(name, hidden, replicas):
        kernel = plan.Plan(
            plan.FAMILIES[name],
            False,
            0.5,
            "float32",
            shape=plan.chosen_shape(plan.FAMILIES[name], hidden, 16 * replicas),
        )
        return kernel.tile(torch.empty(replicas, 16, 1, 1), torch.empty(replicas, hidden, hidden))

    few, many = 1, plan.ALONE_MOST // (16 * 4 * 64**2) + 1
    assert (tile("lstm", 60, few).alone, tile("lstm", 60, few).warps, tile("lstm", 60, few).grid) == (True, 4, (16, 1))
    assert tile("gru", 5, few).alone
    assert tile("diag_gate", 128, few).alone
    assert not tile("lstm", 65, few).alone  # its weights do not fit into the registers
    assert not tile("const_gate", 129, few).alone  # nor do so many threads
    assert not tile("diag_elman", 64, few).alone  # it has no matrix of recurrent weights
    assert not tile("lstm", 60, many).alone


def test_unknown_precisions_are_refused():
    with pytest.raises(InputError, match="unknown precision"), precision("half"):
        pass


if __name__ == "__main__":
    print(json.dumps(run_all()))
