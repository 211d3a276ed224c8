"""How many bytes some work may take at a time."""

from __future__ import annotations

import gc

import torch

GPU_SHARE = 64  # part of a GPU's memory that is taken: many small kernels would leave it waiting for the host


def room(device: torch.device, on_cpu: int) -> int:
    """Bytes on a device: so many on a processor, a share of a GPU's memory."""
    return on_cpu if device.type != "cuda" else torch.cuda.get_device_properties(device).total_memory // GPU_SHARE


def give_back() -> None:
    """Give a GPU's memory that nothing uses any more back to other processes, which torch would keep for this one."""
    gc.collect()  # recorded work and what it works on may refer to each other
    torch.cuda.empty_cache()
