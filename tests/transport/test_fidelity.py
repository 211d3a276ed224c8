"""What `fidelity` says about first order beside the exact gain, where both are known in closed form."""

import math

import pytest
import torch
from torch import nn

from lagreach import GatedRNN, fidelity
from lagreach.cells.const_gate import ConstGate
from lagreach.types import Status
from tests.cases import normal

TIME = 8


def coupled(gate, weight, generator):
    """Two units that feed each other, at rest: a step is ``(1-s) I + s u X``, of which first order sees ``(1-s) I``.

    The loss gradient is even in both, so that a step multiplies it by ``1 - s + s u``.
    """
    model = GatedRNN(ConstGate(gate=gate), 1, 2, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["U_h"].copy_(torch.tensor([[0.0, weight], [weight, 0.0]]))
        model.layers[0]["b_h"].zero_()
        model.readout.weight.fill_(1.0)
    return model


def measured(model, generator, lags, time=TIME, **options):
    y = normal(generator, 3, time, 1)
    return fidelity(model, torch.zeros(3, time, 1, dtype=torch.float64), y, lags, **options)


@pytest.mark.parametrize(
    ("weight", "step", "sizes"), [(1.0, 1.0, [1.0, 0.5, 0.25, 0.125]), (-0.5, 0.25, [1.0, 2.0, 4.0, 8.0])]
)
def test_gains_that_part_by_a_factor_of_two_a_step(weight, step, sizes, generator):
    gains = measured(coupled(0.5, weight, generator), generator, [0, 1, 2, 3])
    torch.testing.assert_close(gains.exact, torch.tensor([step**lag for lag in range(4)]).double())
    torch.testing.assert_close(gains.first_order, torch.tensor([0.5**lag for lag in range(4)]).double())
    torch.testing.assert_close(gains.ratio, torch.tensor(sizes).double())
    assert gains.status_by_lag == (Status.OK, Status.OK, Status.FIRST_ORDER_MISLEADS, Status.FIRST_ORDER_MISLEADS)
    assert gains.status is Status.FIRST_ORDER_MISLEADS
    assert gains.verdict == f"{Status.FIRST_ORDER_MISLEADS} (from lag 2, 2 of 4 lags)"


def test_gains_that_agree_within_the_allowed_factor(generator):
    gains = measured(coupled(0.5, 1.0, generator), generator, [0, 1])
    assert (gains.status, gains.verdict) == (Status.FIRST_ORDER_FAITHFUL, str(Status.FIRST_ORDER_FAITHFUL))
    just = measured(coupled(0.5, 1.9, generator), generator, [1])  # 2.9 times
    over = measured(coupled(0.5, 2.1, generator), generator, [1])  # 3.1 times
    assert (just.status, over.status) == (Status.FIRST_ORDER_FAITHFUL, Status.FIRST_ORDER_MISLEADS)


def test_gains_that_differ_by_more_than_a_float_holds(generator):
    gains = measured(coupled(0.5, 1.0, generator), generator, [1100], time=1101)
    torch.testing.assert_close(gains.log10_exact.item(), 0.0)
    torch.testing.assert_close(gains.log10_first_order.item(), -1100 * math.log10(2))
    assert gains.status is Status.FIRST_ORDER_MISLEADS


def test_two_gains_of_exactly_zero_agree(generator):
    gains = measured(coupled(1.0, 0.0, generator), generator, [0, 1, 3])
    assert gains.exact.tolist() == gains.first_order.tolist() == [1.0, 0.0, 0.0]
    assert gains.status is Status.FIRST_ORDER_FAITHFUL


def test_a_diagonal_jacobian_is_exact(generator):
    model = GatedRNN("diag_elman", 1, 2, 1, generator=generator, dtype=torch.float64)
    gains = measured(model, generator, [0, 1, 4])
    assert gains.status_by_lag == (Status.OK, Status.FIRST_ORDER_EXACT, Status.FIRST_ORDER_EXACT)
    assert (gains.status, gains.verdict) == (Status.FIRST_ORDER_EXACT, str(Status.FIRST_ORDER_EXACT))


def test_without_retention_first_order_ends_after_one_step(generator):
    """At lag 1 the diagonal of the Jacobian is compared as always; beyond it nothing is left of first order."""
    model = GatedRNN("elman", 1, 2, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model.layers[0]["U_h"].copy_(torch.tensor([[0.5, 0.1], [0.1, 0.5]]))
        model.layers[0]["b_h"].zero_()
        model.readout.weight.fill_(1.0)
    gains = measured(model, generator, [0, 1, 2, 5])
    torch.testing.assert_close(gains.exact, torch.tensor([1.0, 0.6, 0.36, 0.6**5]).double())
    torch.testing.assert_close(gains.first_order, torch.tensor([1.0, 0.5, 0.0, 0.0]).double())
    assert gains.status_by_lag == (Status.OK, Status.OK, Status.FIRST_ORDER_VANISHES, Status.FIRST_ORDER_VANISHES)
    assert gains.verdict == f"{Status.FIRST_ORDER_VANISHES} (from lag 2, 2 of 4 lags)"


def test_lags_that_no_anchor_reaches(generator):
    gains = measured(coupled(0.5, 0.0, generator), generator, [1, 2, 3, 5], lengths=[3, 1, 2])
    assert gains.status_by_lag == (Status.OK, Status.OK, Status.NO_ANCHOR, Status.NO_ANCHOR)
    assert gains.status is Status.NO_ANCHOR
    torch.testing.assert_close(gains.exact[:2], torch.tensor([0.5, 0.25]).double())
    assert gains.log10_exact[2:].isnan().all()
    assert gains.log10_first_order[2:].isnan().all()


def test_of_several_verdicts_the_worst_is_said(generator):
    """Misleading lags and lags without anchors: what misleads comes first."""
    gains = measured(coupled(0.5, 1.0, generator), generator, [1, 2, 5], lengths=[3, 3, 3])
    assert gains.status_by_lag == (Status.OK, Status.FIRST_ORDER_MISLEADS, Status.NO_ANCHOR)
    assert gains.verdict == f"{Status.FIRST_ORDER_MISLEADS} (from lag 2, 1 of 3 lags)"


def test_a_layer_without_first_order_has_an_exact_gain(generator):
    model = nn.Sequential(nn.LSTM(1, 3, proj_size=2, batch_first=True)).double()
    x, y = normal(generator, 3, TIME, 1), normal(generator, 3, TIME, 2)
    gains = fidelity(model, x, y, [0, 1, 4])
    assert gains.status_by_lag == (Status.OK, Status.FIRST_ORDER_UNAVAILABLE, Status.FIRST_ORDER_UNAVAILABLE)
    assert gains.log10_exact.isfinite().all()
    assert gains.log10_first_order.isnan().all()
    assert gains.verdict == str(Status.FIRST_ORDER_UNAVAILABLE)


def test_the_table_lists_every_lag(generator):
    gains = measured(coupled(0.5, 1.0, generator), generator, [0, 1, 2])
    rows = [[float(v) for v in line.split()] for line in str(gains).splitlines()[2:]]
    assert rows == [[0.0, 0.0, 0.0], [1.0, 0.0, -0.301], [2.0, 0.0, -0.602]]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, None])
def test_gains_are_over_all_sequences_and_layers(layers, chunk, generator):
    """Root mean squares over the anchors that reach back so far, by hand."""
    from lagreach import rollout
    from lagreach.transport.exact import exact_transport
    from lagreach.transport.first_order import first_order_transport

    model = GatedRNN("lstm", 1, 3, 1, num_layers=layers, generator=generator, dtype=torch.float64)
    x, y, lags = normal(generator, 3, TIME, 1), normal(generator, 3, TIME, 1), [0, 1, 3]
    part = rollout(model, x)
    states = part.states.requires_grad_()
    loss = (part.recurrence.head(states, part.recurrence.head_params) - y).square().mean((1, 2)).sum()
    (delta,) = torch.autograd.grad(loss, states)
    start = torch.stack([delta[:, lag:].square().sum() for lag in lags])
    exact = torch.stack([c.value().square().sum() for c, _ in exact_transport(part, delta, lags)])
    first = torch.stack([c.value().square().sum() for c in first_order_transport(part, delta, lags)])
    gains = fidelity(model, x, y, lags, chunk=chunk)
    torch.testing.assert_close(gains.exact, (exact / start).sqrt())
    torch.testing.assert_close(gains.first_order, (first / start).sqrt())
