"""The recurrence as one differentiable operation: forward, backward and tangent kernels behind one autograd function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lagreach.kernels.gpu.plan import COPIES, Constants, Plan, Tile
from lagreach.kernels.gpu.products import (
    on_device_of,
    recurrent_gradient,
    recurrent_tangent,
    summed_products,
    weight_gradients,
)

PACKED_ROWS = 16  # of weights in a program that packs them


class Recurrence(torch.autograd.Function):
    """States (replica, seq, time, state) from inputs, weights and the first state.

    `W` is (replica, blocks * unit, input), `b` (replica, blocks * unit) and `U` (replica, blocks * unit, unit), or the
    diagonal (replica, unit). `gain` and `shift` belong to the LayerNorm, and `extra` is the hidden bias of TorchGRU's
    candidate: (replica, unit), or None.
    """

    @staticmethod
    def forward(
        plan: Plan,
        x: Tensor,
        W: Tensor,
        b: Tensor,
        U: Tensor,
        s0: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        extra: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states, and what the slopes need (not differentiable): kept activations, LayerNorm scales."""
        tile, family = plan.tile(x, U), plan.family
        sizes = (tile.replica, tile.seq, tile.time)
        states = x.new_empty(*sizes, family.state * tile.hidden)
        kept = x.new_empty(*sizes, family.kept * tile.hidden)
        scales = x.new_empty(sizes if plan.layernorm else (0,))
        pre = torch.bmm(x.flatten(1, 2), W.mT)
        with on_device_of(x):
            plan.family.kernels(units_first=tile.units_first).forward[tile.grid](
                pre,
                b.contiguous(),
                *_weights(plan, tile, U, transposed=not tile.units_first),
                s0.contiguous(),
                *_vectors(x, gain, shift, extra),
                states,
                kept,
                scales,
                _staging(tile, x, 2),
                **_options(plan, tile, x),
            )
        return states, kept, scales

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keep what backward and tangent need."""
        plan, x, W, _, U, *others = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros as large as what is kept would be written at every step
        ctx.plan, ctx.tile = plan, plan.tile(x, U)
        ctx.save_for_backward(x, W, U, *others, *output)
        ctx.save_for_forward(x, W, U, *others, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Walk back through time, then sum the weights' gradients in matrix products."""
        plan, tile = ctx.plan, ctx.tile
        x, W, *saved = ctx.saved_tensors
        _, s0, _, _, _, states, kept, _ = saved
        d, d_s0, d_gain, d_shift, d_b, d_bound = Pullback.apply(plan, tile, grad, *saved)
        d_b, d_extra = d_b.sum(1), None
        if plan.shape.sums and plan.family.dense:
            d_U, d_W = weight_gradients(plan, tile, d, d_bound, s0, states, kept, x)
        else:
            d_U, d_W = recurrent_gradient(plan, tile, d, s0, states, kept), None
        if plan.family.gradients is not None:  # the fourth block of TorchGRU: the hidden part of its candidate
            d, (d_b, d_extra) = d[..., : W.shape[1]], d_b.split((W.shape[1], tile.hidden), dim=1)
        d_W = summed_products(d, x) if d_W is None else d_W[:, : W.shape[1]]
        d_x = torch.matmul(d, W[:, None]) if ctx.needs_input_grad[1] else None
        layernorm = (d_gain.sum(1), d_shift.sum(1)) if plan.layernorm else (None, None)
        return None, d_x, d_W, d_b, d_U, d_s0, *layernorm, d_extra

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None, None]:
        """Tangents of the states."""
        return tangent_of(ctx.plan, ctx.saved_tensors, tangents[1:]), None, None


