"""How inputs vary, over steps and between sequences."""

import numpy as np
import pytest
import torch

from lagreach.errors import InputError
from lagreach.gradients.input_spread import InputSpread


def spread_of(x, lengths=None, size=7):
    spread = InputSpread()
    for start in range(0, len(x), size):
        spread.add(x[start : start + size], None if lengths is None else lengths[start : start + size])
    return spread


def test_inputs_that_share_nothing_have_one_mean_and_one_covariance(generator):
    """As numpy has it, whatever the batches, also far from zero."""
    x = 1e6 + torch.randn(40, 12, 3, generator=generator, dtype=torch.float64)
    spread = spread_of(x)
    assert not spread.shared
    flat = x.flatten(0, 1).numpy()
    np.testing.assert_allclose(spread.mean, flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(spread.covariance, np.cov(flat.T, ddof=0), rtol=1e-8)
    np.testing.assert_allclose(spread_of(x, size=40).covariance, spread.covariance, rtol=1e-10)
    assert spread.time == 12


def test_what_lies_beyond_the_lengths_does_not_count(generator):
    x = torch.randn(30, 9, 2, generator=generator, dtype=torch.float64)
    lengths = torch.randint(3, 10, (30,), generator=generator)
    spoiled = torch.where((torch.arange(9) < lengths[:, None])[..., None], x, torch.nan)
    flat = torch.cat([one[:n] for one, n in zip(x, lengths.tolist(), strict=True)]).numpy()
    np.testing.assert_allclose(spread_of(spoiled, lengths).mean, flat.mean(0), rtol=1e-10)
    np.testing.assert_allclose(spread_of(spoiled, lengths).covariance, np.cov(flat.T, ddof=0), rtol=1e-10)


def test_what_is_shared_is_taken_out(generator):
    """A calendar in one input: every step has its mean, and the covariance is that between sequences."""
    calendar = 3 * torch.randn(1, 12, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(50, 12, 2, generator=generator, dtype=torch.float64)
    spread = spread_of(torch.cat((calendar + noise[..., :1], noise[..., 1:]), dim=-1))
    assert spread.shared
    np.testing.assert_allclose(spread.mean[:, 0], calendar[0, :, 0], atol=5 / 50**0.5)
    assert spread.mean.shape == (12, 2)
    within = noise - noise.mean(0)
    np.testing.assert_allclose(
        spread.covariance, torch.einsum("sti,stj->ij", within, within) / (12 * 49), rtol=1e-9, atol=1e-12
    )


def test_an_input_without_differences_cannot_be_planted_in(generator):
    calendar = torch.randn(1, 12, 1, generator=generator, dtype=torch.float64).expand(50, -1, -1)
    noise = torch.randn(50, 12, 1, generator=generator, dtype=torch.float64)
    covariance = spread_of(torch.cat((calendar, noise), dim=-1)).covariance
    assert abs(covariance[0, 0]) < 1e-12
    assert 0.8 < covariance[1, 1] < 1.2
    alone = spread_of(calendar)  # nothing differs: what there is is kept, and told elsewhere
    assert alone.shared
    assert alone.covariance[0, 0] > 0.1


def test_chance_is_not_called_shared():
    called = 0
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        called += spread_of(torch.randn(32, 10, 2, generator=generator).exp()).shared
    assert called <= 3


def test_inputs_that_do_not_vary_are_refused():
    with pytest.raises(InputError, match="the inputs do not vary"):
        _ = spread_of(torch.ones(20, 5, 2)).covariance
