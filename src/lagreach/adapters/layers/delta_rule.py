"""Delta-rule layers, which overwrite what their key holds: exact transport, or a refusal that says why.

The transition is ``decay (I - beta k k^T)``: not diagonal, so products of decays bound transport from above and do not
give it. Exact transport needs no diagonal: the gated delta net of Qwen3-Next is replayed as a step and carried back
exactly. Layers of flash-linear-attention with such transitions are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from lagreach.adapters.scan_cell import AffineStep, ScanCell, projected_convolution, recent_inputs, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, inverse_softplus, named_weights, valid_steps_of
from lagreach.cells import Cell, Params
from lagreach.errors import UnsupportedError

REFUSED = (
    "DeltaNet", "GatedDeltaNet", "GatedDeltaNet2", "GatedDeltaProduct", "KimiDeltaAttention", "MomentumDeltaNet",
    "PrecondGatedDeltaNet", "PrecondKDA", "Comba", "MesaNet", "RWKV7Attention",
)  # fmt: skip
REFUSED_ROW = (  # of the table of adapters
    "other delta-rule layers (DeltaNet, KDA, RWKV-7, ...)", "flash-linear-attention", "none", "refused",
    "refused: not diagonal, so decays alone would overstate what is kept; describe them as a Cell",
)  # fmt: skip


@dataclass(frozen=True)
class DeltaCell(ScanCell):
    """``S' = a (S - beta k (k^T S)) + beta k v^T`` for every head, with keys of length one.

    A step sees the inputs of its convolution.
    """

    name: ClassVar[str] = "gated_delta"
    equations: ClassVar[str] = "the gated delta rule; its decay bounds transport from above"
    first_order: ClassVar[str] = "approximate"
    diagonal: ClassVar[bool] = False
    affine = None  # type: ignore[assignment]  # what is kept is no factor for every unit
    reads: ClassVar[tuple[str, ...]] = ("in_proj_qkvz.weight",)

    taps: int
    inputs: int
    key_heads: int
    heads: int
    key_size: int
    value_size: int

    def rows(self) -> tuple[list[int], list[int]]:
        """Rows of the joint projection that make q, k and v (in the order of the convolution), and those of the gate."""
        shared = self.heads // self.key_heads
        widths = [self.key_size, self.key_size, shared * self.value_size, shared * self.value_size]
        grid = torch.arange(self.key_heads * sum(widths)).view(self.key_heads, -1)
        q, k, v, z = (part.flatten().tolist() for part in grid.split(widths, dim=1))
        return q + k + v, z

    def convolved(self, x: Tensor, p: Params) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head, keys and queries of length one."""
        taps = x.unflatten(-1, (self.taps, self.inputs))
        mixed = silu(
            projected_convolution(taps, (p["in_proj_qkvz.weight"][self.rows()[0]], None), (p["conv1d.weight"], None))
        )
        wide = self.key_heads * self.key_size
        q, k, v = mixed.split([wide, wide, self.heads * self.value_size], dim=-1)
        shared = self.heads // self.key_heads
        q, k = (u.unflatten(-1, (self.key_heads, -1)).repeat_interleave(shared, dim=-2) for u in (q, k))
        q, k = (u * torch.rsqrt(u.square().sum(-1, keepdim=True) + 1e-6) for u in (q, k))
        return q, k, v.unflatten(-1, (self.heads, -1))

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """The log decay of every head, and ``beta k v^T``."""
        _, key, value = self.convolved(x, params)
        log_decay, beta = self.strengths(x, params)
        return AffineStep(log_decay, ((beta[..., None] * key)[..., None] * value[..., None, :]).flatten(-3))

    def strengths(self, x: Tensor, p: Params) -> tuple[Tensor, Tensor]:
        """Log decay and beta of every head."""
        shared = self.heads // self.key_heads
        mixed = linear(x[..., -self.inputs :], p["in_proj_ba.weight"]).unflatten(-1, (self.key_heads, 2 * shared))
        b, a = (part.flatten(-2) for part in mixed.split([shared, shared], dim=-1))
        return -torch.exp(p["A_log"]) * softplus(a + p["dt_bias"]), torch.sigmoid(b)

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Decay, take out what the key holds, put in the value."""
        _, key, value = self.convolved(x, params)
        log_decay, beta = self.strengths(x, params)
        kept = torch.exp(log_decay)[..., None, None] * s.unflatten(-1, (self.heads, self.key_size, -1))
        held = (kept * key[..., None]).sum(-2)
        return (kept + key[..., None] * ((value - held) * beta[..., None])[..., None, :]).flatten(-3)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """By autodiff: what is overwritten."""
        return Cell.correction(self, x, s, params)


class DeltaLayer(ScanLayer):
    """`transformers` `Qwen3NextGatedDeltaNet`."""

    family: ClassVar[str] = "gated delta net (Qwen3-Next)"
    packages: ClassVar[str] = "transformers"
    tested: ClassVar[str] = "transformers 5.22.2"
    axes: ClassVar[tuple[str, ...]] = ("head",)
    limits: ClassVar[str] = "not diagonal: transport is exact, decays alone are an upper bound; no cached state"

    cell: DeltaCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        names = ["in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "dt_bias", "A_log"]
        weights = named_weights(module, names)
        heads = (module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim)
        inputs = weights["in_proj_ba.weight"].shape[1]
        self.cell = DeltaCell(sizes_of(weights), weights["conv1d.weight"].shape[-1], inputs, *heads)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """The joint projections of Qwen3-Next."""
        return has(module, "in_proj_qkvz", "in_proj_ba", "conv1d", "dt_bias", "A_log", "norm", "out_proj")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per head."""
        return (self.cell.heads,)

    @property
    def state_size(self) -> int:
        """A matrix per head."""
        return self.cell.heads * self.cell.key_size * self.cell.value_size

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Bias of the step size."""
        layer: Any = self.module
        return {
            "dt_bias": inverse_softplus(torch.log(torch.tensor(2.0)) / (half_life * torch.exp(layer.A_log.detach())))
        }

    def read_call(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(hidden_states, cache, mask)``; masked inputs are zero."""
        valid = valid_steps_of(hidden_states, kwargs.get("attention_mask", args[1] if len(args) > 1 else None))
        inputs = hidden_states * valid[..., None].to(hidden_states)
        initial = inputs.new_zeros(len(inputs), self.state_size)
        return ScanInputs(recent_inputs(inputs, self.cell.taps), initial, valid, context={"inputs": inputs})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Read the matrices by the queries, then norm, gate and projection."""
        module: Any = self.module
        cell = self.cell
        query = cell.convolved(scan_inputs.x, self.weights())[0] * cell.key_size**-0.5
        matrix = states.unflatten(-1, (cell.heads, cell.key_size, -1))
        read = (query[..., None] * matrix).sum(-2)
        gate = linear(scan_inputs.context["inputs"], module.in_proj_qkvz.weight.detach()[cell.rows()[1]])
        return module.out_proj(module.norm(read, gate.unflatten(-1, (cell.heads, -1))).flatten(-2))


def refuse_other_delta_rules(module: nn.Module) -> None:
    """Refuse layers of flash-linear-attention whose transition is not diagonal, by the names of their classes."""
    if type(module).__name__ in REFUSED:
        raise UnsupportedError(
            f"the transition of {type(module).__name__} is not diagonal",
            got="a decay times (I - beta k k^T): products of decays would overstate what is kept",
            fix="describe its step as a Cell, whose exact transport needs no diagonal (see DeltaCell), and pass cell=",
        )
