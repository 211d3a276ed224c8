"""Gated linear attention: GLA, HGRN and HGRN2 of flash-linear-attention, replayed in plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, silu

from lagreach.adapters.scan_cell import AffineStep, ScanCell, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, named_weights, present, valid_steps_of
from lagreach.cells import Params
from lagreach.errors import UnsupportedError

TESTED = "flash-linear-attention 0.6.0 with its reference operations, and a stand-in; its kernels need a GPU"


@dataclass(frozen=True)
class GLACell(ScanCell):
    """``S' = diag(a) S + k v^T`` for every head, ``log a = logsigmoid(gate) / normalizer``: a decay per head and key.

    A step sees its input, whether it counts (else it keeps everything and adds nothing), and whether a document begins.
    """

    name: ClassVar[str] = "gla"
    reads: ClassVar[tuple[str, ...]] = ("k_proj.weight", "v_proj.weight")

    heads: int
    normalizer: float
    least: float | None = None

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """The log decay of every key, and the outer product of key and value."""
        inputs = x[..., :-2]
        gate = linear(linear(inputs, params["gk_proj.0.weight"]), params["gk_proj.1.weight"], params["gk_proj.1.bias"])
        log_decay = logsigmoid(gate) / self.normalizer
        if self.least is not None:
            log_decay = log_decay.clamp(min=self.least)
        key, value = (linear(inputs, params[f"{n}_proj.weight"]).unflatten(-1, (self.heads, -1)) for n in "kv")
        return _kept(x, log_decay, (key[..., None] * value[..., None, :]).flatten(-3))


@dataclass(frozen=True)
class HGRNCell(ScanCell):
    """``s' = f s + (1 - f) silu(i)``; with more than one head (HGRN2) ``S' = diag(f) S + (1 - f) i^T``.

    A step sees its input, the lower bound of f where there is one, whether it counts, and whether a document begins.
    """

    name: ClassVar[str] = "hgrn"
    reads: ClassVar[tuple[str, ...]] = ("i_proj.weight",)

    heads: int
    inputs: int
    expands: bool

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """``log f``, and what is taken in."""
        inputs, bound = x[..., : self.inputs], x[..., self.inputs : -2]
        log_decay = logsigmoid(linear(inputs, params["f_proj.weight"]))
        if bound.shape[-1]:
            log_decay = torch.logaddexp(torch.log(bound), torch.log1p(-bound) + log_decay)
        taken, rest = linear(inputs, params["i_proj.weight"]), -torch.expm1(log_decay)
        if not self.expands:
            return _kept(x, log_decay, silu(taken) * rest, skips=False)
        pair = [v.unflatten(-1, (self.heads, -1)) for v in (rest, taken)]
        return _kept(x, log_decay, (pair[0][..., None] * pair[1][..., None, :]).flatten(-3))


def _kept(x: Tensor, log_decay: Tensor, value: Tensor, skips: bool = True) -> AffineStep:
    """Nothing is added at steps that do not count (and nothing decays, where a layer skips them); documents begin anew."""
    counts, begins = x[..., -2:-1] > 0.5, x[..., -1:] > 0.5
    if skips:
        log_decay = torch.where(counts, log_decay, 0.0)
    return AffineStep(torch.where(begins, float("-inf"), log_decay), torch.where(counts, value, 0.0))


class FlaLayer(ScanLayer):
    """What the layers of flash-linear-attention share: masks, packed documents, norms and the call."""

    packages: ClassVar[str] = "flash-linear-attention"
    tested: ClassVar[str] = TESTED
    limits: ClassVar[str] = "no short convolutions, no feature maps; no start from a cached state"

    names: ClassVar[tuple[str, ...]]

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        refused = [n for n in ("use_short_conv", "feature_map_fn") if getattr(module, n, None)]
        if getattr(module, "num_kv_groups", 1) != 1:
            refused.append("num_kv_heads")
        if refused:
            raise UnsupportedError(
                f"{type(module).__name__} uses an option that cannot be replayed",
                got=", ".join(refused),
                fix="build the layer without it, or describe it as a Cell and pass cell=",
            )

    def _own_weights(self) -> dict[str, Tensor]:
        return named_weights(self.module, [*self.names, *present(self.module, "gk_proj.1.bias")])

    def read_call(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(hidden_states, attention_mask, ..., cu_seqlens=)``."""
        valid = valid_steps_of(hidden_states, kwargs.get("attention_mask", args[0] if args else None))
        starts = kwargs.get("cu_seqlens")
        reset = torch.zeros_like(valid)
        if starts is not None:  # documents follow each other in a single sequence
            reset[0, starts[1:-1].long()] = True
        flags = torch.stack((valid, reset), dim=-1).to(hidden_states)
        parts = [hidden_states, *self._more(hidden_states, kwargs), flags]
        initial = hidden_states.new_zeros(len(hidden_states), self.state_size)
        context = {"inputs": hidden_states}
        return ScanInputs(torch.cat(parts, dim=-1), initial, valid, None if starts is None else reset, context)

    def _more(self, hidden_states: Tensor, kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Further inputs of a step."""
        return []

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Attention weights, of which there are none, and the cache come behind."""
        return output, None, kwargs.get("past_key_values")

    def _normalised(self, norm: Any, values: Tensor, eps: float | None = None) -> Tensor:
        """Root mean square norm in plain torch: the layer's own is a fused kernel."""
        scaled = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + (norm.eps if eps is None else eps))
        return scaled if norm.weight is None else scaled * norm.weight.detach()


