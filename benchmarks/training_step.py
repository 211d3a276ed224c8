"""Forward and backward pass of `GatedRNN` beside the loop one writes by hand, `torch.nn.LSTM`, and the machine's floor.

W1: batch 16, T=1024, D=16, H=64; W2: batch 512, H=128; float32, squared error at every step.

- "lagreach": the fused kernels; "reference": the same network in the plain loop of `lagreach.kernels`
- "eager": one `nn.Linear` on the input and one on the state for each gate, all called at every step, as the equations
  read. It is our own writing and stands for the usual research script.
- "jax.scan": `jax.lax.scan` under `jax.jit`, where JAX is installed; "author": the paper author's own loop, for those who
  name a checkout of it with ``--author``
- "floor": the least work there is, on this machine in this run. As many multiplications as the step has, in products of
  large square matrices, and as many sigmoids and tanhs, vectorised, on an array that stays in the cache. No loop over
  time, no memory traffic, no readout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import author, jax_scan
from benchmarks.harness import Case, Op, Timing, measure
from lagreach import GatedRNN

GATE_INIT = 0.05
SHORT = 128  # steps over which float32 gradients, and those of W2, are compared
W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64}
W2 = {**W1, "sequences": 512, "hidden": 128}
WORKLOADS = {
    "full": {"W1": W1, "W2": W2},
    "quick": {"quick": {**W1, "time": 128}},
    "tiny": {"tiny": {"sequences": 2, "time": 7, "input": 3, "hidden": 4}},
}
REPEATS = {"W1": 9, "W2": 3, "quick": 3, "tiny": 1}
SQUARE = 512  # rows of the matrices of the floor


class EagerLoop(nn.Module, ABC):
    """A recurrent network by hand: a loop over time, a list of states, a linear readout."""

    kinds: ClassVar[str]  # one letter for each gate and the candidate
    shared: ClassVar[str] = ""  # those of width 1

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        for kind in self.kinds:
            width = 1 if kind in self.shared else hidden_size
            setattr(self, f"W_{kind}", nn.Linear(input_size, width))
            setattr(self, f"U_{kind}", nn.Linear(hidden_size, width, bias=False))
        self.hidden_size = hidden_size
        self.readout = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(seq, time, input) to (seq, time, 1)."""
        h = x.new_zeros(x.shape[0], self.hidden_size)
        c, outputs = h, []
        for t in range(x.shape[1]):
            h, c = self.step(x[:, t], h, c)
            outputs.append(h)
        return self.readout(torch.stack(outputs, dim=1))

    @abstractmethod
    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step; only the LSTM uses c."""


class EagerConstGate(EagerLoop):
    """(51)."""

    kinds = "h"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """A fixed share of the candidate."""
        g = torch.tanh(self.W_h(x) + self.U_h(h))
        return (1 - GATE_INIT) * h + GATE_INIT * g, c


class EagerDiagGate(EagerLoop):
    """(47)."""

    kinds = "sh"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """A learned share of the candidate."""
        s = torch.sigmoid(self.W_s(x) + self.U_s(h))
        g = torch.tanh(self.W_h(x) + self.U_h(h))
        return (1 - s) * h + s * g, c


class EagerSharedGate(EagerDiagGate):
    """(49): the same with one gate for all units."""

    shared = "s"


class EagerGRU(EagerLoop):
    """(15)-(18)."""

    kinds = "zrh"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Reset before the product."""
        z = torch.sigmoid(self.W_z(x) + self.U_z(h))
        r = torch.sigmoid(self.W_r(x) + self.U_r(h))
        g = torch.tanh(self.W_h(x) + self.U_h(r * h))
        return (1 - z) * h + z * g, c


class EagerLSTM(EagerLoop):
    """(4)-(6)."""

    kinds = "ifgo"

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Gates, cell, output."""
        i = torch.sigmoid(self.W_i(x) + self.U_i(h))
        f = torch.sigmoid(self.W_f(x) + self.U_f(h))
        g = torch.tanh(self.W_g(x) + self.U_g(h))
        o = torch.sigmoid(self.W_o(x) + self.U_o(h))
        c = f * c + i * g
        return o * torch.tanh(c), c


class TorchLSTM(nn.Module):
    """torch's own LSTM with a readout."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.readout = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(seq, time, input) to (seq, time, 1)."""
        return self.readout(self.lstm(x)[0])


