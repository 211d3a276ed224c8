"""Products of features with the inputs some lags before.

On a processor in a compiled pass, elsewhere many blocks at once: every call takes a GPU longer than what it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach._util.full_precision import full_products
from lagreach.kernels.cpu import has_numba

PIECE = 256  # rows whose products are summed in single precision
ROOM = 2**26  # old inputs that are written out at a time on other devices than the CPU


def compiled_sums(values: Tensor) -> bool:
    """Whether there are compiled sums for such values."""
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64) and has_numba()


def squares_and_means(
    features: Float[Tensor, "block row output feature"], counts: Float[Tensor, "block row"]
) -> tuple[Float[Tensor, "block feature feature"], Float[Tensor, "block output feature"]]:
    """What `lagreach.kernels.cpu.squares.squares_and_means` says."""
    if compiled_sums(features):
        from lagreach.kernels.cpu import squares as compiled  # late: it brings a compiler along

        return compiled.squares_and_means(features, counts)
    exact = features.double()
    weighted = exact * counts[..., None, None]
    return weighted.flatten(1, 2).mT @ exact.flatten(1, 2), weighted.sum(1)


def add_products(
    features: Float[Tensor, "block row output feature"],
    pull: Float[Tensor, "block row output"],
    size: Float[Tensor, "block row"],
    values: Float[Tensor, "probe seq time"],
    sequence: Int[Tensor, "block row"],
    times: Int[Tensor, "block row"],
    lags: Sequence[int],
    about: Float[Tensor, "block output feature"],
    cross: Float[Tensor, "block feature every_probe lag"],
    old: Float[Tensor, "block output every_probe lag"],
    powers: Float[Tensor, "block every_probe lag"],
    probes: slice,
) -> None:
    """Add to the sums what `lagreach.kernels.cpu.lagged_sums.add_products` says.

    Inputs are zero where there are none. Products are in the inputs' precision, so they are over `PIECE` rows at most. Other
    devices take as many blocks at once as they have room for.
    """
    if compiled_sums(values) and compiled_sums(features):
        from lagreach.kernels.cpu import lagged_sums as compiled  # late: it brings a compiler along

        compiled.add_products(features, pull, size, values, sequence, times, lags, about, cross, old, powers, probes)
        return
    (blocks, rows), (count, first) = size.shape, (len(values), max(lags))
    ours = torch.cat((((features - about[:, None]) * pull[..., None]).sum(2).to(pull), pull), dim=2)
    padded = torch.nn.functional.pad(values, (first, 0))  # zeros where there are no inputs yet
    probe, distances = (torch.as_tensor(of, device=values.device) for of in (list(range(count)), lags))
    together = min(blocks, max(1, ROOM // (min(rows, PIECE) * count * len(lags))))
    for block in range(0, blocks, together):
        some = slice(block, min(block + together, blocks))
        for start in range(0, rows, PIECE):
            piece = some, slice(start, start + PIECE)
            then = times[piece][..., None, None] + first - distances
            before = padded[probe[:, None], sequence[piece][..., None, None], then]  # (block, row, probe, lag)
            with full_products():
                products = (ours[piece].mT @ before.flatten(2)).unflatten(2, before.shape[2:]).double()
                powers[some, probes] += (size[piece][:, None] @ before.square().flatten(2)).view(-1, *before.shape[2:])
            of_features, of_outputs = products.split((cross.shape[1], old.shape[1]), dim=1)
            mean = about[some].double().mT @ of_outputs.flatten(2)
            cross[some, :, probes] += of_features + mean.view_as(of_features)
            old[some, :, probes] += of_outputs
