"""Weighted sums over steps in one compiled pass are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.weighted_sums import STRETCH, weighted_sums


@pytest.mark.parametrize("time", [1, STRETCH, 2 * STRETCH + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_those_of_torch(time, dtype):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, time, generator=generator, dtype=torch.float64).to(dtype)
    values = torch.randn(time, 3, 7, generator=generator, dtype=torch.float64).to(dtype)
    exact = torch.einsum("st,tsv->sv", weights.double(), values.double())
    close = {"rtol": 1e-6, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    index = torch.randint(0, time, (3, 4), generator=generator)
    sums, picked = weighted_sums(weights, values, index)
    torch.testing.assert_close(sums.double(), exact, **close)
    torch.testing.assert_close(picked, values[index, torch.arange(3)[:, None]], rtol=0, atol=0)


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="do not fit together"):
        weighted_sums(torch.ones(2, 3, dtype=torch.float64), torch.ones(3, 2, 5), torch.zeros(2, 1, dtype=torch.long))
    with pytest.raises(InputError, match="these steps are not there"):
        weighted_sums(torch.ones(2, 3), torch.ones(3, 2, 5), torch.full((2, 1), 3))