EAGER: dict[str, type[EagerLoop]] = {
    "const_gate": EagerConstGate,
    "shared_gate": EagerSharedGate,
    "diag_gate": EagerDiagGate,
    "gru": EagerGRU,
    "lstm": EagerLSTM,
}


def cases(size: str) -> list[Case]:
    """Return the five cells of the paper at each workload."""
    return [
        Case(f"{name} {cell}", {"cell": cell, **shape}, REPEATS[name], jax_scan.note())
        for name, shape in WORKLOADS[size].items()
        for cell in EAGER
    ]


def run(case: Case) -> dict[str, Timing]:
    """Seconds per training step, without the optimiser's."""
    shape, cell = case.shape, case.shape["cell"]
    generator = torch.Generator().manual_seed(0)
    ours = GatedRNN(cell, shape["input"], shape["hidden"], 1, gate_init=GATE_INIT, generator=generator)
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
    y = torch.randn(shape["sequences"], shape["time"], 1, generator=generator)

    plain = deepcopy(ours)
    plain.kernel = "reference"
    models: dict[str, nn.Module] = {"lagreach": ours, "reference": plain, "eager": eager_twin(cell, ours)}
    if cell == "lstm":
        models["torch.nn"] = torch_twin(ours)
    check(models, x[:, :SHORT], y[:, :SHORT], rtol=1e-4)
    length = SHORT if shape["sequences"] > W1["sequences"] else shape["time"]  # W2 in float64 would need 20 GB
    check(
        {name: deepcopy(model).double() for name, model in models.items()},
        x[:, :length].double(),
        y[:, :length].double(),
        rtol=1e-8,
    )
    steps: dict[str, Callable[[], object]] = {name: training_step(model, x, y) for name, model in models.items()}
    in_jax, theirs = jax_scan.training_step(ours, x, y), author.training_step(ours, x, y, GATE_INIT)
    if in_jax is not None:
        check_jax(ours, x[:, :SHORT], y[:, :SHORT])
        steps["jax.scan"] = in_jax
    if theirs is not None:
        check_author(ours, x[:, :SHORT], y[:, :SHORT])
        steps["author"] = theirs
    return measure({**steps, "floor": floor(cell, shape)}, case.repeats)


def check_jax(ours: GatedRNN, x: Tensor, y: Tensor) -> None:
    """Compare loss and gradients in JAX with ours."""
    expected_loss = training_step(ours, x, y)()
    expected = comparable_gradients(ours)
    step = jax_scan.training_step(ours, x, y)
    assert step is not None
    loss, pytree = step()
    torch.testing.assert_close(torch.tensor(float(loss)), expected_loss, rtol=1e-4, atol=0)
    for name, gradient in jax_scan.gradients(pytree).items():
        error = torch.linalg.norm(gradient - expected[name]) / torch.linalg.norm(expected[name])
        assert error < 1e-4, f"gradient of {name} in JAX: relative difference {error:.2g}"


def check_author(ours: GatedRNN, x: Tensor, y: Tensor) -> None:
    """Compare the author's loss with ours, over a short time: rounding grows in a network that is chaotic."""
    step = author.training_step(ours, x, y, GATE_INIT)
    assert step is not None
    torch.testing.assert_close(step(), training_step(ours, x, y)(), rtol=1e-4, atol=0, msg="the author's loss differs")


def floor(cell: str, shape: Mapping[str, Any]) -> Callable[[], None]:
    """Return the multiplications and nonlinearities of a step, and nothing else."""
    from lagreach.kernels.cpu.nonlinear import activate, activate_gates

    D, H = shape["input"], shape["hidden"]
    rows = shape["sequences"] * shape["time"]
    width = sum(1 if kind in EAGER[cell].shared else H for kind in EAGER[cell].kinds)
    # forward, and back to the state and to the weights; to the weights of the input, but not to the input itself
    products = rows * width * (3 * H + 2 * D)
    tanhs = rows * H * (2 if cell == "lstm" else 1)
    gates = rows * (width - H)
    calls = max(1, round(products / SQUARE**3))
    columns = max(1, round(products / calls / SQUARE**2))
    A, B, C = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, columns), torch.empty(SQUARE, columns)
    tile = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)

    def work() -> None:
        for _ in range(calls):
            torch.mm(A, B, out=C)
        for function, count in ((activate, tanhs), (activate_gates, gates)):
            for _ in range(round(count / tile.size)):
                function(tile, 0, tile.shape[1])

    return work


