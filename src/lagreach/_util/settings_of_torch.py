"""Settings and random states that runs of a model change for a while."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lagreach._util.full_precision import precision_as_set


def settings_of_torch() -> Callable[[], None]:
    """Note settings of torch, whether gradients are on, and random states; returns what puts them back."""
    parts = (random_states(), flags(), precision_as_set())
    gradients = torch.is_grad_enabled()

    def restore() -> None:
        for part in parts:
            part()
        torch.set_grad_enabled(gradients)

    return restore


@contextmanager
def pythons_random_state() -> Iterator[None]:
    """Leave python's random state as it is: rich draws from it when it is imported, and for what it shows."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)


def random_states() -> Callable[[], None]:
    """Random states of python, numpy and torch, on all devices in use."""
    # the global state of numpy is meant: users' data sets draw from it
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if on_devices is not None:
            torch.cuda.set_rng_state_all(on_devices)

    return restore


def flags() -> Callable[[], None]:
    """CuDNN's flags, short cuts of attention, deterministic algorithms, the default type and the number of threads."""
    cudnn = torch.backends.cudnn
    before = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "deterministic")}
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    mha: Any = getattr(torch.backends, "mha", None)
    short_cut = mha is not None and mha.get_fastpath_enabled()

    def restore() -> None:
        for name, value in before.items():
            setattr(cudnn, name, value)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_default_dtype(dtype)
        if mha is not None:
            mha.set_fastpath_enabled(short_cut)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return restore
