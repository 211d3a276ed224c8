"""The protocol of an adapter for gated linear layers: replay a layer from its input and its weights.

Fused kernels hide what happens inside a layer, but its input and its weights are always visible. So an adapter says
three things: which inputs its cell sees (`read_call`), what the cell does with them (`cell`), and how the layer's output
follows from the states (`output`). No adapter imports the package it is for: layers are known by their structure, and a
replay on the first batch must reproduce what the model computes.

To support a layer of your own, write a subclass and hand it to `register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lagreach._moved import warn_renamed
from lagreach.adapters.scan_cell import ScanCell
from lagreach.cells import Cell
from lagreach.errors import InputError, UnsupportedError

OLD_METHODS = {"open": "read_call", "close": "output", "answer": "returned"}


@dataclass(frozen=True)
class ScanInputs:
    """What a layer was given, as its cell sees it.

    `initial` is the state before the first step, `valid` says which steps count (padding does not), `reset` where a new
    document begins. `context` is whatever `output` needs besides the states.
    """

    x: Float[Tensor, "seq time input"]
    initial: Float[Tensor, "seq unit"]
    valid: Bool[Tensor, "seq time"]
    reset: Bool[Tensor, "seq time"] | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


class ScanLayer(ABC):
    """One gated linear layer of a user's model.

    family, packages : what users call it, and where such layers come from
    tested : package and version the adapter is tested with
    axes : names of the decay's axes behind (seq, time)
    complex : whether units turn as they decay
    limits : what is not supported, for the table in the documentation
    """

    family: ClassVar[str]
    packages: ClassVar[str]
    tested: ClassVar[str]
    axes: ClassVar[tuple[str, ...]] = ("channel",)
    complex: ClassVar[bool] = False
    limits: ClassVar[str] = ""

    cell: Cell

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __init_subclass__(cls, **options: Any) -> None:
        """Let adapters be written with the names that methods had before."""
        super().__init_subclass__(**options)
        for old, new in OLD_METHODS.items():
            if old in vars(cls):
                warn_renamed(f"ScanLayer.{old}", f"ScanLayer.{new}", stacklevel=3)
                setattr(cls, new, vars(cls)[old])

    @classmethod
    @abstractmethod
    def claims(cls, module: nn.Module) -> bool:
        """Whether a module is such a layer, by its structure."""

    @property
    @abstractmethod
    def decay_shape(self) -> tuple[int, ...]:
        """Sizes of the decay's axes."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Number of (real) units."""

    @abstractmethod
    def read_call(self, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read the arguments of one call of the module."""

    @abstractmethod
    def output(self, scan_inputs: ScanInputs, states: Float[Tensor, "seq time unit"]) -> Float[Tensor, "seq time out"]:
        """Return the layer's output sequence when its scan has these states after each step."""

    def returned(self, output: Tensor, states: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the module returns to a caller with these arguments: by default the output sequence."""
        return output

    def retaining(self, half_life: Float[Tensor, "channel"]) -> dict[str, Tensor]:
        """Values for the weights that set the decay: at an input of zero, channel k keeps half for `half_life[k]` steps.

        A channel is an entry of the decay's first axis; with several decays in a channel, the slowest is meant.
        """
        raise UnsupportedError(
            f"lagreach knows no bias that sets the decays of {self.family}",
            fix="set its decays where the layer is built",
        )

    @property
    def hidden_size(self) -> int:
        """Width of a block of the state; gated linear layers have one block."""
        return self.state_size

    def variants(self) -> Sequence[Cell]:
        """Cells that such weights may belong to: the first whose replay gives the layer's output is taken."""
        return [self.cell]

    def weights(self) -> dict[str, Tensor]:
        """Weights that a step uses, by their names in the module; complex ones as pairs of real numbers."""
        return named_weights(self.module, list(self.cell.shapes(0, 0)))


def named_weights(module: nn.Module, names: list[str]) -> dict[str, Tensor]:
    """Detached parameters of a module, by name."""
    weights = dict(module.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in weights]
    if missing:
        raise UnsupportedError(
            f"some weights of {type(module).__name__} are computed, not stored",
            got=f"no parameter {', '.join(missing)}",
            fix="remove weight_norm, quantisation or other parametrisations before the diagnosis",
        )
    return {name: weights[name].detach() for name in names}


def present(module: nn.Module, *names: str) -> list[str]:
    """Those of the parameters that the module has: biases are often left out."""
    weights = dict(module.named_parameters(remove_duplicate=False))
    return [name for name in names if name in weights]


def inverse_softplus(value: Tensor) -> Tensor:
    """Return y with ``softplus(y) = value``.

    >>> inverse_softplus(torch.nn.functional.softplus(torch.tensor([-3.0, 2.0])))
    tensor([-3.,  2.])
    """
    return value + torch.log(-torch.expm1(-value))


def has(module: nn.Module, *names: str) -> bool:
    """Whether a module has all of these attributes."""
    return all(getattr(module, name, None) is not None for name in names)


def valid_steps_of(x: Float[Tensor, "seq time input"], mask: Any = None) -> Bool[Tensor, "seq time"]:
    """Which steps count, from a layer's mask (seq, time): all of them without one; masks of other shapes are refused."""
    if mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise UnsupportedError("a layer's mask must say which steps count", got=got, expected="(seq, time)")
    return (mask.to(x.device) != 0).expand(x.shape[:2])


_REGISTERED: list[type[ScanLayer]] = []


def register(layer: type[ScanLayer]) -> type[ScanLayer]:
    """Make an adapter of your own known; also usable as a decorator. Later ones are asked first."""
    if not (isinstance(layer, type) and issubclass(layer, ScanLayer)):
        raise InputError("an adapter is a subclass of ScanLayer", got=layer)
    if layer not in _REGISTERED:
        _REGISTERED.insert(0, layer)
    return layer


def registered() -> tuple[type[ScanLayer], ...]:
    """Return the adapters that were registered by `register`."""
    return tuple(_REGISTERED)


def is_scan(cell: Cell) -> bool:
    """Whether a cell's transport is a product of real decays."""
    return isinstance(cell, ScanCell) and cell.first_order == "exact"
