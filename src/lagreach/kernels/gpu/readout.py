"""A linear readout of one number from each state, and its gradients, each in one pass over the states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lagreach.kernels.gpu.products import on_device_of

TALL = 32  # rows of a tile
SHARES = 264  # programs that sum the gradients of one replica's weights
WIDEST = 1024  # states


def knows(states: Tensor, weight: Tensor) -> bool:
    """Whether `read_one` can be used: float32 on a GPU, one output, not too wide."""
    return states.is_cuda and states.dtype == torch.float32 and weight.shape[1] == 1 and states.shape[-1] <= WIDEST


class ReadOne(torch.autograd.Function):
    """``states w + b`` of each replica; w is zero outside columns `first` to `last`, and has no gradient there."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, first: int, last: int) -> Tensor:
        """Outputs (replica, seq, time, 1) of states (replica, seq, time, state), w (replica, 1, state), b (replica, 1)."""
        from lagreach.kernels.gpu.readout_kernels import read

        ctx.save_for_backward(states, weight)
        ctx.columns = first, last
        out = states.new_empty(*states.shape[:3], 1)
        rows, size = states.shape[1] * states.shape[2], states.shape[3]
        with on_device_of(states):
            read[(-(-rows // TALL), len(states))](
                states.contiguous(), weight.contiguous(), bias.contiguous(), out, rows, first, last,
                SIZE=size, SP=_padded(size), TALL=TALL,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients of the states, of w and of b."""
        from lagreach.kernels.gpu.readout_kernels import read_back

        states, weight = ctx.saved_tensors
        rows, size = states.shape[1] * states.shape[2], states.shape[3]
        shares = min(SHARES, -(-rows // TALL))
        d_states = torch.empty_like(states, memory_format=torch.contiguous_format)
        d_weight, d_bias = states.new_empty(len(states), shares, size), states.new_empty(len(states), shares)
        with on_device_of(states):
            read_back[(shares, len(states))](
                grad.contiguous(), states.contiguous(), weight.contiguous(), d_states, d_weight, d_bias,
                rows, shares, *ctx.columns, SIZE=size, SP=_padded(size), TALL=TALL,
            )  # fmt: skip
        return d_states, d_weight.sum(1)[:, None], d_bias.sum(1)[:, None], None, None


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
