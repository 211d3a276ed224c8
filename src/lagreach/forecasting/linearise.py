"""How derivatives along directions of the weights are taken of this model, on this machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from lagreach._util.full_precision import without_cudnn
from lagreach._util.room import room
from lagreach.data.batch import Batch
from lagreach.errors import InputError
from lagreach.forecasting.carried_back import CarriedBack
from lagreach.forecasting.network import Network
from lagreach.statistics.reachable import METHODS, Directions, difference_step, tangents

TOGETHER = 16  # directions that are taken together
ROOM = 2**28  # bytes of activations that may be alive at a time on a processor
IN_CACHE = 2**21  # numbers of the largest activation that a processor runs at a time, where their sums follow,
FEWEST_IN_CACHE = 16  # unless sequences are fewer: layers take longer over each of them then
MOST_SEQUENCES = 128
ALIVE = 6  # activations of the largest size that are alive at a time
AGREE = 1e-3  # how closely differences over two distances must agree
FARTHER = 8.0
COMPARED, STEPS_COMPARED = 2, 8  # directions and steps at which two ways are compared

MOST_ROWS = 96  # outputs of a sequence from which gradients are carried back; of more, directions are cheaper

NOT_EXACT = (
    "this model has no forward-mode derivative and does not run in double precision, or not smoothly: derivatives along the "
    "weights are good to about three digits, and what all weights reach is a lower bound"
)


@dataclass(frozen=True)
class Linearisation:
    """How derivatives are taken: "backward", for models that `carried` knows, "forward", or "difference".

    Differences are taken in double precision where that is possible; `note` says what could not be had.
    `step` is the distance that differences move the weights. `plain_kernels`: without the libraries whose recurrent layers have
    no forward mode.
    """

    method: str
    together: int = TOGETHER
    dtype: torch.dtype | None = None  # of the weights, where it is another than the model's
    step: float = 0.0
    one_by_one: bool = False
    plain_kernels: bool = False
    note: str = ""
    carried: CarriedBack | None = None

    @property
    def alive(self) -> int:
        """Runs of the model that are in memory at a time."""
        return 2 if self.method != "forward" or self.one_by_one else 1 + self.together

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Torch's settings while derivatives are taken."""
        with ExitStack() as inside:
            if self.plain_kernels:
                inside.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None))
                inside.enter_context(without_cudnn())
            yield

    def weights(self, network: Network) -> dict[str, torch.Tensor]:
        """The network's weights in the precision that derivatives are taken in."""
        return {name: w if self.dtype is None else w.to(self.dtype) for name, w in network.weights.items()}


def choose_linearisation(
    network: Network, sample: Batch, method: str = "auto", rows: int | None = None
) -> Linearisation:
    """Find a way on a small batch; `rows` is the number of outputs of a sequence that are looked at, if it is known.

    Where the model is a recurrent layer with a readout and only few outputs are looked at, gradients are carried back from
    them, at a cost that hardly depends on the number of directions.

    Differences in double precision cost one run of the model a direction, and are as good as forward mode in single
    precision. They need a model that runs in double precision throughout, which is checked by moving the weights farther.
    Otherwise forward mode is tried: with several directions at once, one by one, without fused layers. Differences in the
    model's own precision are left as a last resort.
    """
    if method not in ("auto", *METHODS):
        raise InputError(
            "unknown way to take derivatives", got=repr(method), expected="auto, backward, forward or difference"
        )
    if method == "backward" or (method == "auto" and rows is not None and rows <= MOST_ROWS):
        with network.at_rest():
            carried = CarriedBack.of(network, sample)
        if carried is not None and (method == "backward" or _same_as_differences(network, sample, carried)):
            return Linearisation("backward", carried=carried)
        if method == "backward":
            raise InputError(
                "gradients cannot be carried back through this model",
                got=type(network).__name__,
                expected="one recurrent layer of a known cell, and a linear readout",
                fix='leave derivatives="auto"',
            )
    if method != "forward":
        way = _differences(network, sample, torch.float64)
        if way is not None:
            return way
    refused: Exception | None = None
    if method != "difference":
        for plain in (False, True):
            for alone in (False, True):
                way = Linearisation("forward", one_by_one=alone, plain_kernels=plain)
                try:
                    _try_forward(network, sample, way)
                except RuntimeError as error:  # what torch cannot differentiate; NotImplementedError is one of these
                    refused = error
                else:
                    return way
    if method == "forward":
        raise InputError(
            "torch has no forward mode for this model",
            got=str(refused).splitlines()[0],
            fix='leave derivatives="auto": small steps of the weights are taken instead',
        ) from refused
    step = _step(network, sample, Linearisation("difference"))
    return Linearisation("difference", step=step, note=NOT_EXACT)


