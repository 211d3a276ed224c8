"""What `lagreach.testing.check_adapter` checks, one function each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lagreach._util.generators import seeded
from lagreach.adapters import View
from lagreach.adapters.calling import Call
from lagreach.adapters.scan_cell import AffineStep, ScanCell
from lagreach.adapters.scan_view import ScanView
from lagreach.cells import unroll
from lagreach.data.batch import Batch
from lagreach.errors import ConformanceError
from lagreach.gradients.identity import sum_over_lags, through_steps
from lagreach.transport.carry import Carry, Steps
from lagreach.transport.linear_scan import decay_products, is_scan
from lagreach.transport.rollout import Rollout

TOLERANCE = 1e-10  # float64


@dataclass(frozen=True)
class AdapterCase:
    """A layer of a model on a batch, in double precision: rollout, decays, and random gradients at its states."""

    view: ScanView
    model: nn.Module
    batch: Batch
    part: Rollout
    written: AffineStep | None
    delta: Tensor

    @classmethod
    def of(cls, view: ScanView, model: nn.Module, batch: Batch, seed: int) -> AdapterCase:
        """Run the layer once; what follows does not depend on the precision of the model."""
        bound = view.bind(batch)
        recurrence = replace(bound.recurrence, params={n: p.double() for n, p in bound.recurrence.params.items()})
        x, initial = bound.x.double(), bound.recurrence.initial_state(bound.x).double()
        with torch.no_grad():
            states = unroll(recurrence.stack, x, initial, recurrence.params)
            cell, weights = view.layer.cell, recurrence.stack.layer_params(0, recurrence.params)
            written = cell.write(x, weights) if isinstance(cell, ScanCell) else None
        draw = torch.randn(states.shape, generator=seeded(seed), dtype=torch.float64)
        return cls(view, model, batch, Rollout(recurrence, x, initial, states), written, draw.to(states.device))

    @property
    def scan(self) -> tuple[ScanCell, AffineStep]:
        """The cell and the decays of a gated linear layer."""
        assert isinstance(self.view.layer.cell, ScanCell)
        assert self.written is not None
        return self.view.layer.cell, self.written

    def fail(self, problem: str, got: object, expected: object) -> ConformanceError:
        """Build the error for something that is wrong."""
        return ConformanceError(f"{self.view.layer.family} ({self.view.name}): {problem}", got=got, expected=expected)

    def compare(self, what: str, got: Tensor, expected: Tensor) -> None:
        """Raise unless two tensors agree, relative to the larger of one and the expected size."""
        if got.shape != expected.shape:
            raise self.fail(f"{what} has the wrong shape", tuple(got.shape), tuple(expected.shape))
        error = ((got - expected).abs() / expected.abs().clamp(min=1.0)).max().item()
        if not error <= TOLERANCE:  # also when it is NaN
            raise self.fail(f"{what} is wrong", f"an error of {error:.3g}", f"at most {TOLERANCE:g}")


def check_shapes(t: AdapterCase) -> None:
    """Check sizes against what the layer says of itself, and that nothing grows by itself."""
    layer, (seq, time), (_, written) = t.view.layer, t.part.x.shape[:2], t.scan
    if len(layer.axes) != len(layer.decay_shape):
        raise t.fail("every axis of the decay needs a name", layer.axes, layer.decay_shape)
    width = math.prod(layer.decay_shape)
    if tuple(written.log_decay.shape) != (seq, time, width):
        raise t.fail("decays have the wrong shape", tuple(written.log_decay.shape), (seq, time, width))
    if tuple(written.value.shape) != (seq, time, layer.state_size):
        raise t.fail("what is written has the wrong shape", tuple(written.value.shape), (seq, time, layer.state_size))
    if not bool((written.log_decay <= 0).all()):
        raise t.fail("a decay is larger than one", written.log_decay.max().item(), "log decays of at most zero")


def check_jacobian(t: AdapterCase) -> None:
    """Check that the derivative of a step by its state is the decay (turned, for complex units) and nothing else."""
    (cell, written), recurrence = t.scan, t.part.recurrence
    if not cell.diagonal:
        return  # the lengths of what is carried are checked instead
    jacobian = cell.jacobian(t.part.x, t.part.previous, recurrence.stack.layer_params(0, recurrence.params))
    size = torch.exp(written.log_decay)
    copies = written.value.shape[-1] // size.shape[-1]
    if written.phase is None:
        t.compare("the Jacobian of a step", jacobian, torch.diag_embed(size.repeat_interleave(copies, dim=-1)))
        return
    cos, sin = size * torch.cos(written.phase), size * torch.sin(written.phase)
    blocks = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)  # (seq, time, unit, 2, 2)
    units = blocks.shape[2]
    expected = torch.zeros(*blocks.shape[:2], units, 2, units, 2, dtype=torch.float64, device=blocks.device)
    index = torch.arange(units, device=blocks.device)
    expected[:, :, index, :, index] = blocks.permute(2, 0, 1, 3, 4)
    t.compare("the Jacobian of a step", jacobian, expected.flatten(2, 3).flatten(3, 4))


def check_products(t: AdapterCase) -> None:
    """Products of decays against gradients carried step by step.

    For complex units their sizes are compared. Where the Jacobian is not diagonal, products are an upper bound on what
    is carried by the units of each decay.
    """
    (cell, written), time = t.scan, t.part.x.shape[1]
    carry = Carry(Steps(t.part), t.delta)
    copies = written.value.shape[-1] // written.log_decay.shape[-1]
    for lag, logs in decay_products(written.log_decay, range(time)):
        carried = carry.cotangent().double()
        started = t.delta[:, lag:]
        if is_scan(cell):
            expected = torch.exp(logs).repeat_interleave(copies, dim=-1) * started
            t.compare(f"the product of decays over lag {lag}", carried, expected)
        else:
            after, before = (v.unflatten(-1, (-1, copies)).norm(dim=-1) for v in (carried, started))
            bound = torch.exp(logs) * before
            if not cell.diagonal:
                after = torch.maximum(after, bound)  # decays bound what is carried from above; less may arrive
            t.compare(f"the product of decays over lag {lag}", after, bound)
        if lag + 1 < time:
            carry.step()


def check_identity(t: AdapterCase) -> None:
    """Check that lag gradients add up to autograd's gradient of the weights through the scan."""
    expected = through_steps(t.part, t.delta)
    for name, total in sum_over_lags(t.part, t.delta).items():
        t.compare(f"the sum of the lag gradients of {name}", total, expected[name])


