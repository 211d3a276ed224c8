"""Series in a compiled pass are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.series import series


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_turned_and_lose_their_means(dtype):
    generator = torch.Generator().manual_seed(0)
    values, mean = (torch.randn(shape, generator=generator).to(dtype) for shape in ((5, 19, 3), (3, 19)))
    expected = values.movedim(2, 0) - mean[:, None]
    for given in (values, values.transpose(0, 1).contiguous().transpose(0, 1)):
        turned = series(given, mean)
        assert turned.is_contiguous()
        torch.testing.assert_close(turned, expected, rtol=0, atol=0)


def test_means_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="do not fit together"):
        series(torch.ones(2, 5, 3), torch.ones(3, 5, dtype=torch.float64))
