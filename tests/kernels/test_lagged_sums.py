"""Products with old inputs in compiled passes are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.lagged_sums import OldInputs, add_about
from lagreach.statistics.linear_share import moments
from lagreach.statistics.linear_share.moments import _Gathered


@pytest.mark.parametrize("lags", [[0, 1, 2, 3], [0, 2, 9], [3, 4, 5, 11, 40], [7]])
def test_old_inputs_are_those_before_and_zero_where_there_are_none(lags):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 5, 12, generator=generator)
    sequence, times = (torch.randint(0, most, (3, 30), generator=generator) for most in (5, 12))
    weights = torch.rand(3, 30, generator=generator)
    for way in (OldInputs, _Gathered):
        inputs = way(values, lags, sequence, times, weights)
        inputs.before(slice(0, 3), slice(0, 30))  # what it leaves behind does not show
        for blocks, rows in ((slice(1, 2), slice(3, 30)), (slice(0, 3), slice(0, 7))):
            old, power = inputs.before(blocks, rows)
            then = times[blocks, rows, None] - torch.tensor(lags)
            expected = values[:, sequence[blocks, rows, None], then.clamp(min=0)]
            expected = torch.where(then >= 0, expected, 0.0).movedim(0, 2)
            torch.testing.assert_close(old, expected, rtol=0, atol=0)
            squares = (weights[blocks, rows, None, None] * expected.square()).sum(1)
            torch.testing.assert_close(power, squares, rtol=1e-5, atol=1e-5)


def test_what_lies_outside_is_refused():
    values, row = torch.zeros(1, 2, 5), torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(InputError, match="these steps are not there"):
        OldInputs(values, [0, 1], row, row + 5, torch.ones(1, 1))
    with pytest.raises(InputError, match="these sequences are not there"):
        OldInputs(values, [0, 1], row + 2, row, torch.ones(1, 1))
    with pytest.raises(InputError, match="lags are not in order"):
        OldInputs(values, [1, 0], row, row, torch.ones(1, 1))
    with pytest.raises(InputError, match="do not fit together"):
        OldInputs(values, [0, 1], row, row, torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("probes", [slice(0, None, 1), slice(1, None, 2)])
def test_products_about_means_are_added_as_products_of_the_features(probes, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    sums = [torch.randn(2, *size, 4, 5, generator=generator, dtype=torch.float64) for size in ((3,), (2,), ())]
    cross, old, powers = sums
    products, power = (torch.randn(2, *size, len(range(4)[probes]), 5, generator=generator) for size in ((5,), ()))
    about = torch.randn(2, 2, 3, generator=generator)
    expected = [part.clone() for part in sums]
    expected[0][:, :, probes] += products[:, :3] + torch.einsum(
        "brf,brpl->bfpl", about.double(), products[:, 3:].double()
    )
    expected[1][:, :, probes] += products[:, 3:]
    expected[2][:, probes] += power
    plain = [part.clone() for part in sums]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(moments, "compiled_sums", lambda values: False)
        moments._add_about(products, power, about, *plain, probes)
    add_about(products, power, about, cross, old, powers, probes)
    for way in (sums, plain):
        for ours, theirs in zip(way, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    with pytest.raises(InputError, match="do not fit together"):
        add_about(products, power.double(), about, cross, old, powers, probes)
    with pytest.raises(InputError, match="not contiguous"):
        add_about(products, power, about, cross.mT.contiguous().mT, old, powers, probes)
