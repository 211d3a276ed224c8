"""Products with old inputs in compiled passes are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.lagged_sums import OldInputs, add_about


@pytest.mark.parametrize("lags", [[0, 1, 2, 3], [0, 2, 9], [3, 4, 5, 11, 40], [7]])
def test_old_inputs_are_those_before_and_zero_where_there_are_none(lags):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 5, 12, generator=generator)
    sequence, times = (torch.randint(0, most, (30,), generator=generator) for most in (5, 12))
    weights = torch.rand(30, generator=generator)
    inputs = OldInputs(values, lags, sequence, times, weights)
    inputs.before(0, 30)  # what it leaves behind does not show
    old, power = inputs.before(3, 30)
    sequence, times, weights = sequence[3:], times[3:], weights[3:]
    then = times[:, None] - torch.tensor(lags)
    expected = torch.where(then >= 0, values[:, sequence[:, None], then.clamp(min=0)], 0.0).movedim(0, 1)
    torch.testing.assert_close(old, expected, rtol=0, atol=0)
    torch.testing.assert_close(power, (weights[:, None, None] * expected.square()).sum(0), rtol=1e-5, atol=1e-5)


def test_what_lies_outside_is_refused():
    values, row = torch.zeros(1, 2, 5), torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match="these steps are not there"):
        OldInputs(values, [0, 1], row, row + 5, torch.ones(1))
    with pytest.raises(InputError, match="these sequences are not there"):
        OldInputs(values, [0, 1], row + 2, row, torch.ones(1))
    with pytest.raises(InputError, match="lags are not in order"):
        OldInputs(values, [1, 0], row, row, torch.ones(1))
    with pytest.raises(InputError, match="do not fit together"):
        OldInputs(values, [0, 1], row, row, torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("probes", [slice(0, None, 1), slice(1, None, 2)])
def test_products_about_means_are_added_as_products_of_the_features(probes):
    generator = torch.Generator().manual_seed(0)
    cross, old, powers = torch.randn(6, 4, 5, generator=generator, dtype=torch.float64).split((3, 2, 1))
    products, power = torch.randn(6, len(range(4)[probes]), 5, generator=generator).split((5, 1))
    about = torch.randn(2, 3, generator=generator)
    expected = [part.clone() for part in (cross, old, powers)]
    expected[0][:, probes] += products[:3] + torch.einsum("rf,rpl->fpl", about.double(), products[3:].double())
    expected[1][:, probes] += products[3:]
    expected[2][:, probes] += power
    add_about(products, power[0], about, cross, old, powers[0], probes)
    for ours, theirs in zip((cross, old, powers), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(InputError, match="do not fit together"):
        add_about(products, power[0].double(), about, cross, old, powers[0], probes)
    with pytest.raises(InputError, match="not contiguous"):
        add_about(products, power[0], about, cross.mT.contiguous().mT, old, powers[0], probes)
