"""Mamba (selective state space, first version): mambapy, Hugging Face transformers and mamba-ssm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from lagreach.adapters.scan_cell import AffineStep, ScanCell, age, projected_convolution, recent_inputs, sizes_of
from lagreach.adapters.scan_layer import (
    ScanInputs,
    ScanLayer,
    has,
    inverse_softplus,
    named_weights,
    present,
    valid_steps_of,
)
from lagreach.cells import Params
from lagreach.errors import UnsupportedError

INNER_NORMS = ("dt_layernorm", "b_layernorm", "B_layernorm", "c_layernorm", "C_layernorm")


@dataclass(frozen=True)
class MambaCell(ScanCell):
    """``s' = exp(dt A) s + dt B u`` for every channel and state, with dt and B read from u, the convolved input.

    A step sees the inputs that its convolution sees, then (with a bias in the projection) how many of them exist, and
    whether the step counts.
    """

    name: ClassVar[str] = "mamba"
    reads: ClassVar[tuple[str, ...]] = ("in_proj.weight",)

    taps: int
    inputs: int
    rank: int
    activation: Callable[[Tensor], Tensor] = silu

    def convolved(self, x: Tensor, p: Params) -> Tensor:
        """Return u, zero at steps that do not count."""
        channels = p["A_log"].shape[0]
        bias = p.get("in_proj.bias")
        taps = x[..., : self.taps * self.inputs].unflatten(-1, (self.taps, self.inputs))
        project = (p["in_proj.weight"][:channels], None if bias is None else bias[:channels])
        before = None if bias is None else x[..., -2:-1]
        convolve = (p["conv1d.weight"], p.get("conv1d.bias"))
        return self.activation(projected_convolution(taps, project, convolve, before)) * x[..., -1:]

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """Decay ``dt A`` in log space, and ``dt B u``."""
        states = params["A_log"].shape[1]
        u = self.convolved(x, params)
        low, reading = linear(u, params["x_proj.weight"][: self.rank + states]).split([self.rank, states], dim=-1)
        dt = softplus(linear(low, params["dt_proj.weight"], params["dt_proj.bias"]))
        log_decay = dt[..., None] * -torch.exp(params["A_log"])
        value = (dt * u)[..., None] * reading[..., None, :]
        return AffineStep(log_decay.flatten(-2), value.flatten(-2))


class MambaLayer(ScanLayer):
    """`mambapy.mamba.MambaBlock`, `transformers` `MambaMixer`, `mamba_ssm.Mamba`: the same weights in all of them."""

    family: ClassVar[str] = "Mamba"
    packages: ClassVar[str] = "mambapy, transformers, mamba-ssm"
    tested: ClassVar[str] = "mambapy 1.2.0, transformers 5.22.2; mamba-ssm by a stand-in with its weights"
    axes: ClassVar[tuple[str, ...]] = ("channel", "state")
    limits: ClassVar[str] = "no norms inside the mixer (Jamba, FalconMamba); no start from a cached state"

    cell: MambaCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        norms = [name for name in INNER_NORMS if getattr(module, name, None) is not None]
        if norms:
            raise UnsupportedError(
                f"{type(module).__name__} has norms inside its scan",
                got=", ".join(norms),
                fix="describe its step as a Cell and pass cell=",
            )
        names = ["in_proj.weight", "conv1d.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log"]
        weights = named_weights(module, names + present(module, "in_proj.bias", "conv1d.bias"))
        rank = weights["dt_proj.weight"].shape[1]
        taps = weights["conv1d.weight"].shape[-1]
        activation = module.act if callable(getattr(module, "act", None)) else silu
        self.cell = MambaCell(sizes_of(weights), taps, weights["in_proj.weight"].shape[1], rank, activation)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Projections for dt and for B, C, and one decay per channel and state."""
        parts = has(module, "in_proj", "conv1d", "x_proj", "dt_proj", "A_log", "D", "out_proj")
        return parts and isinstance(module.A_log, Tensor) and module.A_log.ndim == 2

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """Channels and states per channel."""
        return tuple(self._mixer.A_log.shape)

    @property
    def state_size(self) -> int:
        """Every channel has its states."""
        return self._mixer.A_log.numel()

    @property
    def _mixer(self) -> Any:
        return self.module

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Bias of dt; at an input of zero nothing else moves it (but for a bias of the convolution)."""
        slowest = torch.exp(self._mixer.A_log.detach().amin(1))
        return {"dt_proj.bias": inverse_softplus(math.log(2) / (half_life * slowest))}

    def read_call(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(hidden_states, cache, mask)``; the mask silences inputs before and after the convolution."""
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        valid = valid_steps_of(hidden_states, mask)
        keep = valid[..., None].to(hidden_states)
        inputs = hidden_states * keep
        parts = [recent_inputs(inputs, self.cell.taps)]
        if self._mixer.in_proj.bias is not None:
            parts.append(age(inputs, self.cell.taps))
        initial = hidden_states.new_zeros(len(hidden_states), self.state_size)
        return ScanInputs(torch.cat([*parts, keep], dim=-1), initial, valid, context={"inputs": inputs})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """``(C s + D u) silu(z)``, projected out."""
        module, weights = self._mixer, self.weights()
        channels, size = self.decay_shape
        u = self.cell.convolved(scan_inputs.x, weights)
        reading = linear(u, weights["x_proj.weight"][self.cell.rank + size :])
        y = (states.unflatten(-1, (channels, size)) * reading[..., None, :]).sum(-1) + module.D.detach() * u
        gate = module.in_proj(scan_inputs.context["inputs"])[..., channels:]
        return module.out_proj((y * silu(gate)).to(scan_inputs.x.dtype))