def check_batches(t: AdapterCase) -> None:
    """Check that a sequence's states do not depend on the others."""
    scan_inputs, recurrence = t.view.scan_inputs(t.batch.select(slice(0, 1))), t.part.recurrence
    with torch.no_grad():
        alone = unroll(recurrence.stack, scan_inputs.x.double(), scan_inputs.initial.double(), recurrence.params)
    error = ((alone - t.part.states[:1]).abs() / (1 + alone.abs())).max().item()
    if not error <= 1e-4:  # the model computes what the layer is given in its own precision
        raise t.fail("states depend on the other sequences of a batch", error, "at most 1e-4")


def check_traces(t: AdapterCase) -> None:
    """Check that nothing is left behind, also after an exception: hooks, forwards, modes, weights."""
    before = _traces(t.model)
    t.view.bind(t.batch)
    call: Call = t.view._call

    def interrupted(model: nn.Module, batch: Batch) -> object:
        call(model, batch)
        raise _InterruptedError

    t.view._call = interrupted
    try:
        t.view.bind(t.batch)
    except _InterruptedError:
        pass
    finally:
        t.view._call = call
    if _traces(t.model) != before:
        raise t.fail("the model is not as it was", "hooks, a forward, a mode or a weight changed", "no change")


class _InterruptedError(Exception):
    """Raised in the middle of a run."""


def _traces(model: nn.Module) -> list[object]:
    traces: list[object] = [(len(m._forward_hooks), vars(m).get("forward"), m.training) for m in model.modules()]
    return traces + [(name, p._version) for name, p in model.named_parameters()]


CHECKS: dict[str, Callable[[AdapterCase], None]] = {
    "shapes": check_shapes,
    "Jacobian": check_jacobian,
    "products": check_products,
    "identity": check_identity,
    "batches": check_batches,
    "traces": check_traces,
}
OF_DECAYS = ("shapes", "Jacobian", "products")  # what is checked of gated linear layers alone


def checks_of(view: ScanView) -> dict[str, Callable[[AdapterCase], None]]:
    """Return the checks that apply to a layer."""
    linear = isinstance(view.layer.cell, ScanCell)
    return {name: check for name, check in CHECKS.items() if linear or name not in OF_DECAYS}


def scan_views(views: list[View]) -> list[ScanView]:
    """Those of the views that adapters for gated linear layers made."""
    return [view for view in views if isinstance(view, ScanView)]
