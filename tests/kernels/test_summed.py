"""Runs whose states are summed as they come leave what sums over the states of a whole run are."""

import pytest
import torch

from lagreach import GatedRNN
from lagreach.cells.stack import Stack
from lagreach.errors import InputError
from lagreach.kernels import scan_readout_and_sums, scan_stack
from lagreach.kernels.cpu import passes
from lagreach.kernels.cpu.summed import STEPS
from tests.kernels.test_cpu import CLOSE, VARIANTS, build, draw

SEQUENCES, STATES, PICKS = passes.ROWS + 3, 5, 4


def given(cell, time, dtype):
    """Arguments of `scan_readout_and_sums` for one layer, and a state to begin with."""
    x, s0, params = draw(cell, (1, SEQUENCES, time, 3, STATES), dtype)
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    share = random(SEQUENCES, time).abs()
    share[::3, : time // 2] = 0  # steps that do not count
    index = torch.randint(0, time, (SEQUENCES, PICKS), generator=generator)
    own = {name: p[0] for name, p in params.items()}
    stack = Stack((cell,), STATES, ({name: name for name in own},))
    return stack, x[0], s0[0], own, random(1, STATES), random(1), random(SEQUENCES, time), share, index


@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_sums_of_states_are_those_over_a_whole_run(name, layernorm):
    cell = build(name, layernorm)
    for dtype in (torch.float64, torch.float32) if name in ("diag_gate", "lstm") else (torch.float64,):
        for time in (1, STEPS, 2 * STEPS + 5):
            stack, x, s0, params, weight, bias, target, share, index = arguments = given(cell, time, dtype)
            made = scan_readout_and_sums(*arguments, kernel="numba")
            h = cell.output(scan_stack(stack, x, s0, params, kernel="reference"))
            output = (h @ weight.T + bias)[..., 0]
            sums = ((share * (target - output))[..., None] * h).sum(1)
            picked = h[torch.arange(SEQUENCES)[:, None], index]
            for ours, theirs in zip(made, (output, sums, picked), strict=True):
                torch.testing.assert_close(ours, theirs, **CLOSE[dtype])


@pytest.mark.parametrize("layers", [1, 2])
def test_a_network_gives_its_output_and_sums(layers, generator):
    model = GatedRNN("diag_gate", 3, STATES, 1, layers, generator=generator)
    x, target = torch.randn(6, 40, 3, generator=generator), torch.randn(6, 40, generator=generator)
    share, index = torch.full((6, 40), 1 / 40), torch.tensor([[0, 39]] * 6)
    output, sums, picked = model.output_and_sums(x, target, share, index)
    whole, features = model.output_and_features(x)
    torch.testing.assert_close(output, whole[..., 0])
    torch.testing.assert_close(sums, ((share * (target - output))[..., None] * features).sum(1))
    torch.testing.assert_close(picked, features[:, [0, 39]])
    assert not output.requires_grad
    two = GatedRNN("diag_gate", 3, STATES, 2, generator=generator)
    assert two.output_and_sums(x, target, share, index) is None  # two outputs
    model.readout.register_forward_hook(lambda *call: None)
    assert model.output_and_sums(x, target, share, index) is None  # somebody looks on


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        (8, lambda index: index + 9, "these steps are not there"),
        (8, lambda index: index - 9, "these steps are not there"),
        (8, lambda index: index.int(), "do not fit together"),
        (6, lambda target: target.double(), "do not fit together"),
        (7, lambda share: share.double(), "do not fit together"),
    ],
)
def test_what_does_not_fit_is_refused(place, change, said):
    arguments = list(given(build("diag_gate"), 9, torch.float32))
    arguments[place] = change(arguments[place])
    with pytest.raises(InputError, match=said):
        scan_readout_and_sums(*arguments, kernel="numba")
