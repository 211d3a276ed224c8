"""Share and loss gained from exchanged inputs, where the answer is known."""

import numpy as np
import pytest
import torch

from lagreach.study.data import generator_for
from studies.validation2.marked_tasks import MarkedParity
from studies.validation2.responses import exchanged, responses
from studies.validation2.tasks import VALUE, Lagged


class Made:
    """Stands for trained networks: outputs are made from the inputs."""

    def __init__(self, *functions):
        self.functions, self.flat = functions, torch.zeros(len(functions), 1)

    def __len__(self):
        return len(self.functions)

    def __call__(self, x):
        return torch.stack([make(part)[..., None] for make, part in zip(self.functions, x, strict=True)])


@pytest.mark.parametrize(
    "task", [Lagged(lags=(1, 3), asked=4, input_size=2, length=8), MarkedParity(length=12, strength=0.5)]
)
def test_shares_of_known_outputs(task):
    x = task.inputs(2000, generator_for("known"))[None]

    def noisy(part):  # half of the dependency, and as much again that has nothing to do with the target
        return 0.5 * task.clean(part) + 0.5 * task.amplitude * part[..., VALUE].square() * (part[..., VALUE] > 0)

    networks = Made(task.clean, lambda part: 0.5 * task.clean(part), lambda part: 0 * part[..., VALUE], noisy)
    share, gain = responses(task, networks, x, [0, 0, 0, 0])
    lags = np.ones(len(task.lags))
    np.testing.assert_allclose(share[:3], np.stack([lags, 0.5 * lags, 0 * lags]), atol=1e-5)
    np.testing.assert_allclose(gain[:3], np.stack([lags, 0.75 * lags, 0 * lags]), atol=1e-5)


def test_what_is_made_of_an_input_beyond_the_dependency_is_a_loss():
    task = Lagged(lags=(2,), strength=1.0, asked=1, input_size=1, length=4)
    x = task.inputs(20_000, generator_for("junk"))[None]

    def junk(part):
        y = torch.zeros_like(part[..., VALUE])
        y[:, -1] = part[:, 1, VALUE] + (part[:, 1, VALUE].square() - 1) / 2**0.5  # uncorrelated, and of the same size
        return y

    share, gain = responses(task, Made(junk), x, [0])
    assert share[0, 0] == pytest.approx(1.0, abs=0.05)
    assert gain[0, 0] == pytest.approx(0.0, abs=0.12)


def test_only_the_source_is_exchanged():
    task = MarkedParity(length=12)
    x = task.inputs(200, generator_for("source"))
    other, has = exchanged(task, x, task.targets[0], 1)
    changed = (other != x).any(-1)
    assert bool((changed.sum(1) <= 1).all())
    assert not bool(changed[~has].any())
    source = task.source(x, task.targets[0])[1]
    rows = changed.any(1).nonzero()[:, 0]
    assert torch.equal(changed[rows].int().argmax(1), source[rows])
