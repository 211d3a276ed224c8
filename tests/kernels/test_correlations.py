"""Sums of lags by transforms and one by one are plain sums over targets."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.correlations import correlations
from lagreach.statistics.linear_share.observed import _correlations

TIME = 40
MEMBERS = torch.tensor([[0, 2], [4, 1], [3, -1]])


def plain(members, times, shares, first, second, inputs, lags):
    """The same, target by target."""
    alone, products = (torch.zeros(len(members), 3, len(inputs), len(lags), dtype=torch.float64) for _ in range(2))
    times = times.expand_as(shares)
    for block, some in enumerate(members.tolist()):
        for s in [s for s in some if s >= 0]:
            for p in range(len(inputs)):
                d = p % first.shape[1]
                kinds = torch.stack((torch.ones_like(shares[s]), first[s, d], second[s, d])) * shares[s]
                for i, lag in enumerate(lags):
                    then = times[s] - lag
                    ours = torch.where(then >= 0, kinds, 0.0).double()
                    alone[block, :, p, i] += ours.sum(1)
                    products[block, :, p, i] += (ours * inputs[p, s][then.clamp(min=0)]).sum(1)
    return alone, products


def example(targets, directions, generator, dtype):
    """Values of targets, and inputs of five sequences."""
    shapes = [(5, targets), *[(5, directions, targets)] * 2, (4, 5, TIME)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("lags", [[0, 3], [*range(30)], [*range(20), 33, 39], [5, 39]])
@pytest.mark.parametrize(("where", "directions"), [("alike", 1), ("every step", 2), ("some", 1), ("some", 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_those_over_targets(lags, where, directions, dtype):
    generator = torch.Generator().manual_seed(0)
    targets = 7 if where == "some" else TIME
    shares, *values = example(targets, directions, generator, dtype)
    times = torch.arange(TIME)[None]
    if where == "some":  # several may belong to the same step
        times = torch.randint(0, TIME, (5, targets), generator=generator)
    if where == "alike":
        shares = torch.full_like(shares, 1 / TIME)
    close = {"rtol": 0, "atol": 2e-5 if dtype == torch.float32 else 1e-12}
    given = (MEMBERS, times, shares, *values, lags)
    expected = plain(*given)
    for way in (correlations, _correlations):
        for ours, theirs in zip(way(*given), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **close)


def test_what_lies_outside_is_refused():
    shares, *values = example(7, 1, torch.Generator().manual_seed(0), torch.float32)
    times = torch.zeros(5, 7, dtype=torch.long)
    with pytest.raises(InputError, match="these steps are not there"):
        correlations(MEMBERS, times + TIME, shares, *values, [0])
    with pytest.raises(InputError, match="these members are not there"):
        correlations(MEMBERS + 1, times, shares, *values, [0])
    with pytest.raises(InputError, match="do not fit together"):
        correlations(MEMBERS, times, shares.double(), *values, [0])
