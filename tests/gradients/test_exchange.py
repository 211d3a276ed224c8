"""Exchanging one input is what it says: against plain autograd, for every kind of head, mask and draw of positions."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.adapters import find_views
from lagreach.cells.activations import Activation
from lagreach.cells.diag_elman import DiagElman
from lagreach.data.autoregression import autoregression
from lagreach.data.batch import Batch
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.gradients import exchange as exchange_module
from lagreach.gradients.exchange import Exchanged, ExchangePlan, affordable_positions, exchange
from lagreach.gradients.head_reach import EVERYTHING, NOTHING, OWN_STEP, head_reach
from lagreach.gradients.lag_contrasts import LagContrasts, lag_contrasts
from lagreach.gradients.partial_inputs import RIDGE, Neighbours
from lagreach.transport.objective import Objective, output_gradient
from lagreach.transport.rollout import run
from tests.adapters.scan_cases import Wrapped, randomise
from tests.cases import normal, small_model

SETTINGS = MeasureSettings(probes=1, blocks=8)
SEQUENCES, TIME, LAGS = 18, 9, (0, 1, 4)
ALL = 10**6  # positions


@pytest.fixture(autouse=True)
def _single_thread(_as_users_run_it):
    with one_thread():
        yield


class WithHead(nn.Module):
    """A GRU whose readout looks at its own step, through a layer of its own, or at all steps at once."""

    def __init__(self, pooled):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.hidden, self.out, self.score = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(4, 1)
        self.pooled = pooled

    def head(self, states):
        if self.pooled:
            states = (self.score(states).softmax(1) * states).sum(1, keepdim=True)
        return self.out(self.hidden(states).tanh())

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def difference_of_losses(loss, output, y, other, weights):
    """Loss of one sequence with its own target minus that with its partner's, over the steps that count in both."""
    if loss == "mse":
        plain, swapped = ((output - target).square().mean(-1) for target in (y, other))
    else:
        plain, swapped = (cross_entropy(output, target, reduction="none") for target in (y, other))
    return ((plain - swapped) * weights).sum() / weights.sum()


def brute_force(plan, head, loss, x, y, weights, lag, neighbours=None):
    """D of one lag by block, from one run and one backward pass for every sequence, anchor and exchange."""
    recurrence = plan.view.template
    stack, params = recurrence.stack, {name: p.detach() for name, p in recurrence.params.items()}
    sums = np.zeros((plan.block_plan.count, plan.width))
    count = np.zeros(plan.block_plan.count)

    def run(inputs):
        states, state = [], torch.zeros(1, stack.state_size, dtype=x.dtype)
        for one in inputs:
            state = stack.step(one[None], state, params)
            states.append(state)
        return torch.cat(states)

    def lag_gradient(inputs, a, b, t):
        states = run(inputs).requires_grad_()
        shared = weights[a] * weights[b]
        value = difference_of_losses(loss, head(states[None])[0], y[a], y[b], shared)
        (delta,) = torch.autograd.grad(value, states)
        mine = {name: params[name].clone().requires_grad_() for name in plan.names}
        position = t - lag
        before = states[position - 1 : position].detach() if position else torch.zeros(1, stack.state_size).to(x)
        state = stack.step(inputs[position : position + 1], before, params | mine)
        for later in range(position + 1, t + 1):
            state = stack.step(inputs[later : later + 1], state, params)
        grads = torch.autograd.grad(state[0], list(mine.values()), grad_outputs=delta[t])
        return torch.cat([g.flatten() for g in grads])

    for pair, block in zip(plan.block_plan.pairs, plan.block_plan.blocks, strict=True):
        for a, b in (pair, pair[::-1]):
            count[block] += 1
            for t in range(lag, x.shape[1]):
                exchanged, position = x[a].clone(), t - lag
                apart = (x[a] - x[b])[None]
                if neighbours is not None:  # the neighbours that the anchor has seen, and no others
                    apart = torch.stack([neighbours.unpredicted(apart, min(lag, neighbours.order))[0]])
                exchanged[position] -= apart[0, position]
                change = lag_gradient(x[a], a, b, t) - lag_gradient(exchanged, a, b, t)
                sums[block] += change.numpy() / 2
    return sums / count[:, None]


def data_of(generator, loss="mse", outputs=2):
    x = normal(generator, SEQUENCES, TIME, 3)
    if loss == "mse":
        return x, normal(generator, SEQUENCES, TIME, outputs)
    return x, torch.randint(0, outputs, (SEQUENCES, TIME), generator=generator)


