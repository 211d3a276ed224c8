"""Correlations of what belongs to the steps of sequences with their inputs, for `lagreach.statistics.linear_share`.

``sum_t a_t z_{t-l}`` for many lags at once is a product of Fourier transforms, of which those of a block are added up before
they are turned back. Few lags, or such as lie far beyond the others, are summed one by one: transforms need not be as long then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lagreach.errors import InputError
from lagreach.kernels.cpu.compiled import compiled
from lagreach.kernels.entry import check_arrays

ONE_BY_ONE = 0.3  # time of a product, in those of a transform of length n over n log2(n)


class Correlated(NamedTuple):
    """Sums of weights and weighted values, by block: from each lag on, and times the inputs the lag before."""

    alone: Float[Tensor, "block kind probe lag"]
    products: Float[Tensor, "block kind probe lag"]


@compiled
@no_type_check
def _place(members, times, every, shares, first, second, inputs, far, room, since, products):
    """Bring what belongs to a block to the steps of its sequences, add it up, and sum products with the inputs of far lags.

    Series stand in the order: the first values by direction, the second, the inputs, and the weights, which may have no room.
    """
    (probes, _, steps), directions, kinds = inputs.shape, first.shape[1], len(products)
    n, end = np.uint64(steps), 2 * directions + inputs.shape[0]
    for m in range(len(members)):
        s, here = members[m], room[m]
        if s < 0:  # filled up
            here[:] = 0
            continue
        weights, when = shares[s], times[min(s, len(times) - 1)]
        for k in range(2 * directions):
            values, series = first[s, k] if k < directions else second[s, k - directions], here[k]
            if every:
                for t in range(n):
                    series[t] = weights[t] * values[t]
            else:
                series[:steps] = 0
                for j in range(len(when)):
                    series[when[j]] += weights[j] * values[j]
        for p in range(probes):
            old, series = inputs[p, s], here[2 * directions + p]
            for t in range(n):
                series[t] = old[t]
        if end < len(here):
            here[end, :steps] = 0
            for j in range(len(when)):
                here[end, when[j]] += weights[j]
        for k in range(len(here)):
            series, total = here[k], since[k]
            for t in range(n):
                total[t] += series[t]
        for i in range(len(far)):
            lag = far[i]
            for p in range(probes):
                old = here[2 * directions + p]
                for k in range(kinds):
                    later, total = here[k * directions + p % directions if k < 2 else end][lag:], room.dtype.type(0)
                    for t in range(np.uint64(max(0, steps - lag))):
                        total += later[t] * old[t]
                    products[k, p, i] += total


@compiled
@no_type_check
def _add_products(spectra, directions, out):
    (members, _, width), (kinds, probes) = spectra.shape, out.shape[:2]
    for m in range(members):
        for p in range(probes):
            other = spectra[m, 2 * directions + p]
            for k in range(kinds):
                series = k * directions + p % directions if k < 2 else 2 * directions + probes
                one, total = spectra[m, series], out[k, p]
                for f in range(np.uint64(width // 2)):
                    a, b, c, d = one[2 * f], one[2 * f + 1], other[2 * f], other[2 * f + 1]
                    total[2 * f] += a * c + b * d
                    total[2 * f + 1] += b * c - a * d


def correlations(
    members: Int[Tensor, "block member"],
    times: Int[Tensor, "#seq target"],
    shares: Float[Tensor, "seq target"],
    first: Float[Tensor, "seq direction target"],
    second: Float[Tensor, "seq direction target"],
    inputs: Float[Tensor, "probe seq time"],
    lags: Sequence[int],
) -> Correlated:
    """Sums over the steps and the members of each block; probes take turns among the directions.

    `members` are numbers of sequences, or -1 for none; `times` the step of each target.
    """
    (seq, targets), (probes, _, time), directions = shares.shape, inputs.shape, first.shape[1]
    given = {"the weights": (shares, (seq, targets)), "the inputs": (inputs, (probes, seq, time))}
    given |= {name: (part, (seq, directions, targets)) for name, part in (("the first", first), ("the second", second))}
    check_arrays("sums of lags", given, dtype=inputs.dtype)
    check_arrays("sums of lags", {"the steps": (times, (1 if len(times) == 1 else seq, targets))}, dtype=torch.int64)
    for name, numbers, low, most in (("members", members, -1, seq), ("steps", times, 0, time)):
        if numbers.numel() and not low <= int(numbers.min()) <= int(numbers.max()) < most:
            raise InputError(f"these {name} are not there", got=f"up to {int(numbers.max())}", expected=f"below {most}")
    every = targets == time and bool((times == torch.arange(time)).all())
    least, largest = shares.aminmax()
    alike = every and bool(least == largest)  # then sums of inputs tell their products with the weights
    kinds, series, lags = 2 if alike else 3, 2 * directions + probes + (not alike), tuple(lags)
    near, length = _near(lags, time, series, kinds * probes)
    arrays = [part.detach().contiguous().numpy() for part in (times, shares, first, second, inputs)]
    room = torch.zeros(members.shape[1], series, max(length, time), dtype=inputs.dtype)
    since = np.zeros((len(members), series, time))
    far, apart = np.array(lags[near:], np.int64), np.zeros((len(members), kinds, probes, len(lags) - near))
    spectra = torch.zeros(len(members), kinds, probes, length // 2 + 1, dtype=inputs.dtype.to_complex())
    for block, some in enumerate(members.contiguous().numpy()):
        _place(some, arrays[0], every, *arrays[1:], far, room.numpy(), since[block], apart[block])
        if near:
            of_members = torch.view_as_real(torch.fft.rfft(room)).flatten(-2)
            _add_products(of_members.numpy(), directions, torch.view_as_real(spectra[block]).flatten(-2).numpy())
    # numpy, which makes less ado about arrays as small as these
    alone, products = (np.empty((len(members), 3, probes, len(lags))) for _ in range(2))
    place, left = [1, 2, 0][:kinds], time - np.array(lags)  # steps that have an input the lag before
    if near:
        of_lags = torch.fft.irfft(spectra, length).numpy()
        followed = lags[near - 1] == near - 1  # then they need not be picked
        products[:, place, :, :near] = of_lags[..., :near] if followed else of_lags[..., lags[:near]]
    products[:, place, :, near:] = apart
    ours, turns = since[:, : 2 * directions], np.arange(probes) % directions
    after = ours[:, :, ::-1].cumsum(2).take(left - 1, 2)
    alone[:, 1], alone[:, 2] = after[:, turns], after[:, directions + turns]
    if alike:
        each = float(shares[0, 0])
        alone[:, 0] = ((members >= 0).sum(1).numpy() * each)[:, None, None] * left
        products[:, 0] = since[:, 2 * directions :].cumsum(2).take(left - 1, 2) * each
    else:
        alone[:, 0] = since[:, -1:, ::-1].cumsum(2).take(left - 1, 2)
    return Correlated(torch.from_numpy(alone), torch.from_numpy(products))


@lru_cache(maxsize=64)
def _near(lags: tuple[int, ...], time: int, series: int, products: int) -> tuple[int, int]:
    """How many of the lags, which rise, are looked at by transforms, and how long those are.

    >>> near = tuple(range(256))
    >>> _near(near, 1024, 7, 12), _near((*near, 500, 1000), 1024, 7, 12), _near((0, 4), 1024, 7, 12)
    ((256, 1280), (256, 1280), (0, 0))
    """
    left = np.append(np.cumsum(np.maximum(0, time - np.asarray(lags))[::-1])[::-1], 0)  # steps, if so many are near
    lengths = np.array([0, *(_fast_length(time + lag) for lag in lags)])
    costs = series * lengths * np.log2(np.maximum(1, lengths)) + ONE_BY_ONE * products * left
    near = int(costs.argmin())
    return near, int(lengths[near])


def _fast_length(least: int) -> int:
    """Length of a transform: a few times a power of two.

    >>> _fast_length(1000), _fast_length(1200), _fast_length(1300)
    (1024, 1280, 1536)
    """
    size = 1 << max(0, least.bit_length() - 3)
    return -(-least // size) * size
