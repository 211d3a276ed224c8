"""All steps of a rollout in one compiled call, beside the same steps in blocks, through torch: values and sums."""

import pytest
import torch
from torch import nn

from lagreach import GatedRNN, lag_gradients
from lagreach._util.threads import one_thread
from lagreach.adapters import as_view
from lagreach.cells.lstm import LSTM
from lagreach.cells.torch_gru import TorchGRU
from lagreach.data.batch import Batch
from lagreach.gradients.sequence_gradients import total_adjoint
from lagreach.kernels.cpu import pullback
from lagreach.kernels.cpu.kept_run import KeptRun
from lagreach.transport import carry
from lagreach.transport.carry import Carry, Steps, WeightSums
from lagreach.transport.exact import walk_back
from lagreach.transport.joined import Joined
from lagreach.transport.objective import make_objective
from lagreach.transport.rollout import rollout, run
from lagreach.transport.windows import Windows
from tests.cases import CELLS, TOLERANCE, VARIANTS, autograd_gradient, normal, small_model

SEQUENCES, TIME, LAGS = 3, 90, (0, 2, 5)  # more rows than are summed in one go
STACKS = [*((cell, layernorm, 1) for cell, layernorm in VARIANTS), ("lstm", True, 2), ("gru", False, 3)]


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


def sums_at(part, delta, anchors, reached):
    """Sums of weights' gradients at every lag, with weights of anchors and of what they reach; and whether in one call."""
    steps = Steps(part, [name for name in part.recurrence.params if "u_h" not in name])
    totals = [WeightSums(steps, anchors=anchors, kept=True), WeightSums(steps, reached)]
    walk = walk_back([Carry(steps, delta)], LAGS[-1], lambda lag, _: totals if lag in LAGS else [])
    return [[total.take() for total in totals] for lag, _ in walk if lag in LAGS], steps.joined is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("cell", "layernorm", "layers"), STACKS)