def check(models: dict[str, nn.Module], x: Tensor, y: Tensor, rtol: float) -> None:
    """All must give the same loss and gradients.

    In float32 that can only be asked of short sequences: at T=1024 the gradients of this LSTM have grown a thousandfold
    and rounding alone makes a fifth of them, so the full length is compared in float64.
    """
    losses = {name: training_step(model, x, y)() for name, model in models.items()}
    expected = comparable_gradients(models["lagreach"])
    for name, model in models.items():
        torch.testing.assert_close(losses[name], losses["lagreach"], rtol=rtol, atol=0, msg=f"loss of {name} differs")
        for weight, gradient in comparable_gradients(model).items():
            error = torch.linalg.norm(gradient - expected[weight]) / torch.linalg.norm(expected[weight])
            assert error < rtol, f"gradient of {weight} in {name}: relative difference {error:.2g}, {x.dtype}"


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Forward and backward pass with fresh gradients; returns the loss."""

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return step


def eager_twin(cell: str, ours: GatedRNN) -> EagerLoop:
    """Build the hand-written network with the same weights."""
    twin, weights = EAGER[cell](ours.input_size, ours.hidden_size), ours.layers[0]
    with torch.no_grad():
        for kind in twin.kinds:
            getattr(twin, f"W_{kind}").weight.copy_(weights[f"W_{kind}"])
            getattr(twin, f"W_{kind}").bias.copy_(weights[f"b_{kind}"])
            getattr(twin, f"U_{kind}").weight.copy_(weights[f"U_{kind}"])
    twin.readout.load_state_dict(ours.readout.state_dict())
    return twin


def torch_twin(ours: GatedRNN) -> TorchLSTM:
    """Build torch's LSTM with the same weights."""
    twin, weights = TorchLSTM(ours.input_size, ours.hidden_size), ours.layers[0]
    with torch.no_grad():
        for target, kind in (("weight_ih_l0", "W"), ("weight_hh_l0", "U"), ("bias_ih_l0", "b")):
            getattr(twin.lstm, target).copy_(torch.cat([weights[f"{kind}_{gate}"] for gate in "ifgo"]))
        twin.lstm.bias_hh_l0.zero_()
    twin.readout.load_state_dict(ours.readout.state_dict())
    return twin


def comparable_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients of all weights, gates stacked, under the same names for every implementation."""
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    gradients = {"readout": named["readout.weight"]}
    if isinstance(model, TorchLSTM):
        return gradients | {
            "W": named["lstm.weight_ih_l0"],
            "U": named["lstm.weight_hh_l0"],
            "b": named["lstm.bias_ih_l0"],
        }
    kinds = model.kinds if isinstance(model, EagerLoop) else EAGER[model.cell.name].kinds
    forms = ("W_{}.weight", "U_{}.weight", "W_{}.bias")
    if isinstance(model, GatedRNN):
        forms = ("layers.0.W_{}", "layers.0.U_{}", "layers.0.b_{}")
    return gradients | {
        kind: torch.cat([named[form.format(k)] for k in kinds]) for kind, form in zip("WUb", forms, strict=True)
    }


OP = Op(
    name="training_step",
    about="forward and backward pass, squared error at every step",
    unit="training step",
    guards=(
        "tests/kernels/test_cpu.py::test_values_and_gradients_are_those_of_the_loop",
        "tests/kernels/test_cpu.py::test_long_sequences_of_many_rows",
        "tests/models/test_gated_rnn.py::test_torch_weights_give_torch_outputs",
        "tests/models/test_gated_rnn.py::test_works_with_torch_func",
        "tests/theory/test_identity.py::test_mse",
        "tests/theory/test_identity.py::test_float32",
    ),
    cases=cases,
    run=run,
)