class Pullback(torch.autograd.Function):
    """The backward kernel, as a function of its own so that `torch.func` hands it plain tensors. No second derivative."""

    @staticmethod
    def forward(
        plan: Plan,
        tile: Tile,
        grad: Tensor,
        U: Tensor,
        s0: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        extra: Tensor | None,
        states: Tensor,
        kept: Tensor,
        scales: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of all blocks and of the first state; each program's share of those of LayerNorm and biases.

        The last are the largest gradients of the blocks that each program saw; empty if it does not look at them.
        """
        blocks = plan.family.gradients or plan.family.blocks
        d_all = grad.new_empty(tile.replica, tile.seq, tile.time, blocks * tile.hidden)
        d_s0 = torch.empty_like(s0, memory_format=torch.contiguous_format)
        shares = (tile.replica, tile.grid[0])
        d_b = grad.new_empty(*shares, blocks * tile.hidden)
        d_gain, d_shift = (grad.new_empty((*shares, tile.hidden) if plan.layernorm else (0,)) for _ in range(2))
        d_bound = grad.new_empty(shares if tile.units_first else (0,))
        with on_device_of(grad):
            plan.family.kernels(units_first=tile.units_first).backward[tile.grid](
                grad.contiguous(),
                *_weights(plan, tile, U, transposed=tile.units_first),
                s0.contiguous(),
                *_vectors(grad, gain, shift, extra),
                states,
                kept,
                scales,
                _staging(tile, grad, blocks),
                d_all,
                d_s0,
                d_gain,
                d_shift,
                d_b,
                *([d_bound] if tile.units_first else []),
                **_options(plan, tile, grad),
            )
        return d_all, d_s0, d_gain, d_shift, d_b, d_bound

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to keep."""


class Tangent(torch.autograd.Function):
    """The tangent kernel, likewise."""

    @staticmethod
    def forward(
        plan: Plan,
        tile: Tile,
        known: Tensor,
        s0_dot: Tensor,
        gain_dot: Tensor | None,
        shift_dot: Tensor | None,
        U: Tensor,
        s0: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        extra: Tensor | None,
        states: Tensor,
        kept: Tensor,
        scales: Tensor,
    ) -> Tensor:
        """Tangents of the states."""
        states_dot = torch.empty_like(states)
        with on_device_of(states):
            plan.family.kernels().tangent[tile.grid](
                known,
                *_weights(plan, tile, U, transposed=True),
                s0.contiguous(),
                s0_dot.contiguous(),
                *_vectors(states, gain, shift, gain_dot, shift_dot, extra),
                states,
                kept,
                scales,
                _staging(tile, states, 2),
                states_dot,
                **_options(plan, tile, states),
            )
        return states_dot

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to keep."""


def tangent_of(plan: Plan, saved: Sequence[Any], tangents: Sequence[Tensor | None]) -> Tensor:
    """Tangents of the states, from what `Recurrence` keeps and the tangents of its tensors (None: held fixed)."""
    plan = plan.without_units_first  # there is no such kernel for tangents, and the usual one needs its own tiles
    x_dot, W_dot, b_dot, U_dot, s0_dot, gain_dot, shift_dot, extra_dot = tangents
    x, W, *others = saved
    U, s0, gain, shift, _, states, kept, _ = others
    tile = plan.tile(x, U)
    width, blocks = W.shape[1], plan.family.gradients or plan.family.blocks
    known = recurrent_tangent(plan, tile, U_dot, s0, states, kept)
    if known is None:
        known = states.new_zeros(tile.replica, tile.seq, tile.time, blocks * tile.hidden)
    for part in (
        None if x_dot is None else torch.matmul(x_dot, W.mT[:, None]),
        None if W_dot is None else torch.matmul(x, W_dot.mT[:, None]),
        None if b_dot is None else b_dot[:, None, None],
    ):
        if part is not None:
            known[..., :width] += part
    if extra_dot is not None:
        known[..., width:] += extra_dot[:, None, None]
    s0_dot = torch.zeros_like(s0) if s0_dot is None else s0_dot
    if plan.layernorm:
        gain_dot = torch.zeros_like(gain) if gain_dot is None else gain_dot
        shift_dot = torch.zeros_like(shift) if shift_dot is None else shift_dot
    tangent: Tensor = Tangent.apply(plan, tile, known, s0_dot, gain_dot, shift_dot, *others)
    return tangent


# Launching


def _options(plan: Plan, tile: Tile, like: Tensor) -> dict[str, Any]:
    precision = "alone" if tile.alone else plan.precision if like.dtype == torch.float32 else "ieee"
    constants = Constants(
        H=tile.hidden,
        HP=tile.padded,
        ROWS=COPIES if tile.alone else tile.rows,
        BK=tile.slice,
        RESIDENT=tile.resident,
        PRECISION=precision,
        PLANES=2 if precision == "float32" else 1,
        EVEN=tile.hidden == tile.padded and tile.seq % tile.rows == 0,
        LAYERNORM=plan.layernorm,
        PTX=like.is_cuda,
        GATED=plan.family.blocks == 2,
        ACTIVATION=plan.activation,
    )
    return {
        "fixed": plan.fixed,
        "B": tile.seq,
        "T": tile.time,
        "K": constants,
        "num_warps": tile.warps,
        "num_stages": 1,  # the kernels fetch ahead themselves
        "enable_fp_fusion": True,
        **({"maxnreg": tile.registers} if tile.registers is not None else {}),
    }


def _vectors(like: Tensor, *vectors: Tensor | None) -> tuple[Tensor, ...]:
    """Stand in an empty tensor for what a cell does not have."""
    empty = like.new_empty(0)
    return tuple(empty if v is None else v.contiguous() for v in vectors)


def _weights(plan: Plan, tile: Tile, U: Tensor, *, transposed: bool) -> tuple[Tensor, Tensor]:
    """Recurrent weights as (replica, block, plane, summed unit, unit), padded with zeros, and their largest sizes."""
    if not plan.family.dense:
        return U.contiguous(), U
    from lagreach.kernels.gpu.parts import pack

    blocks, hidden, padded = plan.family.blocks, tile.hidden, tile.padded
    if tile.alone or U.dtype == torch.float64:  # float64: only in Triton's interpreter
        square = U.reshape(tile.replica, blocks, hidden, hidden)
        more = padded - hidden
        square = square.mT if transposed and not tile.alone else square
        return (torch.nn.functional.pad(square, (0, more, 0, more)) if more else square).contiguous(), U
    bound = torch.linalg.vector_norm(U, torch.inf, dim=(1, 2))
    packed = torch.empty((tile.replica, blocks, plan.planes, padded, padded), dtype=torch.float16, device=U.device)
    pack[(padded // PACKED_ROWS, blocks, tile.replica)](
        U.contiguous(),
        bound,
        packed,
        H=hidden,
        HP=padded,
        ROWS=PACKED_ROWS,
        TRANSPOSED=transposed,
        PRECISION=plan.precision,
    )
    return packed, bound


def _staging(tile: Tile, like: Tensor, factors: int) -> Tensor:
    """Two slots of each staged factor for every program; nothing where all weights are resident."""
    programs = tile.grid[0] * tile.replica if tile.staged else 0
    return like.new_empty(programs * 2 * factors * tile.rows * tile.padded)
