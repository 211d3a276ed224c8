"""Coordinates of the output in which a loss is a plain square, and the directions in which dependencies are planted.

The squared error is one already. Cross-entropy is one near the model's own probabilities p (Gauss-Newton): a change v of the
logits costs ``v' (diag(p) - p p') v = |A v|^2`` with ``A v = sqrt(p) (v - p.v)``, and the target pulls with
``(y - p) / sqrt(p)``. Of very many outputs a few random directions are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach._util.same_rows import by_row
from lagreach.errors import UnsupportedError
from lagreach.transport.losses import Loss
from lagreach.transport.objective import Objective

RAREST = 1e-6  # a class less probable than this counts as if it were this probable


@dataclass(frozen=True)
class OutputSpace:
    """`basis` (out, row) are the directions looked at, `direction` (group, out) those of the probes, among them."""

    loss: str
    basis: Float[Tensor, "out row"]
    direction: Float[Tensor, "group out"]
    group: tuple[int, ...]

    @property
    def copies(self) -> Float[Tensor, "probe row"]:
        """Coordinates of each probe's output direction."""
        return self.direction[list(self.group)] @ self.basis

    def rows(self, change: Float[Tensor, "*more seq target out"], output: Float[Tensor, "seq target out"]) -> Tensor:
        """Coordinates of a change of the output: (..., seq, target, row)."""
        if self.loss == "mse":
            return change @ self.basis.to(change)
        p = output.softmax(-1)
        return (p.sqrt() * (change - (p * change).sum(-1, keepdim=True))) @ self.basis.to(change)

    def residual(self, output: Tensor, apart: Tensor) -> Float[Tensor, "seq target row"]:
        """What the target pulls with, in these coordinates; `apart` comes from `apart`."""
        if self.loss == "cross_entropy":
            apart = apart / output.softmax(-1).clamp(min=RAREST).sqrt()
        return _turned(apart, self.basis)

    def towards(self, output: Float[Tensor, "seq target out"]) -> Float[Tensor, "seq target row group"]:
        """Coordinates of the probes' output directions."""
        along = self.direction.to(output)[:, None, None].expand(-1, *output.shape)
        return self.rows(along, output).movedim(0, -1)

    def curvature_root(self, output: Float[Tensor, "seq target out"]) -> Float[Tensor, "seq target 1 1"]:
        """Root of the mean curvature over outputs: how much a step counts for a readout."""
        if self.loss == "mse":
            return output.new_ones(1).expand(*output.shape[:2], 1, 1)
        p = output.softmax(-1)
        mean = (1 - p.square().sum(-1)) / output.shape[-1]
        return mean.clamp(min=RAREST / output.shape[-1]).sqrt()[..., None, None]

    def readout_residual(self, output: Tensor, apart: Tensor) -> Float[Tensor, "seq target row"]:
        """Target minus output over the root of the mean curvature."""
        turned = _turned(apart, self.basis)
        return turned if self.loss == "mse" else turned / self.curvature_root(output)[..., 0]

    def along(self, output: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
        """Target minus output, and the output, along the planted directions: (seq, target, group)."""
        shown = output if self.loss == "mse" else output.softmax(-1)
        return _turned(apart, self.direction.T), _turned(shown, self.direction.T)

    def apart(self, output: Tensor, objective: Objective) -> Float[Tensor, "seq target out"]:
        """Target minus output; for classes, minus the probabilities. Zero where a target does not count."""
        if self.loss == "mse":
            apart = objective.y - output
        else:
            classes = objective.y.clamp(min=0)
            apart = torch.nn.functional.one_hot(classes, output.shape[-1]).to(output) - output.softmax(-1)
        counts = by_row(lambda weights: weights[..., None] > 0, objective.weights)
        every = counts.device.type == "cpu" and bool(counts.all())  # a GPU would be waited for
        return apart if every else torch.where(counts, apart, 0.0)


def _turned(
    values: Float[Tensor, "seq target out"], matrix: Float[Tensor, "out row"]
) -> Float[Tensor, "seq target row"]:
    """Values in other coordinates; a single output is its own."""
    return values if matrix.shape == (1, 1) and float(matrix) == 1 else values @ matrix.to(values)


def output_space(loss: Loss, outputs: int, most: int, probes: int, generator: torch.Generator) -> OutputSpace:
    """All outputs as they are, or `most` random directions; two of them are planted in turn.

    >>> output_space("mse", 1, 8, 4, torch.Generator()).direction
    tensor([[1.]], dtype=torch.float64)
    """
    if loss not in ("mse", "cross_entropy"):
        raise UnsupportedError(
            "a forecast knows the curvature of two losses",
            got=loss if isinstance(loss, str) else getattr(loss, "__name__", "a function"),
            expected='"mse" or "cross_entropy"',
            fix='pass the one that is nearer to yours; of two classes, give the model two outputs and pass loss="cross_entropy" '
            "with y.long(). lagreach.diagnose takes functions",
        )
    if most < outputs:
        draws = torch.randn(outputs, most, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(draws - draws.mean(0) if loss == "cross_entropy" else draws).Q
    else:
        basis = torch.eye(outputs, dtype=torch.float64)
    groups = min(2, basis.shape[1], probes)
    draws = torch.randn(basis.shape[1], groups, generator=generator, dtype=torch.float64)
    direction = basis @ torch.linalg.qr(draws).Q
    if loss == "cross_entropy":  # a constant added to all logits changes nothing
        direction = direction - direction.mean(0)
    direction = direction / direction.norm(dim=0)
    signs = torch.sign(direction[0]) if outputs == 1 else torch.ones(groups)
    return OutputSpace(str(loss), basis, (direction * signs.double()).T, tuple(i % groups for i in range(probes)))
