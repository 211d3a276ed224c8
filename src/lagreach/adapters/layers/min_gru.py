"""minGRU and minLSTM, which users mostly write themselves: known by their projections, checked by a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, softplus

from lagreach.adapters.scan_cell import AffineStep, ScanCell, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, named_weights, present, valid_steps_of
from lagreach.cells import Cell, Params
from lagreach.errors import UnsupportedError


def positive(x: Tensor) -> Tensor:
    """Candidate of the log-space versions: ``x + 1/2`` above zero, a sigmoid below."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def plain(x: Tensor) -> Tensor:
    """Candidate of the plain versions: nothing is done to it."""
    return x


CANDIDATES: tuple[Callable[[Tensor], Tensor], ...] = (positive, plain, torch.tanh)


@dataclass(frozen=True)
class MinGRUCell(ScanCell):
    """``s' = (1 - z) s + z g(W_h x)`` with ``z = sigmoid(W_z x)``."""

    name: ClassVar[str] = "min_gru"
    reads: ClassVar[tuple[str, ...]] = ("to_hidden_and_gate.weight", "linear_h.weight", "linear_z.weight")

    candidate: Callable[[Tensor], Tensor] = positive

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """``log(1 - z)`` and ``z g``."""
        hidden, gate = _projections(x, params, "to_hidden_and_gate", ("linear_h", "linear_z"))
        return AffineStep(-softplus(gate), torch.sigmoid(gate) * self.candidate(hidden))


@dataclass(frozen=True)
class MinLSTMCell(ScanCell):
    """``s' = f s + i g(W_h x)`` with f and i normalised to add up to one."""

    name: ClassVar[str] = "min_lstm"
    reads: ClassVar[tuple[str, ...]] = (
        "to_hidden_and_f_i_gate.weight",
        *(f"linear_{kind}.weight" for kind in "hfi"),
    )

    candidate: Callable[[Tensor], Tensor] = positive

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """``log f/(f+i)`` and ``i/(f+i) g``."""
        projections = _projections(x, params, "to_hidden_and_f_i_gate", ("linear_h", "linear_f", "linear_i"))
        hidden, forget, take = projections
        apart = logsigmoid(forget) - logsigmoid(take)
        return AffineStep(logsigmoid(apart), torch.sigmoid(-apart) * self.candidate(hidden))


def _projections(x: Tensor, p: Params, joint: str, single: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Pre-activations, from one projection for all of them or from one each."""
    if f"{joint}.weight" in p:
        return linear(x, p[f"{joint}.weight"], p.get(f"{joint}.bias")).chunk(len(single), dim=-1)
    return tuple(linear(x, p[f"{name}.weight"], p.get(f"{name}.bias")) for name in single)


class MinGRULayer(ScanLayer):
    """A module with `to_hidden_and_gate`, or with `linear_h` and `linear_z`, and perhaps `to_out`."""

    family: ClassVar[str] = "minGRU"
    packages: ClassVar[str] = "minGRU-pytorch, modules of your own"
    tested: ClassVar[str] = "minGRU-pytorch 0.2.1, and the version of its paper"
    limits: ClassVar[str] = "candidates g, identity or tanh; other names need an adapter of your own"

    joint: ClassVar[str] = "to_hidden_and_gate"
    single: ClassVar[tuple[str, ...]] = ("linear_h", "linear_z")
    cell: ScanCell
    kind: ClassVar[type[MinGRUCell] | type[MinLSTMCell]] = MinGRUCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        used = (self.joint,) if has(module, self.joint) else self.single
        names = [f"{name}.weight" for name in used] + present(module, *(f"{name}.bias" for name in used))
        self._sizes = sizes_of(named_weights(module, names))
        rows = sum(shape[0] for name, shape in self._sizes if name.endswith("weight"))
        self._hidden = rows // len(self.single)
        self.cell = self.kind(self._sizes)

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """The projections, and nothing recurrent."""
        if isinstance(module, nn.RNNBase):
            return False
        return has(module, cls.joint) or (has(module, *cls.single) and not has(module, "linear_o"))

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per unit."""
        return (self._hidden,)

    @property
    def state_size(self) -> int:
        """As many units as decays."""
        return self._hidden

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Biases of the gates; a layer without biases has nothing to set."""
        wanted = torch.logit(torch.exp2(-1 / half_life))
        return self._gate_biases(wanted)

    def _gate_biases(self, wanted: Tensor) -> dict[str, Tensor]:
        """Values whose decays have these logits, when the input is zero."""
        return self._biases((None, -wanted))

    def _biases(self, values: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
        """Put values for the candidate and the gates where this layer keeps them; None leaves what is there."""
        weights = dict(self.module.named_parameters(remove_duplicate=False))
        joint = weights.get(f"{self.joint}.bias")
        if joint is not None:
            parts = joint.detach().chunk(len(self.single))
            pairs = zip(parts, values, strict=True)
            return {f"{self.joint}.bias": torch.cat([old if new is None else new.to(old) for old, new in pairs])}
        biases = {f"{name}.bias": v for name, v in zip(self.single, values, strict=True) if v is not None}
        if any(name not in weights for name in biases):
            raise UnsupportedError(
                f"{self.family} has no biases that could set its decays", fix="build its projections with bias=True"
            )
        return biases

    def read_call(self, x: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(x, previous)``; the previous state may have a time axis of one."""
        previous = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        initial = x.new_zeros(len(x), self._hidden) if previous is None else previous.reshape(len(x), self._hidden)
        return ScanInputs(x, initial.detach(), valid_steps_of(x))

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Project the states, if the layer does."""
        out = getattr(self.module, "to_out", None)
        return states if out is None else out(states)

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Add the last state if it was asked for."""
        final = kwargs.get("return_next_prev_hidden", any(a is True for a in args))
        return (output, states[:, -1:]) if final else output

    def variants(self) -> Sequence[Cell]:
        """Weights do not show what is done to the candidate."""
        return [self.kind(self._sizes, candidate) for candidate in CANDIDATES]


class MinLSTMLayer(MinGRULayer):
    """A module with `to_hidden_and_f_i_gate`, or with `linear_h`, `linear_f` and `linear_i`, and perhaps `to_out`."""

    family: ClassVar[str] = "minLSTM"
    joint: ClassVar[str] = "to_hidden_and_f_i_gate"
    single: ClassVar[tuple[str, ...]] = ("linear_h", "linear_f", "linear_i")
    kind: ClassVar[type[MinGRUCell] | type[MinLSTMCell]] = MinLSTMCell

    def _gate_biases(self, wanted: Tensor) -> dict[str, Tensor]:
        """A forget gate at one half, and an input gate that leaves it the wanted share."""
        decay = torch.sigmoid(wanted)
        return self._biases((None, torch.zeros_like(decay), torch.logit((1 - decay) / decay / 2)))
