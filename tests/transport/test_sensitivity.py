"""Sensitivities along a direction against finite differences and against transport."""

import pytest
import torch

from lagreach import rollout
from lagreach.cells import unroll
from lagreach.errors import InputError
from lagreach.transport.carry import Steps, weights_of
from lagreach.transport.exact import by_weight, exact_transport
from lagreach.transport.sensitivity import immediate_sensitivity, total_sensitivity
from tests.cases import CELLS, normal, small_model


@pytest.mark.parametrize("cell", CELLS)
def test_immediate_and_total(cell, generator):
    model = small_model(cell, generator, num_layers=2)
    x = normal(generator, 2, 6, 3)
    part = rollout(model, x)
    direction = {n: normal(generator, *p.shape) for n, p in part.recurrence.params.items()}
    immediate = immediate_sensitivity(part, direction)
    total = total_sensitivity(model, x, direction)

    def moved(step):
        params = {n: p + step * direction[n] for n, p in part.recurrence.params.items()}
        held = part.recurrence.stack.step(part.x, part.previous, params)
        return held, unroll(part.recurrence.stack, part.x, part.initial, params)

    (held_up, free_up), (held_down, free_down) = moved(1e-5), moved(-1e-5)
    torch.testing.assert_close(immediate, (held_up - held_down) / 2e-5, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(total, (free_up - free_down) / 2e-5, rtol=1e-5, atol=1e-7)

    # ds_t/dtheta w = sum over lags of M_{t,t-l} B_{t-l} w, so <delta, total> = sum_l <lambda_l, immediate>
    delta = normal(generator, *part.states.shape)
    carried = sum(
        (c.value() * immediate[:, : c.value().shape[1]]).sum() for c, _ in exact_transport(part, delta, range(6))
    )
    torch.testing.assert_close(carried, (delta * total).sum(), rtol=1e-10, atol=1e-10)

    # and B_t w is the adjoint of the pullback to the weights
    pulled = by_weight(part.recurrence.params, list(direction), weights_of(Steps(part, list(direction)), delta)[0, 0])
    torch.testing.assert_close(
        sum((pulled[n] * direction[n]).sum() for n in pulled), (delta * immediate).sum(), rtol=1e-10, atol=1e-10
    )


def test_direction_must_fit(generator):
    model = small_model("lstm", generator)
    x = normal(generator, 2, 6, 3)
    with pytest.raises(InputError, match=r"'layers\.0\.W_i'"):
        immediate_sensitivity(rollout(model, x), {"layers.0.W_i": torch.zeros(3)})
    assert (total_sensitivity(model, x, {"readout.bias": torch.ones(2)}) == 0).all()
