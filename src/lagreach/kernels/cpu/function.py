"""The compiled passes as one differentiable torch operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach.cells import Cell, Params
from lagreach.kernels.cpu import passes
from lagreach.kernels.cpu.compiled import Run
from lagreach.kernels.cpu.packing import Readout, names_of
from lagreach.kernels.entry import check_arrays, check_scan
from lagreach.kernels.reference import reference


class Scan(torch.autograd.Function):
    """States of all blocks, each (*replica, time, seq, unit), from inputs, initial state and weights.

    With weights of a readout, `read` and `offset`, it is what these make of the output alone, (*replica, time, seq, output).
    The replica axis that the passes want is added and taken away in here, where autograd does not follow each weight.
    When the gradient is itself to be differentiated, it comes from the reference loop, which autograd can follow.
    """

    @staticmethod
    def forward(ctx: Any, cell: Cell, names: tuple[str, ...], x: Tensor, s0: Tensor, *weights: Tensor) -> Any:
        """Run the cell and keep what the way back needs."""
        done = _run(cell, x, s0, dict(zip(names, weights, strict=True)), keep=True)
        states = states_of(done, alone=x.ndim == 3)
        outputs = (_read_of(done, alone=x.ndim == 3),) if "read" in names else states
        ctx.set_materialize_grads(False)
        # All that is large is saved through torch, which drops it after the backward pass and notices if it was changed.
        kept = [torch.from_numpy(a) for a in (done.x, *done.run[2:-1])]
        ctx.save_for_backward(x, s0, *weights, *states, *kept)
        ctx.cell, ctx.names, ctx.inputs = cell, names, 2 + len(weights)
        ctx.small = {"h0": done.h0, "c0": done.c0, "weights": done.weights}
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Walk back through time."""
        x, s0, *weights = ctx.saved_tensors[: ctx.inputs]
        wanted = ctx.needs_input_grad[2:]
        cell = ctx.cell
        if torch.is_grad_enabled():
            return None, None, *_differentiable(cell, ctx.names, (x, s0, *weights), wanted, grads)
        h, *c, inputs, act, rh, normal, inverse = (v.detach().numpy() for v in ctx.saved_tensors[ctx.inputs :])
        dh, dc = (*(None if g is None else g.contiguous().numpy() for g in grads), None)[:2]
        alone = x.ndim == 3
        if alone:
            h, dh, dc = h[None], dh if dh is None else dh[None], dc if dc is None else dc[None]
            c = [c[0][None]] if c else c
        nothing = np.empty((len(h), 0, 0, 0), h.dtype)
        run = Run(h, c[0] if c else nothing, act, rh, normal, inverse, nothing)
        shapes = {name: w.shape for name, w in zip(ctx.names, weights, strict=True)}
        done = passes.Forward(cell=cell, x=inputs, run=run, **ctx.small)
        by_name, ds0, dx = passes.backward(done, dh, dc, shapes, wants_x=wanted[0])
        if alone:
            ds0, dx = ds0[0], dx if dx is None else dx[0]
        return None, None, dx, ds0, *(by_name[name] for name in ctx.names)


