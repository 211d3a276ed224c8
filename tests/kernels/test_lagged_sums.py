"""Products with old inputs and sums of spectra in compiled passes are those of torch."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.kernels.cpu.lagged_sums import OldInputs, summed_spectra


@pytest.mark.parametrize("lags", [[0, 1, 2, 3], [0, 2, 9], [3, 4, 5, 11, 40], [7]])
def test_old_inputs_are_those_before_and_zero_where_there_are_none(lags):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 5, 12, generator=generator)
    sequence, times = (torch.randint(0, most, (30,), generator=generator) for most in (5, 12))
    weights = torch.rand(30, generator=generator)
    inputs = OldInputs(values, lags)
    old, power = (inputs.sorted(part) for part in inputs.before(sequence, times, weights))
    then = times[:, None] - torch.tensor(lags)
    expected = torch.where(then >= 0, values[:, sequence[:, None], then.clamp(min=0)], 0.0).movedim(0, 1)
    torch.testing.assert_close(old, expected, rtol=0, atol=0)
    torch.testing.assert_close(power, (weights[:, None, None] * expected.square()).sum(0), rtol=1e-5, atol=1e-5)


def test_what_lies_outside_is_refused():
    inputs = OldInputs(torch.zeros(1, 2, 5), [0, 1])
    row = torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match="these steps are not there"):
        inputs.before(row, row + 5, torch.ones(1))
    with pytest.raises(InputError, match="these sequences are not there"):
        inputs.before(row + 2, row, torch.ones(1))
    with pytest.raises(InputError, match="lags are not in order"):
        OldInputs(torch.zeros(1, 2, 5), [1, 0])
    with pytest.raises(InputError, match="do not fit together"):
        inputs.before(row, row, torch.ones(1, dtype=torch.float64))


def test_spectra_are_multiplied_with_conjugates_and_summed():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(3, 2, 2, 9, generator=generator, dtype=torch.complex64)
    theirs = torch.randn(3, 4, 9, generator=generator, dtype=torch.complex64)
    turned = ours[:, :, torch.arange(4) % 2]
    torch.testing.assert_close(summed_spectra(ours, theirs), (turned * theirs[:, None].conj()).sum(0))
    with pytest.raises(InputError, match="do not fit together"):
        summed_spectra(ours, theirs.to(torch.complex128))
