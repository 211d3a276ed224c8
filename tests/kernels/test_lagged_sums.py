"""Products with old inputs are sums of plain products, in a compiled pass as elsewhere."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.lagged_sums import GATHERED, SINGLE, add_products
from lagreach.statistics.linear_share import products

FEATURES, OUTPUTS, EVERY = 3, 2, 4


def given(rows, lags, probes=slice(None), dtype=torch.float32):
    """Arguments for two blocks of rows from five sequences of twelve steps."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sequence, times = (torch.randint(0, most, (2, rows), generator=generator) for most in (5, 12))
    sums = [random(2, *size, EVERY, len(lags)) for size in ((FEATURES,), (OUTPUTS,), ())]
    values = random(len(range(EVERY)[probes]), 5, 12).to(dtype)
    features, pull, size, about = (
        random(2, *shape).to(dtype)
        for shape in ((rows, OUTPUTS, FEATURES), (rows, OUTPUTS), (rows,), (OUTPUTS, FEATURES))
    )
    return [features, pull, size, values, sequence, times, lags, about, *sums, probes]


def summed(features, pull, size, values, sequence, times, lags, about, cross, old, powers, probes):
    """The same by the definition."""
    then = times[..., None] - torch.tensor(lags)
    z = torch.where(
        then >= 0, values[:, sequence[..., None], then.clamp(min=0)], 0.0
    ).double()  # (probe, block, row, lag)
    cross, old, powers = (part.clone() for part in (cross, old, powers))
    cross[:, :, probes] += torch.einsum("brof,bro,pbrl->bfpl", features.double(), pull.double(), z)
    old[:, :, probes] += torch.einsum("bro,pbrl->bopl", pull.double(), z)
    powers[:, probes] += torch.einsum("br,pbrl->bpl", size.double(), z.square())
    return cross, old, powers


@pytest.mark.parametrize("lags", [[0, 1, 2, 3], [0, 2, 9], [3, 4, 5, 11, 40], [7]])
@pytest.mark.parametrize("rows", [1, GATHERED + 3, SINGLE + GATHERED + 1])
@pytest.mark.parametrize("probes", [slice(0, None, 1), slice(1, None, 2)])
def test_products_and_squares_are_added_to_the_sums(rows, lags, probes, monkeypatch):
    for dtype, close in ((torch.float32, 1e-3), (torch.float64, 1e-11)):
        arguments = given(rows, lags, probes, dtype)
        expected = summed(*arguments)
        for compiled in (True, False):
            sums = [part.clone() for part in arguments[8:11]]
            with monkeypatch.context() as here:
                here.setattr(products, "compiled_sums", lambda values, yes=compiled: yes)
                products.add_products(*arguments[:8], *sums, probes)
            for ours, theirs in zip(sums, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        (4, lambda sequence: sequence + 5, "these sequences are not there"),
        (5, lambda times: times + 12, "these steps are not there"),
        (5, lambda times: times - 12, "these steps are not there"),
        (6, lambda lags: lags[::-1], "lags are not in order"),
        (2, lambda size: size.double(), "do not fit together"),
        (0, lambda features: features.half(), "do not fit together"),
        (1, lambda pull: pull.double(), "do not fit together"),
        (3, lambda values: values[1:], "do not fit together"),
        (4, lambda sequence: sequence.int(), "do not fit together"),
        (9, lambda old: old.float(), "do not fit together"),
        (8, lambda cross: cross.mT.contiguous().mT, "not contiguous"),
    ],
)
def test_what_does_not_fit_or_lies_outside_is_refused(place, change, said):
    arguments = given(9, [0, 1])
    arguments[place] = change(arguments[place])
    with pytest.raises(InputError, match=said):
        add_products(*arguments)
