"""Layers of torch.nn run on the kernels of the cells they are, with the states of their own loop."""

import pytest
import torch
from torch import nn

from lagreach._util.autodiff import directional_derivative
from lagreach.adapters.torch_cells import cell_of
from lagreach.cells import unroll
from lagreach.cells.stack import Stack
from lagreach.kernels import scan, scan_tangent

MODULES = {
    "rnn": nn.RNN(3, 5),
    "relu": nn.RNN(3, 5, nonlinearity="relu"),
    "gru": nn.GRU(3, 5),
    "lstm": nn.LSTM(3, 5),
    "bare lstm": nn.LSTM(3, 5, bias=False),
    "bare gru": nn.GRU(3, 5, bias=False),
    "projected": nn.LSTM(3, 5, proj_size=2),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
def test_states_gradients_and_tangents_are_those_of_the_loop(name, generator):
    cell = cell_of(MODULES[name])
    shapes = cell.shapes(3, 5)
    params = {
        k: torch.randn(v, generator=generator, dtype=torch.float64).div(2).requires_grad_() for k, v in shapes.items()
    }
    x = torch.randn(4, 9, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    s0 = torch.randn(4, cell.state_size(5), generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 9, cell.state_size(5), generator=generator, dtype=torch.float64)
    ours, loop = scan(cell, x, s0, params), unroll(cell, x, s0, params)
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=1e-10)
    leaves = [x, s0, *params.values()]
    gradients, expected = (torch.autograd.grad((states * weight).sum(), leaves) for states in (ours, loop))
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    plain = {k: v.detach() for k, v in params.items()}
    along = {k: torch.randn(v, generator=generator, dtype=torch.float64) for k, v in shapes.items()}
    stack = Stack((cell,), 5, ({k: k for k in shapes},))
    tangent = scan_tangent(stack, x.detach(), s0.detach(), plain, along)
    slow = directional_derivative(lambda p: unroll(cell, x.detach(), s0.detach(), p), plain, along)
    torch.testing.assert_close(tangent, slow, rtol=1e-9, atol=1e-9)


def test_the_kernel_is_used():
    cell, _ = cell_of(MODULES["lstm"]).plain(
        dict(zip(("weight_ih", "weight_hh"), MODULES["lstm"].all_weights[0][:2], strict=True))
    )
    assert type(cell).__name__ == "LSTM"
    assert cell_of(MODULES["projected"]).plain({})[0].proj_size == 2
