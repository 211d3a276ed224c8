"""Forward and backward pass of `GatedRNN` beside the loop one writes by hand, and `torch.nn.LSTM`.

W1: batch 16, T=1024, D=16, H=64, float32, squared error at every step. "eager" has one `nn.Linear` on the input
and one on the state for each gate, all called at every step, as the equations read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.harness import Case, Op, Timing, measure
from lagreach import GatedRNN

GATE_INIT = 0.05
SHORT = 128  # steps over which float32 gradients are compared
W1 = {"sequences": 16, "time": 1024, "input": 16, "hidden": 64}
WORKLOADS = {
    "full": ("W1", W1),
    "quick": ("quick", {**W1, "time": 128}),
    "tiny": ("tiny", {"sequences": 2, "time": 7, "input": 3, "hidden": 4}),
}


class EagerLoop(nn.Module):
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

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step; only the LSTM uses c."""
        raise NotImplementedError


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
    """Return the five cells of the paper."""
    name, shape = WORKLOADS[size]
    repeats = {"full": 9, "quick": 3, "tiny": 1}[size]
    return [Case(f"{name} {cell}", {"cell": cell, **shape}, repeats) for cell in EAGER]


def run(case: Case) -> dict[str, Timing]:
    """Seconds per training step, without the optimiser's."""
    shape, cell = case.shape, case.shape["cell"]
    generator = torch.Generator().manual_seed(0)
    ours = GatedRNN(cell, shape["input"], shape["hidden"], 1, gate_init=GATE_INIT, generator=generator)
    x = torch.randn(shape["sequences"], shape["time"], shape["input"], generator=generator)
    y = torch.randn(shape["sequences"], shape["time"], 1, generator=generator)

    models: dict[str, nn.Module] = {"lagreach": ours, "eager": eager_twin(cell, ours)}
    if cell == "lstm":
        models["torch.nn"] = torch_twin(ours)
    check(models, x[:, :SHORT], y[:, :SHORT], rtol=1e-4)
    check({name: deepcopy(model).double() for name, model in models.items()}, x.double(), y.double(), rtol=1e-8)
    return measure({name: training_step(model, x, y) for name, model in models.items()}, case.repeats)


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
    found = {"readout": named["readout.weight"]}
    if isinstance(model, TorchLSTM):
        return found | {"W": named["lstm.weight_ih_l0"], "U": named["lstm.weight_hh_l0"], "b": named["lstm.bias_ih_l0"]}
    kinds = model.kinds if isinstance(model, EagerLoop) else EAGER[model.cell.name].kinds
    forms = ("W_{}.weight", "U_{}.weight", "W_{}.bias")
    if isinstance(model, GatedRNN):
        forms = ("layers.0.W_{}", "layers.0.U_{}", "layers.0.b_{}")
    return found | {
        kind: torch.cat([named[form.format(k)] for k in kinds]) for kind, form in zip("WUb", forms, strict=True)
    }


OP = Op(
    name="training_step",
    about="forward and backward pass, squared error at every step",
    unit="training step",
    guards=(
        "tests/test_model.py::test_torch_weights_give_torch_outputs",
        "tests/test_model.py::test_works_with_torch_func",
        "tests/theory/test_identity.py::test_mse",
        "tests/theory/test_identity.py::test_float32",
    ),
    cases=cases,
    run=run,
)
