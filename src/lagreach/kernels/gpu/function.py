"""The recurrence as one differentiable operation: forward, backward and tangent kernels behind one autograd function."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lagreach.kernels.gpu.plan import Plan, Tile

PACKED_ROWS = 16  # of weights in a program that packs them


class Recurrence(torch.autograd.Function):
    """States (replica, seq, time, state) from pre-activations (replica, seq, time, blocks * unit) and the first state.

    `U` is (replica, blocks * unit, unit), or the diagonal (replica, unit); `gain` and `shift` belong to the LayerNorm and
    `extra` is the candidate's hidden bias of TorchGRU: (replica, unit), or None.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        plan: Plan,
        pre: Tensor,
        U: Tensor,
        s0: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        extra: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states, and what the slopes need (not differentiable): kept activations, LayerNorm scales."""
        tile, family = plan.tile(pre), plan.family
        sizes = (tile.replica, tile.seq, tile.time)
        states = pre.new_empty(*sizes, family.state * tile.hidden)
        kept = pre.new_empty(*sizes, family.kept * tile.hidden)
        scales = pre.new_empty(sizes if plan.layernorm else (0,))
        with _on(pre):
            family.kernels.forward[tile.grid](
                pre.contiguous(),
                *_weights(plan, tile, U, transposed=True),
                s0.contiguous(),
                *_vectors(pre, gain, shift, extra),
                states,
                kept,
                scales,
                _staging(tile, pre, 2),
                **_options(plan, tile, pre),
            )
        return states, kept, scales

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keep what backward and tangent need."""
        plan, pre, U, s0, gain, shift, extra = inputs
        states, kept, scales = output
        ctx.mark_non_differentiable(kept, scales)
        ctx.plan, ctx.tile = plan, plan.tile(pre)
        ctx.save_for_backward(U, s0, gain, shift, extra, states, kept, scales)
        ctx.save_for_forward(U, s0, gain, shift, extra, states, kept, scales)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Walk back through time, then sum the weights' gradients in one product."""
        plan, tile = ctx.plan, ctx.tile
        U, s0, gain, shift, extra, states, kept, scales = ctx.saved_tensors
        d_all, d_s0, d_gain, d_shift = Pullback.apply(plan, tile, grad, *ctx.saved_tensors)
        d_pre, d_U, d_extra = _weight_gradients(plan, tile, d_all, s0, states, kept)
        layernorm = (d_gain.sum(1), d_shift.sum(1)) if plan.layernorm else (None, None)
        return None, d_pre, d_U, d_s0, *layernorm, d_extra

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None, None]:
        """Tangents of the states."""
        plan, tile = ctx.plan, ctx.tile
        _, pre_dot, U_dot, s0_dot, gain_dot, shift_dot, extra_dot = tangents
        U, s0, gain, shift, extra, states, kept, scales = ctx.saved_tensors
        known = _known_tangents(plan, tile, pre_dot, U_dot, extra_dot, s0, states, kept)
        s0_dot = torch.zeros_like(s0) if s0_dot is None else s0_dot
        if plan.layernorm:
            gain_dot = torch.zeros_like(gain) if gain_dot is None else gain_dot
            shift_dot = torch.zeros_like(shift) if shift_dot is None else shift_dot
        return Tangent.apply(plan, tile, known, s0_dot, gain_dot, shift_dot, *ctx.saved_tensors), None, None


