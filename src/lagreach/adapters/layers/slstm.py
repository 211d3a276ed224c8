"""sLSTM, the scalar memory of xLSTM: its gates read its own output, so it is an ordinary recurrence, not a gated linear one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu

from lagreach.adapters.scan_cell import recent_inputs, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, named_weights, present, valid_steps_of
from lagreach.cells import Cell, Factors, Params
from lagreach.errors import UnsupportedError

KERNEL, BIAS = "slstm_cell._recurrent_kernel_", "slstm_cell._bias_"
# the layer hands what it calls its forget gate to the input gate of its cell, and the other way round
SOURCES = {"i": "fgate.weight", "f": "igate.weight", "z": "zgate.weight", "o": "ogate.weight"}


@dataclass(frozen=True)
class SLSTMCell(Cell):
    """``c' = f c + i tanh(z)``, ``n' = f n + i``, ``h' = o c' / n'`` with exponential gates, divided by a running maximum m.

    The state is (h, c, n, m), exactly as the layer keeps it. A step sees the inputs of its convolution.
    """

    name: ClassVar[str] = "slstm"
    equations: ClassVar[str] = "the sLSTM of xLSTM"
    gate_names: ClassVar[tuple[str, ...]] = ("f",)
    blocks: ClassVar[tuple[str, ...]] = ("h", "c", "n", "m")

    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    taps: int
    heads: int

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's weights; the sizes are theirs."""
        return dict(self.sizes)

    def role(self, name: str) -> str:
        """Four projections read the input, a kernel reads the last output."""
        return "input" if name in SOURCES.values() else "recurrent" if name == KERNEL else "other"

    def _raw(self, x: Tensor, h: Tensor, p: Params) -> tuple[Tensor, ...]:
        """Pre-activations of i, f, z and o."""
        width = h.shape[-1]
        now = x[..., -width:]
        if "conv1d.conv.weight" in p:
            taps = x.unflatten(-1, (self.taps, width))
            weight = p["conv1d.conv.weight"].squeeze(1).transpose(0, 1)
            convolved = silu((taps * weight).sum(-2) + p["conv1d.conv.bias"])
        else:
            convolved = now
        shown = h.unflatten(-1, (self.heads, 1, -1))
        back = (p[KERNEL].unflatten(1, (4, -1)) * shown[..., None, :]).sum(-1)  # (head, gate, unit)
        bias = p[BIAS].reshape(4, -1)
        gates = []
        for k, (gate, source) in enumerate(SOURCES.items()):
            seen = (convolved if gate in "if" else now).unflatten(-1, (self.heads, 1, -1))
            gates.append((p[source] * seen).sum(-1).flatten(-2) + back[..., k, :].flatten(-2) + bias[k])
        return tuple(gates)

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance all four blocks."""
        h, c, n, m = self.split(s)
        i, f, z, o = self._raw(x, h, params)
        kept = m + logsigmoid(f)
        top = torch.where(n == 0, i, torch.maximum(i, kept))  # before the first step there is nothing to compare with
        take, keep = torch.exp(i - top).clamp(max=1), torch.exp(kept - top).clamp(max=1)
        c, n = keep * c + take * torch.tanh(z), keep * n + take
        return torch.cat((torch.sigmoid(o) * c / n, c, n, top), dim=-1)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the forget gate."""
        return {"f": torch.sigmoid(self._raw(x, self.output(s), params)[1])}

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """Refuse: c and n are divided by a maximum that changes, so a rate per coordinate has no meaning."""
        raise UnsupportedError(
            "first-order rates have no meaning for a state that is rescaled at every step",
            fix="use the exact gain, which does not depend on the scale",
        )


class SLSTMLayer(ScanLayer):
    """`sLSTMLayer` of the xlstm package with its vanilla backend."""

    family: ClassVar[str] = "sLSTM (xLSTM)"
    packages: ClassVar[str] = "xlstm"
    tested: ClassVar[str] = "a stand-in with the weights of xlstm 2.0.6"
    axes: ClassVar[tuple[str, ...]] = ("unit",)
    limits: ClassVar[str] = (
        "vanilla backend; not linear: transport is exact, its forget gate is only one path; no first order"
    )

    cell: SLSTMCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        if has(module.slstm_cell, "config") and getattr(module.slstm_cell.config, "backend", "vanilla") != "vanilla":
            raise UnsupportedError(
                "the weights of this sLSTM are laid out for its CUDA backend", fix='build it with backend="vanilla"'
            )
        names = [*SOURCES.values(), KERNEL, BIAS, *present(module, "conv1d.conv.weight", "conv1d.conv.bias")]
        weights = named_weights(module, names)
        taps = weights["conv1d.conv.weight"].shape[-1] if "conv1d.conv.weight" in weights else 1
        self.cell = SLSTMCell(sizes_of(weights), taps, len(weights[KERNEL]))

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Four gates in front of a cell with a recurrent kernel."""
        return has(module, "slstm_cell", "fgate", "igate", "zgate", "ogate", "group_norm")

    @property
    def hidden_size(self) -> int:
        """Width of each of the four blocks."""
        kernel = dict(self.cell.sizes)[KERNEL]
        return kernel[0] * kernel[2]

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One forget gate per unit."""
        return (self.hidden_size,)

    @property
    def state_size(self) -> int:
        """h, c, n and m."""
        return 4 * self.hidden_size

    def read_call(self, x: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(x)``."""
        initial = x.new_zeros(len(x), self.state_size)
        return ScanInputs(recent_inputs(x, self.cell.taps), initial, valid_steps_of(x))

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Norm the heads."""
        module: Any = self.module
        heads = self.cell.output(states).unflatten(-1, (self.cell.heads, -1)).transpose(1, 2)
        return module.group_norm(heads).transpose(1, 2).flatten(-2)

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Refuse to make up a cache."""
        if kwargs.get("return_last_state"):
            raise UnsupportedError("a replayed sLSTM has no cache to hand back", fix="call the model without it")
        return output