def _differentiable(
    cell: Cell,
    names: tuple[str, ...],
    inputs: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    grads: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, by way of the reference loop."""
    x, s0, *weights = inputs
    params, readout = _parts(dict(zip(names, weights, strict=True)))
    states = reference(cell, x, s0, params)
    blocks = cell.split(states)
    if readout is not None:
        blocks = (cell.output(states) @ readout.read.mT[..., None, :, :] + readout.offset[..., None, None, :],)
    reached = [(b.transpose(-3, -2), g) for b, g in zip(blocks, grads, strict=True) if g is not None]
    asked = [value for value, want in zip(inputs, wanted, strict=True) if want]
    gradients = iter(
        torch.autograd.grad(
            [block for block, _ in reached], asked, [g for _, g in reached], create_graph=True, allow_unused=True
        )
    )
    return [next(gradients) if want else None for want in wanted]


def _run(
    cell: Cell, x: Tensor, s0: Tensor, params: Params, *, keep: bool, output_alone: bool = False
) -> passes.Forward:
    if x.ndim == 3:
        x, s0, params = x[None], s0[None], {name: p[None] for name, p in params.items()}
    params, readout = _parts(params)
    return passes.forward(cell, x, s0, params, keep=keep, readout=readout, output_alone=output_alone)


def _parts(params: Params) -> tuple[Params, Readout | None]:
    """The cell's own weights, and the readout's, if there are any."""
    if "read" not in params:
        return params, None
    own = {name: p for name, p in params.items() if name not in Readout._fields}
    return own, Readout(params["read"], params["offset"])


def _read_of(done: passes.Forward, *, alone: bool) -> Tensor:
    return torch.from_numpy(done.run.read[0] if alone else done.run.read)


def states_of(done: passes.Forward, *, alone: bool) -> tuple[Tensor, ...]:
    """Blocks of the state, time first, without the replica axis if there is a network alone."""
    blocks_of_run = (done.run.h, done.run.c)[: len(done.cell.blocks)]
    return tuple(torch.from_numpy(a[0] if alone else a) for a in blocks_of_run)


def blocks(cell: Cell, x: Tensor, s0: Tensor, params: Params) -> tuple[Tensor, ...]:
    """Blocks of the state after each step, each (*replica, time, seq, unit)."""
    if torch.is_grad_enabled() and any(v.requires_grad for v in (x, s0, *params.values())):
        states: tuple[Tensor, ...] = Scan.apply(cell, tuple(params), x, s0, *params.values())
        return states
    return states_of(_run(cell, x, s0, params, keep=False), alone=x.ndim == 3)


def read(cell: Cell, x: Tensor, s0: Tensor, params: Params, weight: Tensor, bias: Tensor) -> Tensor:
    """What a readout makes of the output of each step, (*replica, time, seq, output)."""
    every = {**params, "read": weight, "offset": bias}
    if torch.is_grad_enabled() and any(v.requires_grad for v in (x, s0, *every.values())):
        (outputs,) = Scan.apply(cell, tuple(every), x, s0, *every.values())
        return outputs
    return read_and_output(cell, x, s0, params, weight, bias)[0]


def read_and_output(
    cell: Cell, x: Tensor, s0: Tensor, params: Params, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The same and the output itself, without gradients."""
    alone = x.ndim == 3
    done = _run(cell, x, s0, {**params, "read": weight, "offset": bias}, keep=False, output_alone=True)
    return _read_of(done, alone=alone), states_of(done, alone=alone)[0]


def read_and_sums(
    cell: Cell,
    x: Tensor,
    s0: Tensor,
    params: Params,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    share: Tensor,
    index: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a readout of one output makes of a network alone, and sums of the output of its cell, as they come."""
    one = {name: p[None] for name, p in params.items()}
    readout = Readout(weight[None], bias[None])
    done = passes.summed(cell, x[None], s0[None], one, readout, target, share, index)
    read, sums, picked = (torch.from_numpy(part) for part in done)
    return read, sums, picked


def tangent(cell: Cell, x: Tensor, s0: Tensor, params: Params, direction: Params) -> Tensor:
    """Derivative of the states along a direction of the weights, in the layout of `scan`."""
    check_scan(cell, x, s0, direction, "the direction of")
    done = passes.forward(cell, x, s0, params, keep=True)
    h_dot, c_dot = (torch.from_numpy(a).transpose(1, 2) for a in passes.tangent(done, direction))
    return torch.cat((h_dot, c_dot), dim=-1) if len(cell.blocks) > 1 else h_dot


def pullback(cell: Cell, x: Tensor, s0: Tensor, params: Params, gradient: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients at the pre-activations of each block, by the name of its bias, and at the inputs, in the layout of `scan`."""
    check_arrays(f"the way back through {cell.name}", {"the gradient": (gradient, (*x.shape[:3], s0.shape[-1]))})
    done = passes.forward(cell, x, s0, params, keep=True)
    dh, *dc = (block.detach().transpose(1, 2).contiguous().numpy() for block in cell.split(gradient))
    d, dx = passes.pullback(done, dh, dc[0] if dc else None)
    biases = names_of(cell).b
    widths = [params[name].shape[-1] for name in biases]
    return dict(zip(biases, d[..., : sum(widths)].split(widths, dim=-1), strict=True)), dx
