"""`scan` gives the states of the plain loop, replica by replica, whatever kernel runs it."""

import pytest
import torch

from lagreach.cells import all_cells, unroll
from lagreach.cells.stack import Stack
from lagreach.errors import InputError
from lagreach.kernels import scan, scan_stack


def replicas(cell, count, generator):
    drawn = [cell.example(generator) for _ in range(count)]
    params = {name: torch.stack([p[name] for _, _, p in drawn]) for name in drawn[0][2]}
    return torch.stack([x for x, _, _ in drawn]), torch.stack([s[:, 0] for _, s, _ in drawn]), params


@pytest.mark.parametrize("name", all_cells())
@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_each_replica_is_its_own_loop(name, kernel, generator):
    cell = all_cells()[name]()
    x, s0, params = replicas(cell, 3, generator)
    together = scan(cell, x, s0, params, kernel=kernel)
    for r in range(3):
        weights = {name: p[r] for name, p in params.items()}
        torch.testing.assert_close(together[r], unroll(cell, x[r], s0[r], weights))
        torch.testing.assert_close(scan(cell, x[r], s0[r], weights, kernel=kernel), together[r])


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_a_stack_runs_layer_by_layer(kernel, generator):
    lstm = all_cells()["lstm"]()
    layers = [lstm.example(generator, input_size=width)[2] for width in (3, 4)]
    names = tuple({short: f"{k}.{short}" for short in layer} for k, layer in enumerate(layers))
    params = {f"{k}.{short}": p for k, layer in enumerate(layers) for short, p in layer.items()}
    stack = Stack((lstm, lstm), 4, names)
    x, s0 = lstm.example(generator)[0], torch.randn(2, stack.state_size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(scan_stack(stack, x, s0, params, kernel=kernel), unroll(stack, x, s0, params))


def test_unknown_kernels_are_refused(generator):
    cell = all_cells()["elman"]()
    x, s, params = cell.example(generator)
    with pytest.raises(InputError, match="unknown kernel"):
        scan(cell, x, s[:, 0], params, kernel="cuda")