class GLALayer(FlaLayer):
    """`fla.layers.GatedLinearAttention`."""

    family: ClassVar[str] = "GLA"
    axes: ClassVar[tuple[str, ...]] = ("head", "key")
    names: ClassVar[tuple[str, ...]] = ("k_proj.weight", "v_proj.weight", "gk_proj.0.weight", "gk_proj.1.weight")

    cell: GLACell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        least = None if module.clamp_min is None else float(module.clamp_min)
        self.cell = GLACell(sizes_of(self._own_weights()), module.num_heads, float(module.gate_logit_normalizer), least)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Query, key, value, and a gate of low rank for every key."""
        return has(module, "q_proj", "k_proj", "v_proj", "gk_proj", "o_proj", "gate_logit_normalizer")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """Heads and keys per head."""
        return (self.cell.heads, dict(self.cell.sizes)["k_proj.weight"][0] // self.cell.heads)

    @property
    def state_size(self) -> int:
        """A matrix per head."""
        return (
            self.decay_shape[0] * self.decay_shape[1] * (dict(self.cell.sizes)["v_proj.weight"][0] // self.cell.heads)
        )

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Bias of the gate: the same half-life for all keys of a head."""
        logits = torch.logit(torch.exp2(-self.cell.normalizer / half_life))
        return {"gk_proj.1.bias": logits.repeat_interleave(self.decay_shape[1])}

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Read the matrices by the queries, then norm, gate and projection."""
        module: Any = self.module
        inputs = scan_inputs.context["inputs"]
        query = module.q_proj(inputs).unflatten(-1, self.decay_shape) * self.decay_shape[1] ** -0.5
        matrix = states.unflatten(-1, (*self.decay_shape, -1))
        read = (query[..., None] * matrix).sum(-2)
        fused = getattr(module, "fuse_norm_and_gate", False)
        read = self._normalised(module.g_norm_swish_gate if fused else module.g_norm, read).flatten(-2)
        if module.use_output_gate:
            read = read * (silu if fused else module.gate_fn)(module.g_proj(inputs))
        return module.o_proj(read)


class HGRNLayer(FlaLayer):
    """`fla.layers.HGRNAttention` and `HGRN2Attention`."""

    family: ClassVar[str] = "HGRN, HGRN2"
    axes: ClassVar[tuple[str, ...]] = ("head", "channel")
    names: ClassVar[tuple[str, ...]] = ("i_proj.weight", "f_proj.weight")

    cell: HGRNCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        weights, expands = self._own_weights(), has(module, "q_proj")
        heads = module.num_heads if expands else 1
        self.cell = HGRNCell(sizes_of(weights), heads, weights["i_proj.weight"].shape[1], expands)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Projections for what is taken in and for what is forgotten."""
        return has(module, "i_proj", "f_proj", "g_norm", "o_proj") and not has(module, "v_proj")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """Heads and channels per head; HGRN has one head."""
        return (self.cell.heads, dict(self.cell.sizes)["f_proj.weight"][0] // self.cell.heads)

    @property
    def state_size(self) -> int:
        """As many units as decays; in HGRN2 a matrix per head."""
        wide = dict(self.cell.sizes)["i_proj.weight"][0] // self.cell.heads if self.cell.expands else 1
        return self.decay_shape[0] * self.decay_shape[1] * wide

    def _more(self, hidden_states: Tensor, kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The lower bound of the forget gate, which the first layer ignores."""
        bound = kwargs.get("lower_bound")
        if bound is None or not getattr(self.module, "layer_idx", 0):
            return []
        return [bound.detach().to(hidden_states).expand(*hidden_states.shape[:2], -1)]

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Read the states, then norm, gate and projection."""
        module: Any = self.module
        inputs = scan_inputs.context["inputs"]
        if not self.cell.expands:
            return module.o_proj(self._normalised(module.g_norm, states) * silu(module.g_proj(inputs)))
        query = silu(module.q_proj(inputs)).unflatten(-1, self.decay_shape) * self.decay_shape[1] ** -0.5
        read = (query[..., None] * states.unflatten(-1, (*self.decay_shape, -1))).sum(-2).flatten(-2)
        return module.o_proj(self._normalised(module.g_norm, read, eps=1e-5))  # its fused norm ignores the layer's own
