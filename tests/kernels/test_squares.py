"""Second moments of features are plain sums, in a compiled pass as elsewhere."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.squares import TOGETHER, squares_and_means
from lagreach.statistics.linear_share import products


@pytest.mark.parametrize("rows", [1, TOGETHER // 2, TOGETHER + 3])
@pytest.mark.parametrize(("outputs", "width"), [(1, 5), (2, 5), (1, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_and_means_are_plain_sums_in_double_precision(rows, outputs, width, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = (1e3 + torch.randn(2, rows, outputs, width, generator=generator)).to(dtype)
    counts = torch.rand(2, rows, generator=generator, dtype=torch.float64)
    exact = features.double()
    expected = torch.einsum("br,brof,brog->bfg", counts, exact, exact), torch.einsum("br,brof->bof", counts, exact)
    for compiled in (True, False):
        with monkeypatch.context() as here:
            here.setattr(products, "compiled_sums", lambda values, yes=compiled: yes)
            made = products.squares_and_means(features, counts)
        for ours, theirs in zip(made, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("features", "counts", "said"),
    [
        (torch.zeros(1, 3, 1, 2), torch.zeros(1, 3), "do not fit together"),
        (torch.zeros(1, 3, 1, 2).half(), torch.zeros(1, 3).double(), "another type"),
    ],
)
def test_what_does_not_fit_is_refused(features, counts, said):
    with pytest.raises(InputError, match=said):
        squares_and_means(features, counts)