def assert_is_brute_force(plan, exchange_plan, head, loss, x, y, weights, neighbours=None):
    exchanged = exchange(plan, exchange_plan)
    for column, lag in enumerate(exchange_plan.lags):
        expected = brute_force(plan, head, loss, x, y, weights, lag, neighbours)
        np.testing.assert_allclose(exchanged.data[:, column], expected, rtol=1e-9, atol=1e-12)
        assert np.abs(expected).max() > 1e-5
    return exchanged


@pytest.mark.thorough
@pytest.mark.parametrize("cell", ["lstm", "gru", "diag_gate"])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_the_difference_of_two_lag_gradients(cell, layers, generator):
    model = small_model(cell, generator, num_layers=layers)
    x, y = data_of(generator)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    assert head_reach(plan) == NOTHING
    exchange_plan = ExchangePlan(LAGS, ALL, NOTHING)
    head = lambda states: model.readout(model.stack.output(states))  # noqa: E731
    exchanged = assert_is_brute_force(plan, exchange_plan, head, "mse", x, y, torch.ones(SEQUENCES, TIME))
    np.testing.assert_allclose(exchanged.kept, lag_contrasts(plan, LAGS).data, rtol=1e-9, atol=1e-14)


def test_masks_and_classes(generator):
    model = small_model("gru", generator, output_size=3)
    x, y = data_of(generator, "cross_entropy", 3)
    mask = torch.rand(SEQUENCES, TIME, generator=generator, dtype=torch.float64) * (
        torch.rand(SEQUENCES, TIME, generator=generator) < 0.7
    )
    mask[:, -1] = 1.0
    plan = plan_measurement(model, (x, y, mask), "cross_entropy", LAGS, settings=SETTINGS)
    assert head_reach(plan) == NOTHING  # the outputs drop out of a difference of two targets
    assert_is_brute_force(plan, ExchangePlan(LAGS, ALL, NOTHING), model.readout, "cross_entropy", x, y, mask)


@pytest.mark.thorough
def test_what_lies_beyond_a_sequence_does_not_count(generator):
    model = small_model("lstm", generator)
    x, y = data_of(generator)
    lengths = torch.randint(5, TIME + 1, (SEQUENCES,), generator=generator)
    inside = (torch.arange(TIME) < lengths[:, None]).double()
    plan = plan_measurement(model, {"x": x, "y": y, "lengths": lengths}, "mse", LAGS, settings=SETTINGS)
    head = lambda states: model.readout(model.stack.output(states))  # noqa: E731
    assert_is_brute_force(plan, ExchangePlan(LAGS, ALL, NOTHING), head, "mse", x, y, inside)


@pytest.mark.thorough
@pytest.mark.parametrize(("pooled", "reach"), [(False, OWN_STEP), (True, EVERYTHING)])
def test_heads_that_look_at_states(pooled, reach, generator):
    """The gradient at the anchor is then that of the states after the exchange."""
    torch.manual_seed(1)
    model = WithHead(pooled).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    x = normal(generator, SEQUENCES, TIME, 3)
    y = normal(generator, SEQUENCES, 1 if pooled else TIME, 2)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    assert head_reach(plan) == reach
    weights = torch.ones(SEQUENCES, y.shape[1], dtype=torch.float64)
    exchanged = assert_is_brute_force(plan, ExchangePlan(LAGS, ALL, reach), model.head, "mse", x, y, weights)
    blind = exchange(plan, ExchangePlan(LAGS, ALL, NOTHING))
    assert np.abs(blind.data - exchanged.data).max() > 1e-3 * np.abs(exchanged.data).max()


def test_exchanging_the_input_turns_the_sign(generator):
    """What makes the test exact: with one anchor, D of the exchanged data is minus D, whatever the network and the target."""
    torch.manual_seed(2)
    model = WithHead(pooled=False).double()
    x, y = normal(generator, SEQUENCES, TIME, 3), normal(generator, SEQUENCES, 2)
    lag, position = 4, TIME - 5
    plan = plan_measurement(model, (x, y), "mse", [lag], settings=SETTINGS)
    first, second = plan.block_plan.pairs.T
    changed = x.clone()
    changed[first, position], changed[second, position] = x[second, position], x[first, position]
    other = replace(plan_measurement(model, (changed, y), "mse", [lag], settings=SETTINGS), block_plan=plan.block_plan)
    exchange_plan = ExchangePlan((lag,), ALL, head_reach(plan))
    before, after = exchange(plan, exchange_plan), exchange(other, exchange_plan)
    assert exchange_plan.reach == OWN_STEP
    assert np.abs(before.data).max() > 1e-4
    np.testing.assert_allclose(after.data, -before.data, rtol=1e-9, atol=1e-14)
    assert (
        np.abs(after.kept + before.kept).max() > 0.1 * np.abs(before.kept).max()
    )  # which the swap contrast does not do