class Pullback(torch.autograd.Function):
    """The backward kernel, as a function of its own so that `torch.func` hands it plain tensors. No second derivative."""

    @staticmethod
    def forward(  # type: ignore[override]
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of all blocks, of the first state, and each program's share of those of the LayerNorm."""
        blocks = plan.family.gradients or plan.family.blocks
        d_all = grad.new_empty(tile.replica, tile.seq, tile.time, blocks * tile.hidden)
        d_s0 = torch.empty_like(s0, memory_format=torch.contiguous_format)
        partial = (tile.replica, tile.grid[0], tile.hidden) if plan.layernorm else (0,)
        d_gain, d_shift = grad.new_empty(partial), grad.new_empty(partial)
        with _on(grad):
            plan.family.kernels.backward[tile.grid](
                grad.contiguous(),
                *_weights(plan, tile, U, transposed=False),
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
                **_options(plan, tile, grad),
            )
        return d_all, d_s0, d_gain, d_shift

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to keep."""


class Tangent(torch.autograd.Function):
    """The tangent kernel, likewise."""

    @staticmethod
    def forward(  # type: ignore[override]
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
        with _on(states):
            plan.family.kernels.tangent[tile.grid](
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


def _options(plan: Plan, tile: Tile, like: Tensor) -> dict[str, Any]:
    return {
        "fixed": plan.fixed,
        "B": tile.seq,
        "T": tile.time,
        "H": tile.hidden,
        "HP": tile.padded,
        "ROWS": tile.rows,
        "BK": tile.slice,
        "LAYERNORM": plan.layernorm,
        "RESIDENT": tile.resident,
        "PRECISION": plan.precision if like.dtype == torch.float32 else "ieee",
        "EVEN": tile.hidden == tile.padded and tile.seq % tile.rows == 0,
        "num_warps": tile.warps,
        **plan.family.flags,
        **({} if plan.family.dense else {"ACTIVATION": plan.activation}),
    }


def _on(like: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(like.device) if like.is_cuda else nullcontext()


def _vectors(like: Tensor, *vectors: Tensor | None) -> tuple[Tensor, ...]:
    """Stand in an empty tensor for what a cell does not have."""
    empty = like.new_empty(0)
    return tuple(empty if v is None else v.contiguous() for v in vectors)


def _weights(plan: Plan, tile: Tile, U: Tensor, *, transposed: bool) -> tuple[Tensor, Tensor]:
    """Recurrent weights as (replica, block, plane, summed unit, unit), padded with zeros, and their largest sizes."""
    if not plan.family.dense:
        return U.contiguous(), U
    from lagreach.kernels.gpu.parts import pack

    blocks, padded = plan.family.blocks, tile.padded
    bound = torch.linalg.vector_norm(U, torch.inf, dim=(1, 2))
    if U.dtype == torch.float64:  # only in Triton's interpreter
        square = U.reshape(tile.replica, blocks, tile.hidden, tile.hidden)
        more = padded - tile.hidden
        return torch.nn.functional.pad(square.mT if transposed else square, (0, more, 0, more)).contiguous(), bound
    packed = U.new_empty((tile.replica, blocks, plan.planes, padded, padded), dtype=torch.float16)
    grid = (padded // PACKED_ROWS, blocks, tile.replica)
    pack[grid](
        U.contiguous(),
        bound,
        packed,
        H=tile.hidden,
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


def _weight_gradients(
    plan: Plan, tile: Tile, d: Tensor, s0: Tensor, states: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the pre-activations, of U and of `extra`, given those of all blocks."""
    hidden, module = tile.hidden, plan.family.module
    first, later = s0[..., :hidden], states[:, :, :-1, :hidden]  # the outputs before each step
    if not plan.family.dense:
        return d, (d[:, :, 1:] * later).sum((1, 2)) + (d[:, :, 0] * first).sum(1), None
    if module == "gru":  # the candidate's factor is r h
        gates, inner = d.split((2 * hidden, hidden), dim=-1)
        r = kept[..., hidden : 2 * hidden]
        reset = _summed_products(inner, r[:, :, 0] * first, r[:, :, 1:] * later)
        return d, torch.cat((_summed_products(gates, first, later), reset), dim=1), None
    if module == "torch_gru":  # the candidate's input part and hidden part have their own gradients
        gates, inner = d[..., : 2 * hidden], d[..., 3 * hidden :]
        d_U = torch.cat((_summed_products(gates, first, later), _summed_products(inner, first, later)), dim=1)
        return d[..., : 3 * hidden], d_U, inner.sum((1, 2))
    return d, _summed_products(d, first, later), None


def _summed_products(d: Tensor, first: Tensor, later: Tensor) -> Tensor:
    """Sum of d^T h over sequences and times: a product for each sequence, then their sum."""
    replica, seq = d.shape[:2]
    rows, old = d[:, :, 1:].flatten(0, 1), later.flatten(0, 1)
    each = torch.bmm(rows.transpose(1, 2), old).unflatten(0, (replica, seq)).sum(1)
    return each + torch.bmm(d[:, :, 0].transpose(1, 2), first)


def _known_tangents(
    plan: Plan,
    tile: Tile,
    pre_dot: Tensor | None,
    U_dot: Tensor | None,
    extra_dot: Tensor | None,
    s0: Tensor,
    states: Tensor,
    kept: Tensor,
) -> Tensor:
    """Tangents of all blocks before the recurrence: those of the inputs, and of the weights times the old states."""
    hidden, module = tile.hidden, plan.family.module
    blocks = plan.family.gradients or plan.family.blocks
    known = states.new_zeros(tile.replica, tile.seq, tile.time, blocks * hidden)
    if pre_dot is not None:
        known[..., : pre_dot.shape[-1]] = pre_dot
    if extra_dot is not None:
        known[..., 3 * hidden :] += extra_dot[:, None, None]
    if U_dot is None:
        return known
    old = torch.cat((s0[:, :, None, :hidden], states[:, :, :-1, :hidden]), dim=2)
    if not plan.family.dense:
        return known + U_dot[:, None, None] * old
    change = torch.matmul(old, U_dot.transpose(1, 2)[:, None])
    if module == "gru":
        rows = slice(2 * hidden, 3 * hidden)
        r = kept[..., hidden : 2 * hidden]
        change[..., rows] = torch.matmul(r * old, U_dot[:, rows].transpose(1, 2)[:, None])
    if module == "torch_gru":  # U_n acts on the hidden part, the fourth block
        known[..., : 2 * hidden] += change[..., : 2 * hidden]
        known[..., 3 * hidden :] += change[..., 2 * hidden :]
        return known
    return known + change
