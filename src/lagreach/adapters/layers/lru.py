"""LRU and S5: linear recurrences with complex units, whose decay does not depend on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lagreach.adapters.scan_cell import AffineStep, ComplexScanCell, sizes_of
from lagreach.adapters.scan_layer import ScanInputs, ScanLayer, has, valid_steps_of
from lagreach.cells import Params
from lagreach.errors import UnsupportedError


def as_complex(p: Params, name: str) -> Tensor:
    """Return a complex weight, kept as pairs of real numbers or as two weights `_re` and `_im`."""
    if name in p:
        return torch.complex(p[name][..., 0], p[name][..., 1])
    return torch.complex(p[f"{name}_re"], p[f"{name}_im"])


def as_pairs(z: Tensor) -> Tensor:
    """Real and imaginary parts side by side on the last axis."""
    return torch.view_as_real(z).flatten(-2)


@dataclass(frozen=True)
class LRUCell(ComplexScanCell):
    """``z' = exp(-exp(nu) + i exp(theta)) z + exp(gamma) B x``."""

    name: ClassVar[str] = "lru"
    reads: ClassVar[tuple[str, ...]] = ("B", "B_re", "B_im")

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """Log size and phase of the eigenvalues, and the scaled input."""
        value = (x.to(as_complex(params, "B").dtype) @ as_complex(params, "B").T) * torch.exp(params["gamma_log"])
        shape = value.shape
        size, phase = -torch.exp(params["nu_log"]), torch.exp(params["theta_log"])
        return AffineStep(size.expand(shape), as_pairs(value), phase.expand(shape))


@dataclass(frozen=True)
class S5Cell(ComplexScanCell):
    """``z' = exp(Lambda dt) z + (exp(Lambda dt) - 1) / Lambda B x``: a continuous system held over a step."""

    name: ClassVar[str] = "s5"
    reads: ClassVar[tuple[str, ...]] = ("seq.B",)

    def write(self, x: Tensor, params: Params) -> AffineStep:
        """Log size and phase of the discretised eigenvalues, and the discretised input."""
        rate, step = as_complex(params, "seq.Lambda"), torch.exp(params["seq.log_step"]).reshape(-1)
        factor = torch.exp(rate * step)
        reading = ((factor - 1) / rate)[:, None] * as_complex(params, "seq.B")
        value = x.to(reading.dtype) @ reading.T
        log_factor = rate * step
        return AffineStep(log_factor.real.expand(value.shape), as_pairs(value), log_factor.imag.expand(value.shape))


