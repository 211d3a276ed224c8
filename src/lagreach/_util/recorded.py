"""Work on a GPU that is queued once and then repeated, without the host's part of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


def recorded(step: Callable[[], object]) -> Callable[[], None]:
    """Return what repeats a step: the same kernels on the same tensors. The step is taken once before it is recorded."""
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # libraries make their workspaces at their first call, which cannot be recorded
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """Always the same: libraries keep a workspace for every stream they have seen."""
    return torch.cuda.Stream(device)
