"""RG-LRU, the real-gated linear recurrent unit of Griffin: Hugging Face transformers' RecurrentGemma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lagreach.adapters.scan_cell import AffineStep, ScanCell, age, projected_convolution, recent_inputs, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, inverse_softplus, named_weights, valid_steps_of
from lagreach.cells import Params

SHARPNESS = 8.0  # the constant c of the RG-LRU
STEEPEST = 1000.0  # slope at which the layer cuts the derivative of its square root


@dataclass(frozen=True)
class RGLRUCell(ScanCell):
    """``log a = -8 r softplus(w)``, ``s' = a s + sqrt(1 - a^2) i u``: gates r and i read u, the convolved input.

    A step sees the inputs of its convolution, how many exist, and whether a document begins. There the state is
    forgotten and the input is not scaled down.
    """

    name: ClassVar[str] = "rg_lru"
    reads: ClassVar[tuple[str, ...]] = ("linear_x.weight",)

    taps: int
    inputs: int

    def convolved(self, x: Tensor, p: Params) -> Tensor:
        """Return u."""
        taps = x[..., : self.taps * self.inputs].unflatten(-1, (self.taps, self.inputs))
        project, convolve = (p["linear_x.weight"], p["linear_x.bias"]), (p["conv_1d.weight"], p["conv_1d.bias"])
        return projected_convolution(taps, project, convolve, x[..., -2:-1])

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """Decay in log space, and the gated and scaled input."""
        u, reset = self.convolved(x, params), x[..., -1:] > 0.5
        in_gate = torch.sigmoid(_blockwise(u, params["rg_lru.input_gate_weight"], params["rg_lru.input_gate_bias"]))
        gate = torch.sigmoid(
            _blockwise(u, params["rg_lru.recurrent_gate_weight"], params["rg_lru.recurrent_gate_bias"])
        )
        log_decay = -SHARPNESS * gate * softplus(params["rg_lru.recurrent_param"])
        scale = torch.where(reset, 1.0, _bounded_root(1 - torch.exp(2 * log_decay)))
        return AffineStep(torch.where(reset, float("-inf"), log_decay), u * in_gate * scale)


def _blockwise(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply blocks of channels by a matrix each."""
    blocks = u.unflatten(-1, (len(weight), -1))
    return ((blocks[..., None, :] @ weight)[..., 0, :] + bias).flatten(-2)


def _bounded_root(squared: Tensor) -> Tensor:
    """Take the square root, with the derivative that the layer itself uses: never steeper than a bound."""
    value = squared.detach()
    slope = torch.rsqrt(torch.clamp(4 * value, min=STEEPEST**-2))
    return torch.sqrt(value) + (squared - value) * slope


class RGLRULayer(ScanLayer):
    """`transformers` `RecurrentGemmaRecurrentBlock`: projection, convolution and RG-LRU."""

    family: ClassVar[str] = "RG-LRU (RecurrentGemma)"
    packages: ClassVar[str] = "transformers"
    tested: ClassVar[str] = "transformers 5.22.2"
    limits: ClassVar[str] = "recurrent blocks only (the attention blocks count as instantaneous); no cached state"

    cell: RGLRUCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        gates = [f"rg_lru.{kind}_gate_{part}" for kind in ("input", "recurrent") for part in ("weight", "bias")]
        names = ["linear_x.weight", "linear_x.bias", "conv_1d.weight", "conv_1d.bias", "rg_lru.recurrent_param", *gates]
        weights = named_weights(module, names)
        self.cell = RGLRUCell(
            sizes_of(weights), weights["conv_1d.weight"].shape[-1], weights["linear_x.weight"].shape[1]
        )

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """A block with an RG-LRU inside."""
        return has(module, "linear_x", "linear_y", "linear_out", "conv_1d", "rg_lru")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per channel."""
        return tuple(self._mixer.rg_lru.recurrent_param.shape)

    @property
    def state_size(self) -> int:
        """One unit per channel."""
        return self.decay_shape[0]

    @property
    def _mixer(self) -> Any:
        return self.module

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """The parameter of the decay, for a recurrent gate that stands at one half, with its bias at zero."""
        gate = self._mixer.rg_lru.recurrent_gate_bias
        value = inverse_softplus(math.log(2) / (half_life * SHARPNESS / 2))
        return {"rg_lru.recurrent_param": value, "rg_lru.recurrent_gate_bias": torch.zeros_like(gate)}

    def read_call(self, input_states: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(input_states, position_ids, ...)``: a document begins where the position is zero."""
        positions = kwargs.get("position_ids", args[0] if args else None)
        valid = valid_steps_of(input_states)
        reset = torch.zeros_like(valid) if positions is None else (positions == 0).expand_as(valid)
        parts = [recent_inputs(input_states, self.cell.taps), age(input_states, self.cell.taps)]
        x = torch.cat([*parts, reset[..., None].to(input_states)], dim=-1)
        initial = input_states.new_zeros(len(input_states), self.state_size)
        return ScanInputs(x, initial, valid, reset, {"inputs": input_states})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Gate the states and project them out."""
        module = self._mixer
        return module.linear_out(states * module.act_fn(module.linear_y(scan_inputs.context["inputs"])))

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Attention weights, which a recurrent block has not, come second."""
        return output, None