def test_a_linear_network_gives_the_swap_contrast(generator):
    """Jacobians that do not depend on inputs carry no other input into a lag."""
    linear = DiagElman(Activation("linear", lambda v: 1.0 * v, 1.0, 1.0, 1.0))
    model = GatedRNN(linear, 2, 4, 1, generator=generator, dtype=torch.float64)
    x, y = normal(generator, 20, 12, 2), normal(generator, 20, 12, 1)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    exchanged = exchange(plan, ExchangePlan(LAGS, ALL, NOTHING))
    np.testing.assert_allclose(exchanged.data, exchanged.kept, rtol=1e-9, atol=1e-14)


@pytest.mark.thorough
def test_the_part_that_neighbours_predict_stays(generator):
    """Neighbours after the anchor are not used, those before the start do not exist."""
    model = small_model("lstm", generator)
    x, y = data_of(generator)
    step = 0.6 * (np.eye(3) + 0.3 * np.eye(3, k=1))
    still = np.linalg.solve(np.eye(9) - np.kron(step, step), np.eye(3).ravel()).reshape(3, 3)
    covariances = np.stack([np.linalg.matrix_power(step, k) @ still for k in range(5)])[:, None]
    neighbours = Neighbours(autoregression(covariances, np.full(5, 1e6), RIDGE), covariances[0])
    assert neighbours.order == 1
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    head = lambda states: model.readout(model.stack.output(states))  # noqa: E731
    exchange_plan = ExchangePlan(LAGS, ALL, NOTHING, neighbours)
    exchanged = assert_is_brute_force(plan, exchange_plan, head, "mse", x, y, torch.ones(SEQUENCES, TIME), neighbours)
    np.testing.assert_allclose(exchanged.kept, lag_contrasts(plan, LAGS, neighbours).data, rtol=1e-9, atol=1e-14)


