"""Memory is used again, but never while somebody looks at it."""

import numpy as np
import pytest
import torch

from lagreach._util import buffers

SINGLE = np.dtype("float32")
SHAPE = (3, 100_001)


@pytest.fixture(autouse=True)
def _own_pool():
    buffers.clear()
    yield
    buffers.clear()


def test_a_buffer_comes_back_when_the_last_view_is_gone():
    array = buffers.empty(SHAPE, SINGLE)
    where = array.ctypes.data
    tensor = torch.from_numpy(array)[1:, 5:].transpose(0, 1)
    del array
    assert buffers.empty(SHAPE, SINGLE).ctypes.data != where
    tensor.fill_(1.0)
    del tensor
    again = {buffers.empty(SHAPE, SINGLE).ctypes.data for _ in range(4)}
    assert where in again


def test_arrays_start_at_a_cache_line():
    for count in (1, 7, 300_001):
        assert buffers.empty((count,), SINGLE).ctypes.data % 64 == 0


def test_other_sizes_and_small_arrays_are_not_taken_from_the_pool():
    for count in (10, 1_000_000):
        buffers.empty((count,), SINGLE)
    assert [memory.size for memory in buffers._idle] == [4_000_064]
    buffers.empty((10_000_000,), SINGLE)
    assert sorted(memory.size for memory in buffers._idle) == [4_000_064, 40_000_064]


def test_idle_memory_is_limited(monkeypatch):
    monkeypatch.setattr(buffers, "IDLE", 10_000_000)
    held = [buffers.empty((1_000_000,), SINGLE) for _ in range(5)]
    held.clear()
    buffers.empty((3_000_000,), SINGLE)
    assert sum(memory.size for memory in buffers._idle) < 10_000_000 + 12_000_064 + 1
