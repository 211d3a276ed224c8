"""Single precision means single precision, whatever short cuts are allowed for products on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

import torch

# Torch has a setting for each library and operation (from 2.9 on) beside the older ones, which speak for several of them and
# raise an error when they are read where these have been set apart.
PRODUCTS = ("cuda.matmul", "mkldnn.matmul")
LAYERS = ("cudnn.rnn", "cudnn.conv")


@contextmanager
def full_products() -> Iterator[None]:
    """Matrix products in the precision of their factors inside, whatever the user allows."""
    with _newer_settings(PRODUCTS) as set_apart:
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            set_apart()
            yield
            return
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
    with full_products(), _newer_settings(LAYERS) as set_apart:
        try:
            before = cudnn.allow_tf32
        except RuntimeError:
            set_apart()
            yield
            return
        cudnn.allow_tf32 = False
        set_apart()
        try:
            yield
        finally:
            cudnn.allow_tf32 = before


def precision_as_set() -> Callable[[], None]:
    """Note what is allowed for products and layers; returns what allows the same again."""
    before: dict[str, Any] = {}
    for name in ("cudnn.allow_tf32", *(f"{name}.fp32_precision" for name in (*PRODUCTS, *LAYERS))):
        with suppress(AttributeError, RuntimeError):  # torch before 2.9, or newer settings that have been set apart
            before[name] = attrgetter(name)(torch.backends)
    products = None
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()

    def restore() -> None:
        if products is not None:
            with suppress(RuntimeError):
                torch.set_float32_matmul_precision(products)
        for name, value in before.items():  # the older ones first, for they change the newer ones
            part, _, setting = name.rpartition(".")
            setattr(attrgetter(part)(torch.backends), setting, value)

    return restore


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Torch's own layers inside. `torch.backends.cudnn.flags` reads all the other settings, which may raise an error."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def without_short_cut() -> Iterator[None]:
    """Layers of Transformers as in training inside: in evaluation torch hands on nested tensors, which have no shape."""
    mha: Any = getattr(torch.backends, "mha", None)  # not in every torch
    before = mha is not None and mha.get_fastpath_enabled()
    if before:
        mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        if before:
            mha.set_fastpath_enabled(True)


@contextmanager
def _newer_settings(names: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Leave the newer settings as they were, for the older ones change them; yields what sets them to full precision."""
    try:
        before = {name: attrgetter(f"{name}.fp32_precision")(torch.backends) for name in names}
    except AttributeError:  # torch before 2.9
        before = {}

    def put(values: Mapping[str, str]) -> None:
        for name, value in values.items():
            setattr(attrgetter(name)(torch.backends), "fp32_precision", value)  # noqa: B010  not in every torch

    try:
        yield lambda: put(dict.fromkeys(before, "ieee"))
    finally:
        put(before)
