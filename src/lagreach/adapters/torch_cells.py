"""Cells whose weights are laid out as `torch.nn` lays them out: all gates stacked in one matrix.

They split the stacked weights and hand over to the package's own cells, so there is one place that knows an LSTM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lagreach.cells import Cell, Factors, Params
from lagreach.cells._pullback import Pullback, Use
from lagreach.cells.elman import Elman
from lagreach.cells.lstm import LSTM
from lagreach.cells.torch_gru import TorchGRU
from lagreach.errors import UnsupportedError

ROLES = {"weight_ih": "input", "weight_hh": "recurrent", "weight_hr": "recurrent", "bias_ih": "bias", "bias_hh": "bias"}


class TorchLayout(Cell):
    """Shared by the three: names, shapes and roles of the weights."""

    gate_count: ClassVar[int] = 1
    bias: bool

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Stacked weights and, with `bias`, two stacked biases."""
        rows = self.gate_count * hidden_size
        weights: dict[str, tuple[int, ...]] = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size)}
        return weights | ({"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {})

    def role(self, name: str) -> str:
        """What a weight does, by its name in torch."""
        return ROLES.get(name, "other")


def _stacked(params: Params, gates: str, names: tuple[str, str, str, str]) -> dict[str, Tensor]:
    """Cut stacked weights into those of each gate; a missing bias is zero."""
    zero = torch.zeros_like(params["weight_ih"][:, 0])
    stacks = (params["weight_ih"], params["weight_hh"], params.get("bias_ih", zero), params.get("bias_hh", zero))
    return {
        f"{kind}_{gate}": part
        for kind, stack in zip(names, stacks, strict=True)
        for gate, part in zip(gates, stack.chunk(len(gates)), strict=True)
    }


def _uses(inputs: tuple[slice, ...], hidden: tuple[slice, ...]) -> dict[str, Use]:
    """Uses of the stacked weights, given the columns of their gates in torch's order."""
    return {
        "weight_ih": Use(inputs, "x"),
        "bias_ih": Use(inputs, "1"),
        "weight_hh": Use(hidden, "h"),
        "bias_hh": Use(hidden, "1"),
    }


@dataclass(frozen=True)
class TorchLayoutRNN(TorchLayout):
    """`torch.nn.RNN`: tanh or relu."""

    name: ClassVar[str] = "torch.nn.RNN"
    first_order: ClassVar[str] = "vanishes"

    nonlinearity: str = "tanh"
    bias: bool = True

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        a = linear(x, params["weight_ih"], params.get("bias_ih")) + linear(
            s, params["weight_hh"], params.get("bias_hh")
        )
        return torch.tanh(a) if self.nonlinearity == "tanh" else torch.relu(a)

    def plain(self, params: Params) -> tuple[Cell, Params]:
        """Return an Elman network, if the nonlinearity is tanh."""
        if self.nonlinearity != "tanh":
            return self, params
        zero = torch.zeros_like(params["weight_ih"][:, 0])
        bias = params.get("bias_ih", zero) + params.get("bias_hh", zero)
        return Elman(), {"W_h": params["weight_ih"], "U_h": params["weight_hh"], "b_h": bias}

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """One product with the recurrent matrix."""
        after = self.step(x, s, params)
        return _RNNPullback(x, s, params, 1 - after * after if self.nonlinearity == "tanh" else (after > 0).to(s))


class _RNNPullback(Pullback):
    """Spread by the slope of the nonlinearity."""

    def __init__(self, x: Tensor, h: Tensor, p: Params, slope: Tensor) -> None:
        every = (slice(0, h.shape[1]),)
        super().__init__(
            {"x": x, "h": h}, _uses(every, every), width=h.shape[1], reads=p["weight_ih"], recurrent=p["weight_hh"]
        )
        self._slope = slope
        self.elementwise(slope)

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        torch.mul(cotangent, self._slope, out=out)


@dataclass(frozen=True)
class TorchLayoutGRU(TorchLayout):
    """`torch.nn.GRU`: r, z, n stacked; z retains."""

    name: ClassVar[str] = "torch.nn.GRU"
    gate_names: ClassVar[tuple[str, ...]] = TorchGRU.gate_names
    gate_count: ClassVar[int] = 3

    bias: bool = True

    @staticmethod
    def _by_gate(params: Params) -> dict[str, Tensor]:
        p = _stacked(params, "rzn", ("W", "U", "b", "c"))
        return p | {"b_r": p["b_r"] + p["c_r"], "b_z": p["b_z"] + p["c_z"]}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance h by one step."""
        return TorchGRU().step(x, s, self._by_gate(params))

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the reset gate r and the retention gate z."""
        return TorchGRU().gates(x, s, self._by_gate(params))

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """``z_t``."""
        return TorchGRU().retention(x, s, self._by_gate(params))

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """See `TorchGRU.correction`."""
        return TorchGRU().correction(x, s, self._by_gate(params))

    def plain(self, params: Params) -> tuple[Cell, Params]:
        """Return a `TorchGRU`."""
        names = TorchGRU().shapes(1, 1)
        return TorchGRU(), {name: p for name, p in self._by_gate(params).items() if name in names}

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback:
        """See `TorchGRU.pullback`."""
        pullback = TorchGRU().pullback(x, s, self._by_gate(params))
        n, z, r, weakened = (slice(k * s.shape[1], (k + 1) * s.shape[1]) for k in range(4))
        pullback.uses = _uses((r, z, n), (r, z, weakened))
        return pullback


@dataclass(frozen=True)
class TorchLayoutLSTM(TorchLayout):
    """`torch.nn.LSTM`: i, f, g, o stacked; with `proj_size`, h is a projection of ``o tanh(c)``."""

    name: ClassVar[str] = "torch.nn.LSTM"
    gate_names: ClassVar[tuple[str, ...]] = LSTM.gate_names
    blocks: ClassVar[tuple[str, ...]] = LSTM.blocks
    rate_block: ClassVar[str] = LSTM.rate_block
    gate_count: ClassVar[int] = 4

    bias: bool = True
    proj_size: int = 0

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Stacked weights; the projection, if there is one."""
        shapes = super().shapes(input_size, hidden_size)
        if self.proj_size:
            shapes["weight_hh"] = (4 * hidden_size, self.proj_size)
            shapes["weight_hr"] = (self.proj_size, hidden_size)
        return shapes

    def state_size(self, hidden_size: int) -> int:
        """[h; c], where h may be narrower."""
        return (self.proj_size or hidden_size) + hidden_size

    def split(self, s: Tensor) -> tuple[Tensor, ...]:
        """Return h and c."""
        if not self.proj_size:
            return s.chunk(2, dim=-1)
        return s.split([self.proj_size, s.shape[-1] - self.proj_size], dim=-1)

    @staticmethod
    def _by_gate(params: Params) -> dict[str, Tensor]:
        p = _stacked(params, "ifgo", ("W", "U", "b", "c"))
        return p | {f"b_{gate}": p[f"b_{gate}"] + p[f"c_{gate}"] for gate in "ifgo"}

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Advance [h; c] by one step."""
        if not self.proj_size:
            return LSTM().step(x, s, self._by_gate(params))
        h, c = self.split(s)
        v = LSTM().advance(x, h, c, self._by_gate(params))
        shown = linear(v.o * torch.tanh(v.c_after), params["weight_hr"])
        return torch.cat((shown, v.c_after), dim=-1)

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return input, forget and output gates."""
        h, c = self.split(s)
        v = LSTM().advance(x, h, c, self._by_gate(params))
        return {"i": v.i, "f": v.f, "o": v.o}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Forget gate in the block of c, zero in the block of h."""
        f = self.gates(x, s, params)["f"]
        return torch.cat((torch.zeros_like(self.split(s)[0]), f), dim=-1)

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """See `LSTM.factors`; a projected h has no units that match those of c."""
        if self.proj_size:
            raise UnsupportedError(
                "first-order rates lead from a unit of c to the same unit of h, and a projection has no such units",
                got=f"proj_size={self.proj_size}",
                fix="use the exact gain, which needs no such match",
            )
        return LSTM().factors(x, s, self._by_gate(params))

    def plain(self, params: Params) -> tuple[Cell, Params]:
        """Return an `LSTM`, if there is no projection."""
        if self.proj_size:
            return self, params
        names = LSTM().shapes(1, 1)
        return LSTM(), {name: p for name, p in self._by_gate(params).items() if name in names}

    def pullback(self, x: Tensor, s: Tensor, params: Params) -> Pullback | None:
        """See `LSTM.pullback`; a projected LSTM is left to autodiff."""
        if self.proj_size:
            return None
        pullback = LSTM().pullback(x, s, self._by_gate(params))
        gates = (slice(4 * (s.shape[1] // 2)),)
        pullback.uses = _uses(gates, gates)
        return pullback


def cell_of(module: nn.RNNBase | nn.RNNCellBase) -> TorchLayout:
    """Return the cell that a torch module computes."""
    bias = bool(module.bias)
    if isinstance(module, nn.LSTM):
        return TorchLayoutLSTM(bias=bias, proj_size=module.proj_size)
    if isinstance(module, nn.LSTMCell):
        return TorchLayoutLSTM(bias=bias)
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return TorchLayoutGRU(bias=bias)
    return TorchLayoutRNN(nonlinearity=str(module.nonlinearity), bias=bias)
