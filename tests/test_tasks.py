"""Tasks know their lags and can tell how much of them a model has recovered."""

import pytest
import torch

from lagreach.errors import InputError
from lagreach.study.tasks import MultiLagRegression


def test_targets_are_the_stated_sum(generator):
    task = MultiLagRegression(lags=(1, 4), coefficients=(0.6, 0.3), noise=0.0, input_size=3)
    x, y = task.sample(5, 12, generator)
    expected = torch.zeros(5, 12)
    expected[:, 1:] += 0.6 * x[:, :-1, 0]
    expected[:, 4:] += 0.3 * x[:, :-4, 0]
    torch.testing.assert_close(y[..., 0], expected)


def test_a_perfect_and_an_ignorant_model(generator):
    task = MultiLagRegression(lags=(2, 5), coefficients=(0.6, 0.3), noise=0.35, input_size=3)
    x, y = task.sample(2000, 30, generator)
    spread = 4 * torch.tensor([1.0]) / (2000 * 25) ** 0.5
    torch.testing.assert_close(task.recovered(x, y), torch.tensor(task.coefficients), rtol=0, atol=spread.item())
    torch.testing.assert_close(task.recovered(x, torch.randn(2000, 30, 1)), torch.zeros(2), rtol=0, atol=spread.item())


def test_samples_are_seeded():
    task = MultiLagRegression(lags=(1,), coefficients=(1.0,), input_size=2)
    a, b = (task.sample(2, 5, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_bad_tasks():
    with pytest.raises(InputError, match="one coefficient for every lag"):
        MultiLagRegression(lags=(1, 2), coefficients=(0.5,))
    with pytest.raises(InputError, match="cannot be negative"):
        MultiLagRegression(lags=(-1,), coefficients=(0.5,))
