"""Single precision means single precision, whatever short cuts are allowed for products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_products() -> Iterator[None]:
    """Matrix products in the precision of their factors inside, whatever the user allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def full_precision() -> Iterator[None]:
    """Recurrent layers and convolutions of cuDNN too, which round to ten bits (TF32) unless they are told not to.

    A layer that is replayed step by step differs from one that rounds like this by far more than from one that does not.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        with full_products():
            yield
    finally:
        cudnn.allow_tf32 = before