def test_an_input_that_a_convolution_shows_to_several_steps_is_exchanged_in_all_of_them(generator):
    """The whole model run again with one input exchanged, by a lag that its head does not see directly."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    config = mamba.MambaConfig(hidden_size=6, state_size=2, num_hidden_layers=1, conv_kernel=3, time_step_rank=2)
    model = randomise(Wrapped(mamba.MambaMixer(config, 0).double(), inputs=6, outputs=1).double())
    x, y, lag = normal(generator, 16, 8, 6), normal(generator, 16, 1), 4
    call = lambda model, batch: model(batch.x)[:, -1]  # noqa: E731
    (view,) = find_views(model, Batch(x, y), call)
    plan = plan_measurement(view, (x, y), "mse", [lag], settings=SETTINGS)
    position = x.shape[1] - 1 - lag
    expected = np.zeros((plan.block_plan.count, plan.width))
    for pair, block in zip(plan.block_plan.pairs, plan.block_plan.blocks, strict=True):
        both, swapped = x[pair], x[pair].clone()
        swapped[0, position], swapped[1, position] = both[1, position], both[0, position]
        bound = run(view.bind(Batch(both, y[pair])))
        delta = output_gradient(bound.recurrence, difference_of_targets(y[pair]), bound.states)[0][:, -1]
        for inputs, sign in ((both, 0.5), (swapped, -0.5)):
            part = run(view.bind(Batch(inputs, y[pair])))
            leaves = {name: part.recurrence.params[name].clone().requires_grad_() for name in plan.names}
            state = part.previous[:, position]
            for step in range(position, x.shape[1]):
                weights = part.recurrence.params | (leaves if step == position else {})
                state = part.recurrence.stack.step(part.x[:, step], state, weights)
            grads = torch.autograd.grad(state, list(leaves.values()), grad_outputs=delta)
            expected[block] += sign * torch.cat([g.flatten() for g in grads]).numpy() / 2
    exchanged = exchange(plan, ExchangePlan((lag,), ALL, head_reach(plan)))
    np.testing.assert_allclose(exchanged.data[:, 0], expected, rtol=1e-8, atol=1e-12)
    assert np.abs(expected).max() > 1e-6


def difference_of_targets(y):
    """A loss whose gradient is that of one's own target minus that of the partner's."""
    return Objective(lambda output, _, __: -2 * (output[:, 0, 0] * (y - y.flip(0))[:, 0]), y, torch.ones(2, 1))


def thin_plan(seed):
    return ExchangePlan(LAGS, 3, NOTHING, seed=seed)


@pytest.mark.thorough
def test_drawn_positions_are_right_on_average(generator):
    model = small_model("gru", generator)
    x, y = data_of(generator)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    whole = exchange(plan, ExchangePlan(LAGS, ALL, NOTHING))
    drawn = [exchange(plan, thin_plan(seed)) for seed in range(200)]
    for name in ("data", "kept"):
        values = np.stack([getattr(one, name) for one in drawn])
        away = (values.mean(0) - getattr(whole, name)) / (values.std(0) / len(drawn) ** 0.5)
        assert np.abs(away).max() < 5
        assert 0.8 < np.square(away).mean() ** 0.5 < 1.2


def test_the_contrast_takes_most_of_the_chance_out(generator):
    model = small_model("gru", generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)  # nearly linear, as fresh networks are
    x, y = data_of(generator)
    plan = plan_measurement(model, (x, y), "mse", LAGS, settings=SETTINGS)
    whole = exchange(plan, ExchangePlan(LAGS, ALL, NOTHING))
    np.testing.assert_array_equal(whole.controlled(whole.kept), whole.data)
    drawn = exchange(plan, thin_plan(0))
    error, left = (np.square(v - whole.data).sum((0, 2)) for v in (drawn.data, drawn.controlled(whole.kept)))
    assert (left < 0.05 * error).all()


@pytest.mark.parametrize("positions", [3, ALL])
def test_windows_give_what_carrying_everything_back_gives(positions, generator, monkeypatch):
    torch.manual_seed(0)
    plan = plan_measurement(
        WithHead(pooled=False).double(),
        (normal(generator, SEQUENCES, TIME, 3), normal(generator, SEQUENCES, TIME, 2)),
        "mse", [1, 2, 4], settings=SETTINGS,
    )  # fmt: skip
    means = []
    for linearised in (0, 10**6):  # as if linearising cost nothing, and as if it cost everything
        monkeypatch.setattr(exchange_module, "LINEARISED", linearised)
        means.append(exchange(plan, ExchangePlan(LAGS[1:], positions, head_reach(plan), seed=1)))
    for one in ("data", "kept"):
        np.testing.assert_allclose(getattr(means[0], one), getattr(means[1], one), rtol=1e-9, atol=1e-15)


def test_pieces_and_shards_do_not_matter(generator):
    model = small_model("lstm", generator)
    plan = plan_measurement(model, data_of(generator), "mse", LAGS, settings=SETTINGS)
    one_pair_at_a_time = replace(plan, memory=1)
    whole, pieces = exchange(plan, thin_plan(3)), exchange(one_pair_at_a_time, thin_plan(3))
    shards = Exchanged.merge([exchange(plan, thin_plan(3), part) for part in ([5, 1, 2], [0, 3, 4, 6, 7])])
    for other in (pieces, shards):
        np.testing.assert_allclose(other.data, whole.data, rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(other.kept, whole.kept, rtol=1e-10, atol=1e-15)
    contrasts = [lag_contrasts(plan, LAGS, blocks=part) for part in ([4, 5, 6, 7], range(4))]
    merged = LagContrasts.merge(contrasts)
    np.testing.assert_allclose(merged.data, lag_contrasts(one_pair_at_a_time, LAGS).data, rtol=1e-10, atol=1e-15)
    with pytest.raises(Exception, match="two parts hold the same block"):
        LagContrasts.merge(contrasts * 2)
    with pytest.raises(Exception, match="two parts hold the same block"):
        Exchanged.merge([whole, whole])


def test_long_lags_leave_the_range_of_single_precision(generator):
    """A gain of 1e-50 at the longest lag: what is carried is scaled on the way."""
    model = GatedRNN("const_gate", 1, 2, 1, gate_init=0.9, generator=generator)
    x, y = normal(generator, 16, 60, 1, dtype=torch.float32), normal(generator, 16, 60, 1, dtype=torch.float32)
    with torch.no_grad():
        model.layers[0]["U_h"].mul_(0.01)
    lags = (3, 50)
    plan = plan_measurement(model, (x, y), "mse", lags, settings=SETTINGS)
    exact = plan_measurement(deepcopy(model).double(), (x.double(), y.double()), "mse", lags, settings=SETTINGS)
    exchange_plan = ExchangePlan(lags, ALL, NOTHING)
    single, double = exchange(plan, exchange_plan), exchange(replace(exact, block_plan=plan.block_plan), exchange_plan)
    size = np.abs(double.data).max(axis=(0, 2))
    assert 0 < size[1] < 1e-45
    np.testing.assert_allclose(single.data / size[:, None], double.data / size[:, None], atol=1e-3)


def test_work_is_bounded():
    for time in (40, 400, 4000):
        lags = range(0, time, max(1, time // 7))
        run = max(lags) + 1
        work = affordable_positions(list(lags), time) * (3 * run + 2 * sum(lag + 1 for lag in lags))
        assert work <= max(time * time / 4, 32 * (3 * run + 2 * sum(lag + 1 for lag in lags)))
