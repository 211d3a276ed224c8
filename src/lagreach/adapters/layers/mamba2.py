"""Mamba-2 (state space duality): Hugging Face transformers and mamba-ssm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Mamba2Cell(ScanCell):
    """``S' = exp(dt A) S + dt u B^T`` for every head: one decay per head, a matrix (channel, state) as its state.

    A step sees the inputs of its convolution, then (with a bias) how many exist, whether a document begins (where
    the layer can be told), and whether the step counts.
    """

    name: ClassVar[str] = "mamba2"
    reads: ClassVar[tuple[str, ...]] = ("in_proj.weight",)

    taps: int
    inputs: int
    inner: int
    groups: int
    states: int
    limit: tuple[float, float] = (0.0, float("inf"))
    activation: Callable[[Tensor], Tensor] = silu
    multipliers: Tensor | None = field(default=None, compare=False)  # of what `in_proj` gives (Falcon-H1)

    def projection(self, params: Params, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Weights and biases of some columns of `in_proj`, with their multipliers."""
        weight, bias = params["in_proj.weight"][rows], params.get("in_proj.bias")
        bias = None if bias is None else bias[rows]
        if self.multipliers is None:
            return weight, bias
        factors = self.multipliers[rows].to(weight)
        return weight * factors[:, None], None if bias is None else bias * factors

    def convolved(self, x: Tensor, p: Params) -> Tensor:
        """Return u, B and C side by side, zero at steps that do not count."""
        project = self.projection(p, slice(self.inner, 2 * self.inner + 2 * self.groups * self.states))
        taps = x[..., : self.taps * self.inputs].unflatten(-1, (self.taps, self.inputs))
        before = None if project[1] is None else x[..., -3:-2]
        convolve = (p["conv1d.weight"], p.get("conv1d.bias"))
        return self.activation(projected_convolution(taps, project, convolve, before)) * x[..., -1:]

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """Decay ``dt A`` of every head in log space, and ``dt u B^T``."""
        heads = len(params["A_log"])
        newest = x[..., (self.taps - 1) * self.inputs : self.taps * self.inputs]
        raw = linear(newest, *self.projection(params, slice(-heads, None)))
        dt = softplus(raw + params["dt_bias"]).clamp(*self.limit)
        u, reading, _ = self.parts(self.convolved(x, params), heads)
        log_decay = dt * -torch.exp(params["A_log"])
        log_decay = torch.where(x[..., -2:-1] > 0.5, float("-inf"), log_decay)
        value = (dt[..., None] * u)[..., None] * reading[..., None, :]
        return AffineStep(log_decay, value.flatten(-3))

    def parts(self, convolved: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split into u (head, channel), B and C (head, state)."""
        wide = self.groups * self.states
        u, b, c = convolved.split([self.inner, wide, wide], dim=-1)
        b, c = (v.unflatten(-1, (self.groups, -1)).repeat_interleave(heads // self.groups, dim=-2) for v in (b, c))
        return u.unflatten(-1, (heads, -1)), b, c


class Mamba2Layer(ScanLayer):
    """`transformers` `Mamba2Mixer` and `mamba_ssm.Mamba2`."""

    family: ClassVar[str] = "Mamba-2"
    packages: ClassVar[str] = "transformers (also in Bamba, Falcon-H1, Zamba2 and other hybrids), mamba-ssm"
    tested: ClassVar[str] = "transformers 5.22.2; mamba-ssm by a stand-in with its weights"
    axes: ClassVar[tuple[str, ...]] = ("head",)
    limits: ClassVar[str] = "one decay per head (D_has_hdim=False); no start from a cached state; not Mamba-3"

    cell: Mamba2Cell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        names = ["in_proj.weight", "conv1d.weight", "dt_bias", "A_log"]
        weights = named_weights(module, names + present(module, "in_proj.bias", "conv1d.bias"))
        inner = module.out_proj.weight.shape[1]
        channels, _, taps = weights["conv1d.weight"].shape
        groups = int(module.n_groups if has(module, "n_groups") else module.ngroups)
        limits = module.time_step_limit if has(module, "time_step_limit") else module.dt_limit
        expected = inner + channels + len(weights["A_log"])
        if len(weights["in_proj.weight"]) != expected:
            raise UnsupportedError(
                f"{type(module).__name__} projects its input to parts that lagreach does not know",
                got=f"{len(weights['in_proj.weight'])} columns",
                expected=f"{expected}: gate, u, B, C and one dt per head",
            )
        self.cell = Mamba2Cell(
            sizes_of(weights),
            taps,
            weights["in_proj.weight"].shape[1],
            inner,
            groups,
            (channels - inner) // (2 * groups),
            (float(limits[0]), float(limits[1])),
            module.act if callable(getattr(module, "act", None)) else silu,
            module.mup_vector.detach().flatten() if has(module, "mup_vector") else None,
        )

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """One decay and one bias of dt per head, B and C from the convolution."""
        parts = has(module, "in_proj", "conv1d", "dt_bias", "A_log", "D", "out_proj") and not has(module, "x_proj")
        return parts and isinstance(module.A_log, Tensor) and module.A_log.ndim == 1

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per head."""
        return tuple(self._mixer.A_log.shape)

    @property
    def state_size(self) -> int:
        """Every channel has its states."""
        return self.cell.inner * self.cell.states

    @property
    def _mixer(self) -> Any:
        return self.module

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Bias of dt, within the limits that the layer sets."""
        dt = (math.log(2) / (half_life * torch.exp(self._mixer.A_log.detach()))).clamp(*self.cell.limit)
        return {"dt_bias": inverse_softplus(dt)}

    def read_call(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(hidden_states, cache, mask)``, or mamba-ssm's `seq_idx`, which numbers documents."""
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 and "seq_idx" not in kwargs else None)
        valid = valid_steps_of(hidden_states, mask)
        documents = kwargs.get("seq_idx")
        reset = torch.zeros_like(valid)
        if documents is not None:
            reset[:, 1:] = documents[:, 1:] != documents[:, :-1]
        keep = valid[..., None].to(hidden_states)
        inputs = hidden_states * keep * getattr(self._mixer, "ssm_in_multiplier", 1.0)
        recent, existing = recent_inputs(inputs, self.cell.taps), age(inputs, self.cell.taps)
        if documents is not None:
            same = _same_document(documents, self.cell.taps).to(inputs)
            recent, existing = recent * same.repeat_interleave(inputs.shape[-1], -1), same.sum(-1, keepdim=True) - 1
        parts = [recent] if self._mixer.in_proj.bias is None else [recent, existing]
        x = torch.cat([*parts, reset[..., None].to(inputs), keep], dim=-1)
        initial = hidden_states.new_zeros(len(hidden_states), self.state_size)
        return ScanInputs(x, initial, valid, reset if documents is not None else None, {"inputs": inputs})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """``C s + D u``, gated, normalised and projected out."""
        module, cell, heads = self._mixer, self.cell, len(self._mixer.A_log)
        u, _, reading = cell.parts(cell.convolved(scan_inputs.x, self.weights()), heads)
        matrix = states.unflatten(-1, (heads, -1, cell.states))
        y = (matrix * reading[..., None, :]).sum(-1) + module.D.detach()[:, None] * u
        gate = linear(scan_inputs.context["inputs"], *cell.projection(self.weights(), slice(0, cell.inner)))
        return module.out_proj(self._normalised(y.flatten(-2), gate).to(scan_inputs.x.dtype))

    def _normalised(self, y: Tensor, gate: Tensor) -> Tensor:
        """Gate and normalise as the layer does, in plain torch: its own norm may be a fused kernel."""
        norm = getattr(self._mixer, "norm", None)
        if norm is None or isinstance(norm, nn.Identity):
            return y * silu(gate)
        eps = next((getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), None)
        if eps is None:
            raise UnsupportedError(
                f"{type(self._mixer).__name__} normalises in a way that lagreach does not know",
                got=f"a {type(norm).__name__} without eps",
                expected="an RMS norm with eps or variance_epsilon, or none",
                fix="write a ScanLayer for it and register it (lagreach.adapters.register)",
            )
        if not getattr(norm, "norm_before_gate", False):
            y = y * silu(gate)
        size = getattr(norm, "group_size", None) or y.shape[-1] // getattr(norm, "n_groups", 1)
        grouped = y.unflatten(-1, (-1, size))
        y = (grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)).flatten(-2) * norm.weight.detach()
        return y * silu(gate) if getattr(norm, "norm_before_gate", False) else y


def _same_document(documents: Tensor, width: int) -> Tensor:
    """Which of the recent inputs belong to the document of the step that sees them, (seq, time, tap)."""
    before = nn.functional.pad(documents, (width - 1, 0), value=-1).unfold(1, width, 1)
    return before == documents[..., None]
