"""Series in a compiled pass are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.series import TURNED, series


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("time", [19, TURNED + 5])
def test_inputs_are_projected_turned_and_lose_their_means(dtype, time):
    generator = torch.Generator().manual_seed(0)
    x, directions, mean = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((5, time, 7), (7, 3), (3, time))
    )
    expected = (x @ directions).movedim(2, 0) - mean[:, None]
    for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
        turned = series(given, directions, mean)
        assert turned.is_contiguous()
        torch.testing.assert_close(turned, expected)


def test_means_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="do not fit together"):
        series(torch.ones(2, 5, 3), torch.ones(3, 2), torch.ones(2, 5, dtype=torch.float64))
