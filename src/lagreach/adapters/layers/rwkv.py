"""RWKV, version 4: Hugging Face transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lagreach.adapters.scan_cell import AffineStep, ScanCell, recent_inputs, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, named_weights, valid_steps_of
from lagreach.cells import Params
from lagreach.errors import UnsupportedError

LARGEST_KEY = {torch.float32: 60.0, torch.float64: 600.0}  # what exp(key) and a few sums of it can hold


@dataclass(frozen=True)
class RWKVCell(ScanCell):
    """Numerator and denominator of the weighted mean, ``(n, d)' = exp(-exp(w)) (n, d) + exp(k) (v, 1)``.

    A step sees its own input and the one before. The decay belongs to the channel and does not depend on the input.
    """

    taps: ClassVar[int] = 2
    name: ClassVar[str] = "rwkv"
    reads: ClassVar[tuple[str, ...]] = ("key.weight", "value.weight")

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """``-exp(w)``, and ``exp(k) (v, 1)``."""
        key, value = self.key_and_value(x, params)
        size = torch.exp(key)
        log_decay = (-torch.exp(params["time_decay"])).expand_as(key)
        return AffineStep(log_decay, torch.stack((size * value, size), dim=-1).flatten(-2))

    def key_and_value(self, x: Tensor, p: Params) -> tuple[Tensor, Tensor]:
        """Projections of the input mixed with the one before."""
        before, now = x.chunk(2, dim=-1)
        mixed = [before + (now - before) * p[f"time_mix_{name}"].reshape(-1) for name in ("key", "value")]
        return linear(mixed[0], p["key.weight"]), linear(mixed[1], p["value.weight"])


class RWKVLayer(ScanLayer):
    """`transformers` `RwkvSelfAttention`."""

    family: ClassVar[str] = "RWKV-4"
    packages: ClassVar[str] = "transformers"
    tested: ClassVar[str] = "transformers 5.22.2"
    limits: ClassVar[str] = "keys below 60 in float32; RWKV-7 is not diagonal; no start from a cached state"

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        names = ["time_decay", "time_mix_key", "time_mix_value", "key.weight", "value.weight"]
        self.cell: RWKVCell = RWKVCell(sizes_of(named_weights(module, names)))

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Time mixing with a decay and a bonus."""
        return has(module, "time_decay", "time_first", "time_mix_key", "time_mix_value", "key", "value", "receptance")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One decay per channel."""
        return tuple(self._mixer.time_decay.shape)

    @property
    def state_size(self) -> int:
        """A numerator and a denominator per channel."""
        return 2 * self.decay_shape[0]

    @property
    def _mixer(self) -> Any:
        return self.module

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """The decay itself, whatever the input."""
        return {"time_decay": torch.log(math.log(2) / half_life)}

    def read_call(self, hidden: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(hidden, ...)``."""
        x = recent_inputs(hidden, 2)
        key, value = self.cell.key_and_value(x, self.weights())
        largest = key.abs().max().item()
        if largest > LARGEST_KEY.get(key.dtype, 10.0):
            raise UnsupportedError(
                "the keys are too large to be exponentiated without rescaling",
                got=f"{largest:.3g} in {key.dtype}",
                fix="convert the model to double precision",
            )
        context = {"key": key, "value": value, "inputs": x}
        return ScanInputs(x, hidden.new_zeros(len(hidden), self.state_size), valid_steps_of(hidden), context=context)

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """Weighted mean of the past and, with a bonus, of the present, gated and projected out."""
        module = self._mixer
        past = torch.cat((scan_inputs.initial[:, None].to(states), states[:, :-1]), dim=1)
        numerator, denominator = past.unflatten(-1, (-1, 2)).unbind(-1)
        bonus = torch.exp(scan_inputs.context["key"] + module.time_first.detach())
        mean = (numerator + bonus * scan_inputs.context["value"]) / (denominator + bonus)
        before, now = scan_inputs.context["inputs"].chunk(2, dim=-1)
        mixed = before + (now - before) * module.time_mix_receptance.detach().reshape(-1)
        return module.output(torch.sigmoid(module.receptance(mixed)) * mean.to(now.dtype))

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The caller's state comes second, as it was."""
        return output, kwargs.get("state", args[1] if len(args) > 1 else None)
