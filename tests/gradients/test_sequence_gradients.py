"""Whole gradients of each sequence: by a fused kernel's way back, beside the steps linearised one by one through torch."""

import pytest
import torch
from torch import nn

from lagreach.adapters import as_view
from lagreach.data.batch import Batch
from lagreach.gradients import sequence_gradients
from lagreach.gradients.sequence_gradients import (
    SequenceLinearisation,
    ThroughStates,
    _through_blocks,
    total_adjoint,
    whole_gradients,
)
from lagreach.transport.exact import by_weight
from lagreach.transport.objective import make_objective, output_gradient
from lagreach.transport.rollout import run
from tests.cases import CELLS, TOLERANCE, normal, small_model

SEQUENCES, TIME, INPUTS, OUTPUTS = 5, 70, 3, 2
LEFT_TO_TORCH = {  # weights that do not multiply an input or a state: r h, one unit, what is normalised
    "gru": ("U_h",),
    "diag_elman": ("u_h",),
    "layernorm": ("ln_gain", "ln_shift"),
}


class Readout(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(4, OUTPUTS)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


MODELS = {cell: (lambda g, cell=cell: small_model(cell, g, output_size=OUTPUTS), cell) for cell in CELLS}
MODELS |= {
    "lstm, two layers": (lambda g: small_model("lstm", g, num_layers=2, output_size=OUTPUTS), "lstm"),
    "diag_gate, normalised": (lambda g: small_model("diag_gate", g, layernorm=True, output_size=OUTPUTS), "layernorm"),
    "torch's LSTM": (lambda _: Readout(nn.LSTM(INPUTS, 4, batch_first=True)).double(), ""),
    "torch's GRU, three layers": (lambda _: Readout(nn.GRU(INPUTS, 4, 3, batch_first=True)).double(), ""),
    "torch's RNN": (lambda _: Readout(nn.RNN(INPUTS, 4, batch_first=True, bias=False)).double(), ""),
}


def measured(model, generator):
    batch = Batch(normal(generator, SEQUENCES, TIME, INPUTS), normal(generator, SEQUENCES, TIME, OUTPUTS))
    part = run(as_view(model, batch).bind(batch))
    return part, make_objective("mse", batch, part.recurrence, (SEQUENCES, TIME, OUTPUTS), input_time=TIME)


def same(a, b):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "min_gru"])
def test_one_pass_back_gives_what_the_steps_give(name, generator):
    make, kind = MODELS[name]
    part, objective = measured(make(generator), generator)
    names = [n for n in part.recurrence.params if n.split(".")[-1] not in LEFT_TO_TORCH.get(kind, ())]
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    ours = _through_blocks(part, delta, names)
    theirs = ThroughStates(SequenceLinearisation(part, names), total_adjoint(part, objective))
    assert ours is not None
    same(ours.by_sequence(), theirs.by_sequence())
    width = sum(part.recurrence.params[n].numel() for n in names)
    direction = by_weight(part.recurrence.params, names, normal(generator, width))
    same(ours.by_step(direction), theirs.by_step(direction))
    along = torch.cat([direction[n].flatten() for n in names])
    same(ours.by_step(direction).sum(1), torch.from_numpy(ours.by_sequence()) @ along)


@pytest.mark.parametrize(
    ("name", "weight"), [("gru", "U_h"), ("diag_elman", "u_h"), ("diag_gate, normalised", "ln_gain")]
)
def test_weights_that_multiply_something_else_go_through_the_steps(name, weight, generator):
    part, objective = measured(MODELS[name][0](generator), generator)
    names = [n for n in part.recurrence.params if n.endswith(weight)]
    assert isinstance(whole_gradients(part, objective, names), ThroughStates)


def test_weights_of_one_layer_of_several(generator):
    part, objective = measured(MODELS["lstm, two layers"][0](generator), generator)
    names = [n for n in part.recurrence.params if ".0." in n and "W_" in n]
    steps = ThroughStates(SequenceLinearisation(part, names), total_adjoint(part, objective))
    same(whole_gradients(part, objective, names).by_sequence(), steps.by_sequence())


def test_without_a_kernel_the_steps_are_taken(generator, monkeypatch):
    part, objective = measured(MODELS["lstm"][0](generator), generator)
    monkeypatch.setattr(sequence_gradients, "scan_pullback", lambda *_: None)
    assert isinstance(whole_gradients(part, objective, list(part.recurrence.params)), ThroughStates)


def test_tiny_gradients_do_not_underflow_in_single_precision(generator):
    part, objective = measured(Readout(nn.LSTM(INPUTS, 4, batch_first=True)), generator)
    delta = output_gradient(part.recurrence, objective, part.states)[0]
    names = ["rnn.weight_ih_l0"] if "rnn.weight_ih_l0" in part.recurrence.params else list(part.recurrence.params)[:1]
    plain, tiny = (_through_blocks(part, size * delta, names).by_sequence() for size in (1.0, 1e-34))
    assert abs(plain).min() > 0
    torch.testing.assert_close(torch.from_numpy(tiny * 1e34), torch.from_numpy(plain), rtol=1e-3, atol=0)
