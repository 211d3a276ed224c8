"""Series and windows to look at, and how often a dependence is found in them."""

import numpy as np
import torch
from scipy.signal import lfilter

from lagreach import GatedRNN
from lagreach._util.threads import one_thread
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.gradients.blocks import block_means
from lagreach.gradients.significance import flip_test

SETTINGS = MeasureSettings(probes=1, flips=199)
CELLS = ("lstm", "gru", "diag_gate", "const_gate")


def autoregressive(rng, steps, memory):
    """A stationary AR(1) series (time, 1); a random walk if its memory is one."""
    burn_in = 0 if memory >= 1 else 2000
    values = lfilter([1], [1, -memory], rng.normal(size=steps + burn_in))[burn_in:]
    return torch.from_numpy(values / values.std()).float()[:, None]


def noise(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape)).float()


def sliding(values, length, stride):
    """Windows as most people cut them."""
    return torch.stack([values[start : start + length] for start in range(0, len(values) - length + 1, stride)])


def smallest_p(data, seed, lags=(0, 1, 3, 8)):
    """Smallest adjusted p-value of a fresh network; NaN where nothing can be told."""
    kind = CELLS[seed % len(CELLS)]
    model = GatedRNN(kind, 1, 8, 1, generator=torch.Generator().manual_seed(seed))
    plan = plan_measurement(model, data, "mse", list(lags), settings=SETTINGS)
    if plan.block_plan.untold:
        return np.nan
    generator = np.random.default_rng(seed)
    return flip_test(block_means(plan).pairings, flips=SETTINGS.flips, generator=generator).adjusted.min()


def false_dependences(make, runs):
    """How many of so many data sets without any dependence show one, and how many are refused."""
    with one_thread():
        p_values = np.array([smallest_p(make(np.random.default_rng([3, run])), run) for run in range(runs)])
    return int((p_values <= 0.05).sum()), int(np.isnan(p_values).sum())