def test_sums_in_the_same_call_are_those_of_blocks(cell, layernorm, layers, dtype, generator, monkeypatch):
    model = small_model(cell, generator, dtype=dtype, layernorm=layernorm, num_layers=layers)
    part = rollout(model, normal(generator, SEQUENCES, TIME, 3, dtype=dtype))
    delta = normal(generator, *part.states.shape, dtype=dtype)
    weights = [normal(generator, SEQUENCES, TIME, k, dtype=dtype) for k in (3, 2)]
    assert part.states[:, :, 0].numel() > pullback.ROWS
    at_once, joined = sums_at(part, delta, *weights)
    monkeypatch.setattr(carry, "Joined", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    in_blocks, in_one_call = sums_at(part, delta, *weights)
    assert not in_one_call
    assert joined == (cell not in ("diag_elman", "min_gru"))  # which no kernel pulls back
    for ours, theirs in zip(at_once, in_blocks, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            scale = b.abs().max()
            torch.testing.assert_close(a / scale, b / scale, **TOLERANCE[dtype])


@pytest.mark.parametrize(("cell", "layernorm", "layers"), STACKS)
def test_sums_over_all_lags_are_autograds_gradient(cell, layernorm, layers, generator, monkeypatch):
    """The identity, on what a diagnosis runs: all layers in one call each, with their weights' gradients."""
    model = small_model(cell, generator, layernorm=layernorm, num_layers=layers)
    x, y = normal(generator, SEQUENCES, 40, 3), normal(generator, SEQUENCES, 40, 2)
    calls, plain = [], Joined.back_and_sums
    monkeypatch.setattr(Joined, "back_and_sums", lambda *a: calls.append(1) or plain(*a))
    total = lag_gradients(model, x, y, "mse").total()
    assert bool(calls) == (cell not in ("diag_elman", "min_gru"))
    for name, gradient in autograd_gradient(model, (model(x) - y).square().mean()).items():
        scale = gradient.abs().max()
        torch.testing.assert_close(total[name] / scale, gradient / scale, rtol=1e-10, atol=1e-10)


def test_sums_leave_the_range_of_single_precision(generator):
    model = GatedRNN("lstm", 3, 4, 1, generator=generator)
    part = rollout(model, torch.randn(2, 80, 3, generator=generator))
    tiny, plain = 1e-30 * torch.ones_like(part.states), torch.ones_like(part.states)
    ones = torch.ones(2, 80, 1)
    small, large = (sums_at(part, delta, ones, ones)[0] for delta in (tiny, plain))
    for ours, theirs in zip(small, large, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a * 1e30, b, rtol=1e-4, atol=1e-6 * b.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", [LSTM(), TorchGRU(), LSTM(layernorm=True), TorchGRU(layernorm=True)], ids=str)
def test_what_a_run_keeps_gives_the_pullback(cell, dtype, generator):
    units, rows, steps = 5, 70, 4
    params = {name: normal(generator, *shape, dtype=dtype) for name, shape in cell.shapes(3, units).items()}
    x = normal(generator, steps, rows, 3, dtype=dtype)
    s0 = normal(generator, rows, cell.state_size(units), dtype=dtype)
    kept, before = KeptRun(cell, x, s0, params), s0
    for step in range(steps):
        ours, theirs = kept.form(slice(step, step + 1)), cell.pullback(x[step], before, params).form
        assert ours.kernel == theirs.kernel
        for a, b in zip(
            (*ours.arrays, *ours.weights, ours.reads), (*theirs.arrays, *theirs.weights, theirs.reads), strict=True
        ):
            torch.testing.assert_close(a, b, **TOLERANCE[dtype])
        before = cell.step(x[step], before, params)
        torch.testing.assert_close(kept.states[step], before, **TOLERANCE[dtype])


@pytest.mark.parametrize(("module", "layers"), [(nn.LSTM, 1), (nn.GRU, 1), (nn.RNN, 1), (nn.LSTM, 2), (nn.GRU, 3)])
def test_windows_lead_back_by_what_is_kept_or_anew(module, layers, generator):
    model = nn.Sequential(module(3, 4, layers, batch_first=True).double())
    part = run(as_view(model[0], batch := batch_of(generator)).bind(batch))
    x, initial = part.x.transpose(0, 1).contiguous(), part.initial
    known = part.states.transpose(0, 1).contiguous()
    fresh, with_states = Windows(part.recurrence, x, initial), Windows(part.recurrence, x, initial, known)
    torch.testing.assert_close(fresh.states, known, **TOLERANCE[torch.float64])
    starts = [normal(generator, *initial.shape) for _ in range(2)]
    for step in (0, 3):
        for a, b in zip(fresh.back(step, starts), with_states.back(step, starts), strict=True):
            torch.testing.assert_close(a, b, **TOLERANCE[torch.float64])


def batch_of(generator):
    return Batch(normal(generator, SEQUENCES, TIME, 3), normal(generator, SEQUENCES, TIME, 4))


@pytest.mark.parametrize(("cell", "layers"), [*((cell, 1) for cell in CELLS), ("lstm", 2)])
def test_what_arrives_over_all_lags_is_what_autograd_finds(cell, layers, generator):
    model = small_model(cell, generator, num_layers=layers, output_size=4)
    batch = batch_of(generator)
    part = run(as_view(model, batch).bind(batch))
    objective = make_objective("mse", batch, part.recurrence, (SEQUENCES, TIME, 4), input_time=TIME)
    recurrence, state, states = part.recurrence, part.initial.detach().requires_grad_(), []
    for x in part.x.unbind(1):
        state = recurrence.stack.step(x, state, recurrence.params)
        states.append(state)
    losses = objective(recurrence.head(torch.stack(states, dim=1), recurrence.head_params))
    expected = torch.stack(torch.autograd.grad(losses.sum(), states), dim=1)
    torch.testing.assert_close(total_adjoint(part, objective), expected, rtol=1e-9, atol=1e-12)
