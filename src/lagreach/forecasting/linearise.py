"""How derivatives along directions of the weights are taken of this model, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.forecasting.network import Network
from lagreach.statistics.reachable import METHODS, Directions, tangents

TOGETHER = 16  # directions that are taken together in forward mode
ROOM = 2**28  # bytes of activations that may be alive at a time
MOST_SEQUENCES = 64
ALIVE = 6  # activations of the largest size that are alive at a time


@dataclass(frozen=True)
class Linearisation:
    """`method` is "forward" (exact) or "difference"; `note` says what could not be had."""

    method: str
    together: int = TOGETHER
    one_by_one: bool = False
    plain_kernels: bool = False  # without the libraries whose recurrent layers have no forward mode
    note: str = ""

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Torch's settings while derivatives are taken."""
        with ExitStack() as inside:
            if self.plain_kernels:
                inside.enter_context(torch.backends.mkldnn.flags(enabled=False))
                inside.enter_context(torch.backends.cudnn.flags(enabled=False))
            yield


DIFFERENCES = "this model has no forward-mode derivative, so its weights are moved by small steps: derivatives are good to about three digits"


def choose_linearisation(network: Network, sample: Batch, method: str = "auto") -> Linearisation:
    """Try forward mode on a small batch: with several directions at once, one by one, without fused layers; else differences."""
    if method not in ("auto", *METHODS):
        raise InputError("unknown way to take derivatives", got=repr(method), expected="auto, forward or difference")
    if method == "difference":
        return Linearisation("difference")
    error: Exception | None = None
    for plain in (False, True):
        for alone in (False, True):
            way = Linearisation("forward", one_by_one=alone, plain_kernels=plain)
            try:
                _try(network, sample, way)
            except (NotImplementedError, RuntimeError) as refused:  # torch has both for what it cannot differentiate
                error = refused
            else:
                return way
    if method == "forward":
        raise InputError(
            "torch has no forward mode for this model",
            got=str(error).splitlines()[0],
            fix='leave derivatives="auto": small steps of the weights are taken instead',
        ) from error
    return replace(Linearisation("difference"), note=DIFFERENCES)


def _try(network: Network, sample: Batch, way: Linearisation) -> None:
    directions = Directions(network.weights, 2, 0)
    with network.at_rest(), way.flags(), torch.no_grad():
        for _, along in tangents(
            lambda weights: network.output(weights, sample), directions, 2, way.method, way.one_by_one
        ):
            if not bool(torch.isfinite(along).all()):
                raise RuntimeError("a derivative is not finite")


def sequences_together(network: Network, directions: int) -> int:
    """Sequences that run together, so that activations stay within bounds."""
    return max(1, min(MOST_SEQUENCES, ROOM // (ALIVE * network.values * (1 + directions) * network.dtype.itemsize)))
