"""minGRU: closed forms, and all steps at once against the loop."""

import pytest
import torch

from lagreach import GatedRNN
from lagreach.cells.min_gru import MinGRU
from lagreach.errors import UnsupportedError
from lagreach.kernels import choose, scan
from lagreach.kernels.parallel import adjoint, linear_recurrence
from lagreach.testing import check_cell


def test_the_cell_keeps_its_protocol():
    assert "identity" in check_cell("min_gru").passed


def test_a_constant_input_is_approached_geometrically():
    """With a constant gate z, ``h_t = c (1 - (1-z)^t)``."""
    z, c, steps = 0.2, 3.0, 9
    logit = torch.tensor([z / (1 - z)], dtype=torch.float64).log()
    zero = torch.zeros(1, 1, dtype=torch.float64)
    params = {"W_z": zero, "b_z": logit, "W_h": torch.full_like(zero, c), "b_h": torch.zeros_like(logit)}
    x = torch.ones(1, steps, 1, dtype=torch.float64)
    states = scan(MinGRU(), x, torch.zeros(1, 1, dtype=torch.float64), params)[0, :, 0]
    expected = c * (1 - (1 - z) ** torch.arange(1, steps + 1, dtype=torch.float64))
    torch.testing.assert_close(states, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("time", [1, 2, 7, 16, 33])
def test_all_steps_at_once_equal_the_loop(generator, time):
    """States and gradients of every input, with a first state and replicas."""
    drawn = [MinGRU().example(generator, time=time) for _ in range(3)]
    x = torch.stack([one[0] for one in drawn]).requires_grad_()
    s0 = torch.stack([one[1][:, 0] for one in drawn]).requires_grad_()
    params = {name: torch.stack([one[2][name] for one in drawn]).requires_grad_() for name in drawn[0][2]}
    pull = torch.randn(3, 2, time, 4, generator=generator, dtype=torch.float64)
    both = []
    for kernel in ("parallel", "reference"):
        states = scan(MinGRU(), x, s0, params, kernel=kernel)
        both.append([states, *torch.autograd.grad(states, [x, s0, *params.values()], pull)])
    for got, expected in zip(*both, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


def test_gates_that_close_leave_no_rounding_behind(generator):
    """Where a step keeps nothing, what came before is gone: sums of logarithms would have left NaN."""
    keep = torch.rand(2, 20, 3, generator=generator)
    keep[:, 10] = 0.0
    add = torch.randn(2, 20, 3, generator=generator)
    start = torch.full((2, 3), 1e30)
    after = linear_recurrence(keep, add, start)[:, 10:]
    expected = linear_recurrence(keep[:, 11:], add[:, 11:], add[:, 10])
    torch.testing.assert_close(after, torch.cat((add[:, 10:11], expected), dim=1))


def test_it_is_differentiable_twice_and_its_adjoint_is_the_way_back(generator):
    keep, add = (torch.rand(2, 11, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    start = torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(linear_recurrence, (keep, add, start))
    assert torch.autograd.gradgradcheck(linear_recurrence, (keep, add, start))
    pull = torch.randn(2, 11, 3, generator=generator, dtype=torch.float64)
    (through,) = torch.autograd.grad(linear_recurrence(keep, add, start), add, pull)
    torch.testing.assert_close(adjoint(keep.detach(), pull), through)


def test_it_is_chosen_for_this_cell_alone():
    where = torch.device("cpu"), torch.float32
    assert choose("auto", MinGRU(), *where).__name__ == "lagreach.kernels.parallel"
    with pytest.raises(UnsupportedError, match="linear"):
        choose("parallel", GatedRNN("gru", 1, 2, 1).cell, *where)


@pytest.mark.parametrize("s0", [0.5, 0.05])
def test_gates_start_where_they_are_asked_to(generator, s0):
    model = GatedRNN("min_gru", 2, 16, 1, gate_init=s0, generator=generator)
    gate = model.cell.gates(torch.zeros(1, 2), torch.zeros(1, 16), dict(model.layers[0].items()))["z"]
    torch.testing.assert_close(gate, torch.full_like(gate, s0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_trains_as_a_recorded_graph():
    from lagreach.study.optimisers import OptimiserSettings
    from lagreach.study.train import train
    from lagreach.tasks import MultiLag

    task = MultiLag(lags=(2,), coefficients=(1.0,), noise=0.1, input_size=1, length=12)
    models = [GatedRNN("min_gru", 1, 8, 1, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    options = {"sequences": 128, "epochs": 5, "settings": OptimiserSettings(lr=0.02)}
    losses = [train(models, task, device=device, **options).loss for device in ("cpu", "cuda")]
    assert abs(losses[0] - losses[1]).max() < 1e-3
    assert (losses[1][-1] < losses[1][0]).all()
