"""Gated linear recurrences as cells: ``s' = a(x) s + b(x)``, whose decay depends on the input but not on the state.

Mamba, RG-LRU, minGRU, RWKV, gated linear attention and their relatives are all of this kind. The Jacobian of a step is
the decay itself, so transport over a lag is a product of decays, and first order is exact.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, pad

from lagreach.cells import Cell, Factors, Params
from lagreach.errors import UnsupportedError


class AffineStep(NamedTuple):
    """What one step does: how much is kept, in log space (-inf forgets everything), and what is added.

    A decay may rule several units that lie side by side: the state has a multiple of the decay's width. `phase` is the
    angle by which a complex unit turns; its real and imaginary part then lie side by side.
    """

    log_decay: Float[Tensor, "*batch decay"]
    value: Float[Tensor, "*batch unit"]
    phase: Float[Tensor, "*batch decay"] | None = None


@dataclass(frozen=True)
class ScanCell(Cell):
    """``s' = exp(log_decay(x)) s + value(x)``.

    sizes : names and shapes of the weights that a step uses, as the user's module calls them
    reads : which of them read the layer's input
    diagonal : whether the decay is the whole Jacobian, up to a turn of complex units
    """

    name: ClassVar[str] = "gated_linear"
    equations: ClassVar[str] = "a gated linear recurrence; its first order is exact"
    gate_names: ClassVar[tuple[str, ...]] = ("decay",)
    first_order: ClassVar[str] = "exact"
    reads: ClassVar[tuple[str, ...]] = ()
    diagonal: ClassVar[bool] = True

    sizes: tuple[tuple[str, tuple[int, ...]], ...]

    @abstractmethod
    def write(self, x: Float[Tensor, "*batch input"], params: Params) -> AffineStep:
        """Decay and addition of a step, from its input alone; all leading axes are independent."""

    def shapes(self, input_size: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the module's weights; the sizes are theirs."""
        return dict(self.sizes)

    def role(self, name: str) -> str:
        """Weights that read the input are "input"; what else there is sets decays."""
        last = name.rpartition(".")[2]
        return "input" if name in self.reads else "bias" if last.endswith("bias") else "other"

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Decay the state and add to it."""
        keep, add = self.affine(x, params)
        return keep * s + add

    def affine(self, x: Tensor, params: Params) -> tuple[Tensor, Tensor]:
        """Return what a step multiplies every unit by and what it adds to it; neither depends on the state."""
        written = self.write(x, params)
        return for_every_unit(torch.exp(written.log_decay), written), written.value

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """Return the decay of every unit."""
        return {"decay": self.retention(x, s, params)}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Decay of every unit: the whole diagonal of the Jacobian."""
        written = self.write(x, params)
        return for_every_unit(torch.exp(written.log_decay), written)

    def correction(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Zero: there is nothing beside the decay."""
        return torch.zeros_like(s)


@dataclass(frozen=True)
class ComplexScanCell(ScanCell):
    """A gated linear recurrence with complex units: each decays and turns, ``z' = exp(log_decay + i phase) z + b``.

    The state holds real and imaginary parts side by side, so exact transport needs nothing special. First-order rates
    are real numbers per unit and would lose the phase: they are refused.
    """

    equations: ClassVar[str] = "a complex gated linear recurrence"
    gate_names: ClassVar[tuple[str, ...]] = ()
    first_order: ClassVar[str] = "approximate"
    affine = None  # type: ignore[assignment]  # units turn as well

    def step(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Turn and decay every unit and add to it."""
        written = self.write(x, params)
        assert written.phase is not None
        re, im = s.unflatten(-1, (-1, 2)).unbind(-1)
        size = torch.exp(written.log_decay)
        cos, sin = size * torch.cos(written.phase), size * torch.sin(written.phase)
        return torch.stack((cos * re - sin * im, sin * re + cos * im), dim=-1).flatten(-2) + written.value

    def gates(self, x: Tensor, s: Tensor, params: Params) -> dict[str, Tensor]:
        """No real gates."""
        return {}

    def retention(self, x: Tensor, s: Tensor, params: Params) -> Tensor:
        """Size of every unit's factor, for its real and its imaginary part."""
        return torch.exp(self.write(x, params).log_decay).repeat_interleave(2, dim=-1)

    def factors(self, x: Tensor, s: Tensor, params: Params) -> Factors:
        """Refuse: a rate per real coordinate has no meaning for units that turn."""
        raise UnsupportedError(
            "first-order rates have no meaning for a complex state, whose units turn as they decay",
            fix="use the exact gain, or lagreach.retention, which keeps size and phase apart",
        )


def copies(written: AffineStep) -> int:
    """Units per decay."""
    return written.value.shape[-1] // written.log_decay.shape[-1]


def for_every_unit(of_decays: Tensor, written: AffineStep) -> Tensor:
    """Values of decays, repeated for the units that each of them rules."""
    many = copies(written)
    return of_decays if many == 1 else of_decays.repeat_interleave(many, dim=-1)


def sizes_of(params: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of weights in the form that cells keep."""
    return tuple((name, tuple(weight.shape)) for name, weight in params.items())


def recent_inputs(x: Float[Tensor, "seq time input"], width: int) -> Float[Tensor, "seq time taps"]:
    """Give every step the inputs that a causal convolution of this width sees, oldest first, side by side.

    >>> recent_inputs(torch.arange(1.0, 4.0)[None, :, None], 2)
    tensor([[[0., 1.],
             [1., 2.],
             [2., 3.]]])
    """
    return pad(x, (0, 0, width - 1, 0)).unfold(1, width, 1).transpose(-1, -2).flatten(-2)


def age(x: Float[Tensor, "seq time input"], width: int) -> Float[Tensor, "seq time 1"]:
    """Return how many steps lie before each one, up to the reach of a convolution of this width."""
    steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype).clamp(max=width - 1)
    return steps[None, :, None].expand(len(x), -1, 1)


def projected_convolution(
    taps: Float[Tensor, "*batch tap input"],
    project: tuple[Tensor, Tensor | None],
    convolve: tuple[Tensor, Tensor | None],
    steps_before: Float[Tensor, "*batch 1"] | None = None,
) -> Float[Tensor, "*batch channel"]:
    """Project the recent inputs and convolve them channel by channel, as a step that sees a window.

    Layers pad after the projection, so where the projection has a bias, taps before the start of a sequence must be
    silenced: `steps_before` says how many exist.
    """
    inner = linear(taps, *project)
    if steps_before is not None:
        back = torch.arange(taps.shape[-2] - 1, -1, -1, device=taps.device, dtype=taps.dtype)
        inner = torch.where((back <= steps_before + 0.5)[..., None], inner, 0.0)
    weight, bias = convolve
    convolved = (inner * weight.squeeze(1).transpose(0, 1)).sum(-2)
    return convolved if bias is None else convolved + bias
