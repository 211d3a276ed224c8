"""The Triton kernels on a GPU: float32 accuracy at every width, replicas apart, many steps of training."""

import pytest
import torch
from torch import Tensor

from lagreach.cells import Cell, all_cells
from lagreach.kernels import choose, scan
from lagreach.kernels.gpu import precision
from lagreach.kernels.gpu.plan import FAMILIES, Shape, shaped
from lagreach.kernels.gpu.readout import ReadOne, knows
from lagreach.study.replicas import read

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CELLS = [name for name in all_cells() if name in FAMILIES]
DENSE = [name for name in CELLS if FAMILIES[name].dense]
SHAPES = {
    "usual": Shape(),
    "units_first": Shape(units_first=True),
    "alone": Shape(alone=True),
    "sums": Shape(sums=True),
}
LIMIT = 1e-5  # on relative errors


def problem(cell: Cell, hidden: int, sequences: int, time: int, replicas: int = 2) -> tuple[Tensor, ...]:
    """Inputs, first states and weights at a scale at which gradients neither vanish nor grow."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(sequences, time, 5), (sequences, cell.state_size(hidden)), *cell.shapes(5, hidden).values()]
    drawn = [torch.randn(replicas, *shape, generator=generator, device="cuda") for shape in shapes]
    return *drawn[:2], *(0.5 * w / w.shape[-1] ** 0.5 for w in drawn[2:])


def measured(cell: Cell, kernel: str, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """States, tangent and gradients, in directions that do not depend on the dtype."""
    names = cell.shapes(5, cell.output(inputs[1]).shape[-1])

    def run(x, s0, *weights):
        return scan(cell, x, s0, dict(zip(names, weights, strict=True)), kernel=kernel)

    leaves = tuple(v.to(dtype).requires_grad_() for v in inputs)
    states = run(*leaves)
    generator = torch.Generator("cuda").manual_seed(1)
    pull, *push = (torch.randn(v.shape, generator=generator, device="cuda").to(dtype) for v in (states, *leaves))
    gradients = torch.autograd.grad(states, leaves, pull)
    _, tangent = torch.func.jvp(run, tuple(v.detach() for v in leaves), tuple(push))
    return [states.detach(), tangent, *gradients]


def largest_error(cell: Cell, inputs: tuple[Tensor, ...]) -> float:
    got = measured(cell, "triton", inputs, torch.float32)
    expected = measured(cell, "reference", inputs, torch.float64)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("hidden", "sequences"), [(7, 3), (16, 16), (64, 33), (100, 16), (128, 16), (256, 16)])
def test_float32_accuracy(name, hidden, sequences):
    cell = all_cells()[name]()
    assert largest_error(cell, problem(cell, hidden, sequences, 40)) < LIMIT


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("hidden", "sequences"), [(20, 3), (64, 16), (128, 37)])
def test_layernorm_in_every_shape(name, shape, hidden, sequences):
    cell = all_cells()[name](layernorm=True)
    with shaped(SHAPES[shape]):
        assert largest_error(cell, problem(cell, hidden, sequences, 40)) < LIMIT


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("hidden", "sequences"), [(7, 3), (64, 16), (100, 33)])
def test_shapes_change_nothing_but_speed(name, shape, hidden, sequences):
    cell = all_cells()[name]()
    with shaped(SHAPES[shape]):
        assert largest_error(cell, problem(cell, hidden, sequences, 40)) < LIMIT


def test_faster_precision():
    cell = all_cells()["lstm"]()
    with precision("float16"), shaped(units_first=True):  # a sequence alone is computed in float32 all the same
        assert LIMIT < largest_error(cell, problem(cell, 64, 16, 40)) < 1e-2


@pytest.mark.parametrize("name", CELLS)
def test_it_is_the_kernel_that_auto_chooses(name):
    chosen = choose("auto", all_cells()[name](), torch.device("cuda"), torch.float32)
    assert chosen.__name__ == "lagreach.kernels.gpu"


@pytest.mark.parametrize("name", CELLS)
def test_a_replica_trains_as_it_does_alone(name):
    """A hundred steps of descent on three replicas at once, and on each alone."""
    cell, hidden = all_cells()[name](), 16
    x, s0, *weights = problem(cell, hidden, 16, 20, replicas=3)
    names, target = list(cell.shapes(5, hidden)), torch.sin(x[..., :1].cumsum(2))

    def trained(replicas: slice) -> list[Tensor]:
        leaves = [w[replicas].clone().requires_grad_() for w in weights]
        for _ in range(100):
            states = scan(cell, x[replicas], s0[replicas], dict(zip(names, leaves, strict=True)), kernel="triton")
            loss = (states[..., :1] - target[replicas]).square().mean((1, 2, 3)).sum()
            with torch.no_grad():
                torch._foreach_add_(leaves, torch.autograd.grad(loss, leaves), alpha=-0.1)
        return [w.detach() for w in leaves]

    together = trained(slice(0, 3))
    for r in range(3):
        for a, b in zip(together, trained(slice(r, r + 1)), strict=True):
            torch.testing.assert_close(a[r], b[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("state", "first", "last"), [(100, 0, 100), (256, 0, 128), (300, 200, 264)])
def test_a_readout_of_one_number(state, first, last):
    """In one pass over the states, with zeros where it has no weights."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (3, 7, 50, state), (3, 1, last - first), (3, 1), (3, 7, 50, 1)
    *leaves, pull = (torch.randn(shape, generator=generator, device="cuda") for shape in shapes)

    def measured(dtype: torch.dtype) -> list[Tensor]:
        states, weight, bias = (v.to(dtype).requires_grad_() for v in leaves)
        whole = torch.nn.functional.pad(weight, (first, state - last))
        assert knows(states, whole) == (dtype == torch.float32)
        fused = dtype == torch.float32
        out = ReadOne.apply(states, whole, bias, first, last) if fused else read(states, whole, bias)
        return [out.detach(), *torch.autograd.grad(out, (states, weight, bias), pull.to(dtype))]

    for got, expected in zip(measured(torch.float32), measured(torch.float64), strict=True):
        assert float((got - expected).norm() / expected.norm()) < LIMIT
