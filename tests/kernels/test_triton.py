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

from lagreach.cells import all_cells
from lagreach.cells.activations import ACTIVATIONS, Activation
from lagreach.cells.diag_elman import DiagElman
from lagreach.cells.diag_gate import DiagGate
from lagreach.errors import InputError, UnsupportedError
from lagreach.kernels import scan
from lagreach.kernels.gpu import missing, plan, precision

ROOT = Path(__file__).parent.parent.parent
CELLS = list(all_cells())
DENSE = [name for name in CELLS if name != "diag_elman"]
EXACT, SINGLE = 1e-12, 2e-6  # relative errors in float64 and float32


def build(name, **options):
    return all_cells()[name](**options)


def problem(cell, hidden, sequences, time, dtype=torch.float64, replicas=2):
    generator = torch.Generator().manual_seed(hidden + sequences)
    sizes = {"input_size": 3, "hidden_size": hidden, "sequences": sequences, "time": time}
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


def errors(cell, hidden, sequences, time, dtype=torch.float64, size=1.0, replicas=1):
    inputs, params = problem(cell, hidden, sequences, time, dtype, replicas)
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
    found = errors(cell, 20, 3, 3, replicas=2)
    plan.RESIDENT_BYTES, plan.STREAMING_BYTES, plan.STREAMED_SLICE = old
    return found


def in_half_precision(cell):
    with precision("float16"):
        return errors(cell, 16, 3, 2, torch.float32)


def some_tangents(cell):
    """Errors of tangents along one input at a time: the others have none."""
    inputs, params = problem(cell, 5, 3, 2, replicas=1)
    values = dict(zip(["x", "s0"], inputs, strict=True)) | params
    found = {}
    for name in ("x", "s0", list(params)[-1]):
        value = values[name]

        def run(v, kernel, name=name):
            own = values | {name: v}
            return scan(cell, own["x"], own["s0"], {k: own[k] for k in params}, kernel=kernel)

        tangents = [
            torch.func.jvp(lambda v, kernel=kernel: run(v, kernel), (value,), (torch.ones_like(value),))[1]
            for kernel in ("triton", "reference")
        ]
        found[name] = float((tangents[0] - tangents[1]).norm() / tangents[1].norm())
    return found


def broken_sequences(cell):
    """A NaN in one sequence stays there: says which of (replica, sequence, time) are finite."""
    inputs, params = problem(cell, 5, 3, 3)
    inputs[0][1, 2, 1] = torch.nan
    return scan(cell, *inputs, params, kernel="triton").isfinite().all(-1).tolist()


def replicas_alone(cell):
    inputs, params = problem(cell, 16, 3, 2, torch.float32)
    together = scan(cell, *inputs, params, kernel="triton")
    alone = [scan(cell, *(v[r] for v in inputs), {k: p[r] for k, p in params.items()}, kernel="triton") for r in (0, 1)]
    return torch.equal(together, torch.stack(alone))


def run_all():
    found = {}
    for name in CELLS:
        cell = build(name)
        found[f"{name} plain"] = errors(cell, 5, 3, 3, replicas=2)
        found[f"{name} one step"] = errors(cell, 16, 16, 1)
        found[f"{name} float32"] = errors(cell, 16, 17, 3, torch.float32, size=2.0**-70)
        found[f"{name} tangents"] = some_tangents(cell)
        found[f"{name} broken"] = broken_sequences(cell)
        found[f"{name} alone"] = replicas_alone(cell)
    for name in DENSE:
        found[f"{name} layernorm"] = errors(build(name, layernorm=True), 5, 3, 2)
        found[f"{name} streamed"] = streamed(build(name, layernorm=True), 1)
        found[f"{name} float16"] = in_half_precision(build(name))
    found["lstm all streamed"] = streamed(build("lstm"), 0)
    for activation in ACTIVATIONS:
        found[f"activation {activation}"] = errors(DiagElman(activation=activation), 5, 3, 2)
    return found


@pytest.fixture(scope="module")
def found():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("case", ["plain", "one step", "tangents"])
def test_values_gradients_and_tangents(found, name, case):
    assert max(found[f"{name} {case}"].values()) < EXACT


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("case", ["layernorm", "streamed"])
def test_layernorm_and_streamed_weights(found, name, case):
    assert max(found[f"{name} {case}"].values()) < EXACT
    assert max(found["lstm all streamed"].values()) < EXACT


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(found, activation):
    assert max(found[f"activation {activation}"].values()) < EXACT


@pytest.mark.parametrize("name", CELLS)
def test_split_products_have_float32_accuracy_at_any_scale(found, name):
    """Gradients and tangents are far below the range of float16 here."""
    assert max(found[f"{name} float32"].values()) < SINGLE


@pytest.mark.parametrize("name", DENSE)
def test_the_faster_precision_is_coarser_but_close(found, name):
    assert SINGLE < max(found[f"{name} float16"].values()) < 5e-3


@pytest.mark.parametrize("name", CELLS)
def test_a_broken_sequence_stays_alone(found, name):
    finite = torch.tensor(found[f"{name} broken"])
    expected = torch.ones(2, 3, 3, dtype=torch.bool)
    expected[1, 2, 1:] = False
    torch.testing.assert_close(finite, expected)


@pytest.mark.parametrize("name", CELLS)
def test_a_replica_is_the_same_alone(found, name):
    assert found[f"{name} alone"]


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


def test_unknown_precisions_are_refused():
    with pytest.raises(InputError, match="unknown precision"), precision("half"):
        pass


if __name__ == "__main__":
    print(json.dumps(run_all()))