def _differences(network: Network, sample: Batch, dtype: torch.dtype) -> Linearisation | None:
    """Differences in this precision, if the model runs in it and two distances give the same derivative."""
    way = Linearisation("difference", dtype=None if network.dtype == dtype else dtype)
    try:
        step = _step(network, sample, way)
        near, far = (_along(network, sample, way, distance) for distance in (step, FARTHER * step))
    except Exception:  # whatever a user's model raises when its weights have another type
        return None
    apart, size = (near - far).norm(), near.norm()
    if near.dtype != dtype or not bool(torch.isfinite(apart)) or float(apart) > AGREE * float(size):
        return None
    return Linearisation("difference", dtype=way.dtype, step=step)


def _same_as_differences(network: Network, sample: Batch, carried: CarriedBack) -> bool:
    """Whether what is carried back is what moving the weights shows; gradients that explode are not, in single precision.

    A model that does not run in double precision is taken at its word.
    """
    way = _differences(network, sample, torch.float64)
    if way is None:
        return True
    moved = {name: weight for name, weight in way.weights(network).items() if name not in network.readout}
    directions = Directions(moved, COMPARED, 0)
    outputs = functools.partial(network.output, batch=sample)
    with network.at_rest(), torch.no_grad():
        theirs = torch.cat([along for _, along in tangents(outputs, directions, COMPARED, way.method, step=way.step)])
        positions, time = theirs.shape[2], sample.x.shape[1]
        if positions not in (1, time):
            return False
        chosen = torch.linspace(0, positions - 1, min(positions, STEPS_COMPARED)).round().long().unique()
        times = (chosen if positions == time else torch.tensor([time - 1])).expand(len(sample), -1).to(theirs.device)
        ours = carried.derivatives(sample, times, directions).to(theirs)
    theirs = theirs[:, :, chosen]
    if sample.lengths is not None:  # what lies beyond the end does not count
        inside = times < torch.as_tensor(sample.lengths, device=times.device)[:, None]
        ours, theirs = ours * inside[None, ..., None], theirs * inside[None, ..., None]
    apart = float((ours - theirs).norm())
    return apart <= AGREE * float(theirs.norm())


def _step(network: Network, sample: Batch, way: Linearisation) -> float:
    outputs = functools.partial(network.output, batch=sample)
    with network.at_rest(), torch.no_grad():
        return difference_step(outputs, Directions(way.weights(network), TOGETHER, 0))


def _along(network: Network, sample: Batch, way: Linearisation, step: float) -> torch.Tensor:
    directions = Directions(way.weights(network), 2, 0)
    outputs = functools.partial(network.output, batch=sample)
    with network.at_rest(), way.flags(), torch.no_grad():
        parts = tangents(outputs, directions, 2, way.method, step=step, one_by_one=way.one_by_one)
        return torch.cat([along for _, along in parts])


def _try_forward(network: Network, sample: Batch, way: Linearisation) -> None:
    if not bool(torch.isfinite(_along(network, sample, way, 0.0)).all()):
        raise RuntimeError("a derivative is not finite")


def sequences_together(network: Network, runs: int) -> int:
    """Sequences that run together, so that activations stay within bounds."""
    allowed = room(network.device, ROOM)
    return max(1, min(MOST_SEQUENCES, allowed // (ALIVE * network.values * runs * network.dtype.itemsize)))


def sequences_in_cache(network: Network) -> int:
    """Sequences that run together on a processor, so that what they leave is summed from its cache; all on other devices."""
    return max(FEWEST_IN_CACHE, IN_CACHE // network.inside) if network.device.type == "cpu" else MOST_SEQUENCES
