"""Products over all times, after the loop: the gradients of the weights, and what a tangent of them adds."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lagreach.kernels.gpu.plan import Plan, Tile

SUMS_PROGRAMS = 528  # programs that sum the gradients of the weights, at least: a few for each multiprocessor
STRETCH_TILES = (
    4  # tiles of times in a stretch of a sequence, at least: few sequences are cut for the sake of more programs
)
# Units, times, warps and stages of such a program: for one block of up to 64 units, for two of them, and for a wider block.
SUMS_TILE, PAIRED_SUMS_TILE, WIDE_SUMS_TILE = (64, 32, 4, 4), (128, 32, 4, 3), (128, 32, 8, 3)
WIDEST_INPUT = 64  # up to so many inputs, the gradient of their weights is summed by the same programs


@dataclass(frozen=True)
class SumConstants:
    """What the sums of the weights' gradients know when they are compiled, their K; see `weight_sums.sums`."""

    G: int
    STATE: int
    H: int
    HP: int
    D: int
    DP: int
    RESET_FROM: int
    BM: int
    BK: int
    PRECISION: str
    EVEN: bool


def on_device_of(like: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(like.device) if like.is_cuda else nullcontext()


def summed_products(d: Tensor, a: Tensor) -> Tensor:
    """Sum of d^T a over sequences and times: a product for each sequence, then their sum (one long product is slow)."""
    each = torch.bmm(d.flatten(0, 1).mT, a.flatten(0, 1))
    return each.unflatten(0, d.shape[:2]).sum(1)


def recurrent_gradient(plan: Plan, tile: Tile, d: Tensor, s0: Tensor, states: Tensor, kept: Tensor) -> Tensor:
    """Gradient of U, given those of all blocks."""
    hidden, family = tile.hidden, plan.family
    first, later = s0[..., :hidden], states[:, :, :-1, :hidden]  # the outputs before each step

    def summed(d: Tensor, first: Tensor, later: Tensor) -> Tensor:
        return summed_products(d[:, :, 1:], later) + torch.bmm(d[:, :, 0].mT, first)

    if not family.dense:
        return (d[:, :, 1:] * later).sum((1, 2)) + (d[:, :, 0] * first).sum(1)
    if family.reset:
        r = kept[..., hidden : 2 * hidden]
        reset = summed(d[..., 2 * hidden :], r[:, :, 0] * first, r[:, :, 1:] * later)
        return torch.cat((summed(d[..., : 2 * hidden], first, later), reset), dim=1)
    if family.gradients is not None:  # the last weights act on the hidden part, the fourth block
        return torch.cat([summed(part, first, later) for part in (d[..., : 2 * hidden], d[..., 3 * hidden :])], dim=1)
    return summed(d, first, later)


def weight_gradients(
    plan: Plan, tile: Tile, d: Tensor, d_bound: Tensor, s0: Tensor, states: Tensor, kept: Tensor, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of U and W in one pass over those of all blocks; that of W is None where the inputs are too wide."""
    from lagreach.kernels.gpu.weight_sums import sums

    hidden, width, inputs = tile.hidden, d.shape[-1], x.shape[-1] if x.shape[-1] <= WIDEST_INPUT else 0
    padded_inputs = max(16, 1 << (inputs - 1).bit_length()) if inputs else 16
    reset_from = 2 * hidden if plan.family.reset else width  # from where the factor is r h
    paired = reset_from % PAIRED_SUMS_TILE[0] == (width - reset_from) % PAIRED_SUMS_TILE[0] == 0
    usual = WIDE_SUMS_TILE if tile.padded > 64 else PAIRED_SUMS_TILE if paired else SUMS_TILE
    units, times, warps, stages = plan.shape.sums_tile or usual
    parts = -(-reset_from // units) + -(-(width - reset_from) // units)
    wanted, stretches = -(-SUMS_PROGRAMS // (parts * tile.replica)), 1
    while stretches * tile.seq < wanted and tile.time % (2 * stretches * STRETCH_TILES * times) == 0:
        stretches *= 2
    shares, stretch = min(stretches * tile.seq, wanted), tile.time // stretches
    d_U = d.new_empty(tile.replica, shares, width, hidden)
    d_W = d.new_empty(tile.replica, shares, width, inputs)
    first, x = s0[..., :hidden], x.contiguous()
    with on_device_of(d):
        sums[(parts, shares, tile.replica)](
            d,
            states,
            kept,
            x,
            d_bound.amax(1) if tile.units_first else _largest(d),
            _largest(first).clamp(min=1.0),  # outputs lie between the first ones and 1
            _largest(x),
            d_U,
            d_W,
            stretches * tile.seq,
            stretch,
            shares,
            stretches,
            K=SumConstants(
                G=width,
                STATE=states.shape[-1],
                H=hidden,
                HP=tile.padded,
                D=inputs,
                DP=padded_inputs,
                RESET_FROM=reset_from,
                BM=units,
                BK=times,
                PRECISION=plan.precision if d.dtype == torch.float32 else "ieee",
                EVEN=stretch % times == reset_from % units == (width - reset_from) % units == 0
                and (hidden, inputs or padded_inputs) == (tile.padded, padded_inputs),
            ),
            num_warps=warps,
            num_stages=stages,
        )
    at_first = [torch.bmm(d[:, :, 0, :reset_from].mT, first)]
    if reset_from < width:
        at_first.append(torch.bmm(d[:, :, 0, reset_from:].mT, kept[:, :, 0, hidden : 2 * hidden] * first))
    summed = d_U.sum(1) + torch.cat(at_first, dim=1)
    if plan.family.gradients is not None:  # the last weights act on the hidden part, the fourth block
        summed = torch.cat((summed[:, : 2 * hidden], summed[:, 3 * hidden :]), dim=1)
    return summed, d_W.sum(1) if inputs else None


def _largest(a: Tensor) -> Tensor:
    """Largest size in each replica."""
    return torch.linalg.vector_norm(a, torch.inf, dim=tuple(range(1, a.dim())))


def recurrent_tangent(
    plan: Plan, tile: Tile, U_dot: Tensor | None, s0: Tensor, states: Tensor, kept: Tensor
) -> Tensor | None:
    """Tangents of all blocks that come from a tangent of U at the old states."""
    if U_dot is None:
        return None
    hidden, family = tile.hidden, plan.family
    old = torch.cat((s0[:, :, None, :hidden], states[:, :, :-1, :hidden]), dim=2)
    if not family.dense:
        return U_dot[:, None, None] * old
    change = torch.matmul(old, U_dot.mT[:, None])
    gates, inner = change[..., : 2 * hidden], slice(2 * hidden, 3 * hidden)
    if family.reset:
        r = kept[..., hidden : 2 * hidden]
        return torch.cat((gates, torch.matmul(r * old, U_dot[:, inner].mT[:, None])), dim=-1)
    if family.gradients is not None:
        return torch.cat((gates, torch.zeros_like(old), change[..., inner]), dim=-1)
    return change
