"""mLSTM, the matrix memory of xLSTM: Hugging Face transformers, and the cell of the xlstm package."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from lagreach.adapters.scan_cell import AffineStep, ScanCell, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, named_weights, present, valid_steps_of
from lagreach.cells import Params
from lagreach.errors import UnsupportedError

LARGEST_GATE = {torch.float32: 60.0, torch.float64: 600.0}  # what exp(gate) and a few sums of it can hold


@dataclass(frozen=True)
class MLSTMCell(ScanCell):
    """``(C, n)' = sigmoid(f) (C, n) + exp(i) k (v, 1)^T`` for every head: a matrix and its normaliser.

    Layers carry these numbers divided by a running maximum, which cancels in what they return; here they are plain.
    With `direct`, a step is given q, k and v themselves (the cell of the xlstm package).
    """

    name: ClassVar[str] = "mlstm"
    reads: ClassVar[tuple[str, ...]] = ("k.weight", "v.weight", "qkv_opreact.weight", "igate.weight")

    heads: int
    key_size: int
    value_size: int
    cap: float | None = None
    direct: bool = False

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """``logsigmoid(f)`` of every head, and what the input gate lets in."""
        _, key, value = self.read(x, params)
        take, forget = self.gates_of(x, params)
        pair = torch.cat((value, torch.ones_like(value[..., :1])), dim=-1)
        added = (torch.exp(take)[..., None] * key)[..., None] * pair[..., None, :]
        return AffineStep(logsigmoid(forget), added.flatten(-3))

    def read(self, x: Tensor, p: Params) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head; the key is scaled."""
        if self.direct:
            parts = x.split([self.key_size, self.key_size, self.value_size], dim=-1)
        elif "qkv_opreact.weight" in p:
            joint = linear(x, p["qkv_opreact.weight"], p.get("qkv_opreact.bias"))
            parts = joint[..., : -self.value_size].split([self.key_size, self.key_size, self.value_size], dim=-1)
        else:
            named = {n: (p[f"{n}.weight"], p.get(f"{n}.bias")) for n in "kv"}
            key, value = (linear(x, *named[n]) for n in "kv")
            parts = (torch.zeros_like(key), key, value)  # the query belongs to the reading of the state
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        return q, k * (self.key_size // self.heads) ** -0.5, v

    def gates_of(self, x: Tensor, p: Params) -> tuple[Tensor, Tensor]:
        """Pre-activations of input and forget gate, capped where the layer caps them."""
        if "ifgate_preact.weight" in p:
            gates = linear(x, p["ifgate_preact.weight"], p["ifgate_preact.bias"]).chunk(2, dim=-1)
        else:
            suffix = "" if self.direct else "_preact"
            names = [f"{n}gate{suffix}" for n in "if"]
            gates = tuple(linear(x, p[f"{n}.weight"], p[f"{n}.bias"]) for n in names)
        if self.cap is None:
            return gates[0], gates[1]
        return self.cap * torch.tanh(gates[0] / self.cap), self.cap * torch.tanh(gates[1] / self.cap)


class MLSTMLayer(ScanLayer):
    """`transformers` `xLSTMLayer` (weights single or fused), and `mLSTMCell` of the xlstm package."""

    family: ClassVar[str] = "mLSTM (xLSTM)"
    packages: ClassVar[str] = "transformers; xlstm"
    tested: ClassVar[str] = "transformers 5.22.2; xlstm by a stand-in with its weights"
    axes: ClassVar[tuple[str, ...]] = ("head",)
    limits: ClassVar[str] = "input gates below 60 in float32; no start from a cached state"

    cell: MLSTMCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        direct = has(module, "igate", "fgate")
        if direct:
            names, config = ["igate.weight", "igate.bias", "fgate.weight", "fgate.bias"], module.config
            sizes = (config.num_heads, config.embedding_dim, config.embedding_dim, None)
        else:
            fused = has(module, "qkv_opreact")
            gates = ["ifgate_preact"] if fused else ["igate_preact", "fgate_preact"]
            inputs = ["qkv_opreact"] if fused else ["k", "v"]
            names = [f"{n}.weight" for n in inputs] + [f"{n}.{part}" for n in gates for part in ("weight", "bias")]
            names += present(module, *(f"{n}.bias" for n in inputs))
            sizes = (module.config.num_heads, module.qk_dim, module.v_dim, module.config.gate_soft_cap)
        self.cell = MLSTMCell(sizes_of(named_weights(module, names)), *sizes, direct)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Input and forget gates of heads, and a norm of heads."""
        whole = has(module, "multihead_norm", "mlstm_backend") and (
            has(module, "qkv_opreact") or has(module, "q", "k", "v")
        )
        return whole or (has(module, "igate", "fgate", "outnorm", "config") and hasattr(module.config, "num_heads"))

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per head."""
        return (self.cell.heads,)

    @property
    def state_size(self) -> int:
        """A matrix and a normaliser per head."""
        return self.cell.key_size * (self.cell.value_size // self.cell.heads + 1)

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Bias of the forget gate."""
        logits = torch.logit(torch.exp2(-1 / half_life))
        if self.cell.cap is not None:
            logits = self.cell.cap * torch.atanh((logits / self.cell.cap).clamp(-1, 1))
        if has(self.module, "ifgate_preact"):
            layer: Any = self.module
            return {
                "ifgate_preact.bias": torch.cat((layer.ifgate_preact.bias.detach()[: len(logits)].to(logits), logits))
            }
        return {"fgate.bias" if self.cell.direct else "fgate_preact.bias": logits}

    def read_call(self, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(x, state)``, or ``forward(q, k, v)`` of the cell."""
        if self.cell.direct:
            tensors = [*args, *(kwargs[n] for n in ("q", "k", "v") if n in kwargs)]
            x = torch.cat(tensors[:3], dim=-1)
        else:
            x = args[0] if args else kwargs["x"]
        weights = self.weights()
        take, forget = self.cell.gates_of(x, weights)
        largest = take.max().item()
        if largest > LARGEST_GATE.get(x.dtype, 10.0):
            raise UnsupportedError(
                "the input gates are too large to be exponentiated without rescaling",
                got=f"{largest:.3g} in {x.dtype}",
                fix="convert the model to double precision",
            )
        kept = logsigmoid(forget).cumsum(1)
        highest = kept + torch.cummax(take - kept, dim=1).values  # what the layer divides by, in log space
        if not self.cell.direct:  # this one starts from a maximum of zero
            highest = torch.maximum(highest, kept)
        initial = x.new_zeros(len(x), self.state_size)
        return ScanInputs(x, initial, valid_steps_of(x), context={"highest": highest})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Read the matrix by the query, divide by the normaliser, then norm, gate and projection."""
        module: Any = self.module
        cell, x = self.cell, scan_inputs.x
        q = cell.read(x, self.weights())[0]
        if has(module, "q"):
            q = module.q(x).unflatten(-1, (cell.heads, -1))
        memory = states.unflatten(-1, (cell.heads, cell.key_size // cell.heads, -1))
        read = (q[..., None] * memory).sum(-2)
        eps = 1e-6 if cell.direct else module.config.eps
        size = torch.maximum(read[..., -1:].abs(), torch.ones_like(read[..., -1:]))
        h = read[..., :-1] / (size + eps * torch.exp(scan_inputs.context["highest"])[..., None])
        if cell.direct:
            return module.outnorm(h.transpose(1, 2)).transpose(1, 2).flatten(-2)
        normed = module.multihead_norm(h).reshape(*h.shape[:2], -1)
        gate = module.ogate_preact(x) if has(module, "ogate_preact") else module.qkv_opreact(x)[..., -cell.value_size :]
        return module.out_proj(module.ogate_act_fn(gate) * normed)

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The layer hands back its last state as well, divided by the running maximum."""
        if self.cell.direct:
            return output
        cell = self.cell
        last = states[:, -1].unflatten(-1, (cell.heads, cell.key_size // cell.heads, -1))
        scaled = last * math.sqrt(cell.key_size // cell.heads)  # the layer scales the query instead of the key
        none = torch.zeros(len(states), cell.heads, 1, dtype=states.dtype, device=states.device)
        return output, (scaled[..., :-1], scaled[..., -1], none)