class LRULayer(ScanLayer):
    """A module with `nu_log`, `theta_log`, `gamma_log`, complex `B` and `C` (or `_re`, `_im`), and `D`."""

    family: ClassVar[str] = "LRU"
    packages: ClassVar[str] = "modules of your own"
    tested: ClassVar[str] = "a reference layer"
    axes: ClassVar[tuple[str, ...]] = ("unit",)
    complex: ClassVar[bool] = True
    limits: ClassVar[str] = "exact gains and windows; first-order rates are refused, they would lose the phase"

    cell: LRUCell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        names = [n for n in ("nu_log", "theta_log", "gamma_log", "B", "B_re", "B_im") if has(module, n)]
        self._weights = names
        self.cell = LRUCell(sizes_of(self.weights()))

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """Eigenvalues by size and angle."""
        return has(module, "nu_log", "theta_log", "gamma_log") and (has(module, "B") or has(module, "B_re", "B_im"))

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One factor per complex unit."""
        return (dict(self.cell.sizes)["nu_log"][0],)

    @property
    def state_size(self) -> int:
        """Real and imaginary parts."""
        return 2 * self.decay_shape[0]

    def weights(self) -> dict[str, Tensor]:
        """Weights as real numbers; buffers count too, since gamma is often one."""
        tensors = dict(self.module.named_parameters(remove_duplicate=False)) | dict(
            self.module.named_buffers(remove_duplicate=False)
        )
        return {name: _real(tensors[name].detach()) for name in self._weights}

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Size of the eigenvalues, whatever the input; angles stay as they are."""
        return {"nu_log": torch.log(math.log(2) / half_life)}

    def read_call(self, x: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(x)``."""
        if x.ndim != 3:
            raise UnsupportedError(
                "a layer without a batch axis", got=f"input of shape {tuple(x.shape)}", expected="(seq, time, input)"
            )
        return ScanInputs(x, x.new_zeros(len(x), self.state_size), valid_steps_of(x), context={"inputs": x})

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """``Re(C z) + D x``."""
        layer: Any = self.module
        reading = layer.C.detach() if has(layer, "C") else torch.complex(layer.C_re.detach(), layer.C_im.detach())
        skip, x = layer.D.detach(), scan_inputs.context["inputs"]
        z = torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous())
        return (z @ reading.T).real + (x * skip if skip.ndim == 1 else x @ skip.T)


class S5Layer(ScanLayer):
    """`s5.S5` of s5-pytorch."""

    family: ClassVar[str] = "S5"
    packages: ClassVar[str] = "s5-pytorch"
    tested: ClassVar[str] = "s5-pytorch 0.2.1"
    axes: ClassVar[tuple[str, ...]] = ("unit",)
    complex: ClassVar[bool] = True
    limits: ClassVar[str] = "zero-order hold, steps of equal size, one direction; first-order rates are refused"

    cell: S5Cell

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        seq = module.seq
        unsupported = [name for name in ("liquid", "bidir") if getattr(seq, name, False)]
        if unsupported or seq.degree != 1 or not hasattr(seq, "B") or "zoh" not in seq.discretize.__name__:
            raise UnsupportedError(
                "only the plain S5 layer can be replayed",
                got=", ".join(unsupported) or f"degree {seq.degree}, {seq.discretize.__name__}",
                expected="not liquid, one direction, degree 1, zero-order hold, dense B",
            )
        self.cell = S5Cell(sizes_of(self.weights()))

    @classmethod
    def claims(cls, module: nn.Module) -> bool:
        """A wrapper around a diagonal system in continuous time."""
        inner = getattr(module, "seq", None)
        return isinstance(inner, nn.Module) and has(inner, "Lambda", "log_step", "C", "D")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """One factor per complex unit."""
        return (dict(self.cell.sizes)["seq.Lambda"][0],)

    @property
    def state_size(self) -> int:
        """Real and imaginary parts."""
        return 2 * self.decay_shape[0]

    def weights(self) -> dict[str, Tensor]:
        """Weights as real numbers."""
        tensors = dict(self.module.named_parameters(remove_duplicate=False))
        return {name: _real(tensors[name].detach()) for name in ("seq.Lambda", "seq.log_step", "seq.B")}

    def retaining(self, half_life: Tensor) -> dict[str, Tensor]:
        """Step size, whatever the input."""
        layer: Any = self.module
        step = torch.log(math.log(2) / (half_life * -layer.seq.Lambda.detach().real))
        return {"seq.log_step": step.reshape(layer.seq.log_step.shape)}

    def read_call(self, signal: Tensor, *args: Any, **kwargs: Any) -> ScanInputs:
        """Read ``forward(signal)``."""
        if (
            kwargs.get("state") is not None
            or kwargs.get("return_state")
            or kwargs.get("step_scale", 1.0) != 1.0
            or args
        ):
            raise UnsupportedError(
                "S5 can be replayed for steps of equal size and from a zero state only",
                fix="call the layer with its input alone",
            )
        return ScanInputs(signal, signal.new_zeros(len(signal), self.state_size), valid_steps_of(signal))

    def output(self, scan_inputs: ScanInputs, states: Tensor) -> Tensor:
        """``Re(C z) + D x``."""
        layer: Any = self.module
        z = torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous())
        return (z @ layer.seq.C.detach().T).real + scan_inputs.x * layer.seq.D.detach()


def _real(weight: Tensor) -> Tensor:
    return torch.view_as_real(weight) if weight.is_complex() else weight
