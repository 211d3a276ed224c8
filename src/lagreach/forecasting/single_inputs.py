"""Planted inputs that follow from each other: what each of them alone holds, of a whole sequence and up to an anchor.

What a network computes at t does not depend on inputs after t, so that its covariance with what an input alone holds is the
same whether these are known or not. Targets may be those very inputs (a series that is forecast): for them, what an input alone
holds beside all that came up to t is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lagreach.data.autoregression import MOST_STEPS, Autoregression, autoregression, steps_before
from lagreach.data.by_position import MOST_VALUES, ByPosition, better_by_position

TOGETHER = 64  # sequences whose products are summed at once: they stay in a processor's caches
FARTHEST = 256  # steps before that inputs may follow from: of long sequences a level is told from very many
LEAST = 1e-6  # part of a variance that counts as unpredictable at least
FOR_EACH = 2  # sequences for each of them

Planted = Float[Tensor, "seq time probe"]


@dataclass(frozen=True)
class SingleInputs:
    """What single inputs hold of some sequences that are zero where they are not `inside`.

    Of anchors farther and farther ahead, each is continued from the one before, which is kept in `last`: steps, and their sums.
    """

    model: Autoregression | ByPosition
    whitened: Float[Tensor, "seq time 1 direction"]
    inside: Bool[Tensor, "seq time"]
    probes: int  # the first directions, of which it is asked
    last: list[tuple[int, Tensor]] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(
        cls, model: Autoregression | ByPosition, values: Planted, inside: Bool[Tensor, "seq time"], probes: int
    ) -> SingleInputs:
        """Of inputs along all directions."""
        whitened = model.whitened(values.double()[:, :, None])
        return cls(model, torch.where(inside[..., None, None], whitened, 0.0), inside, probes)

    @property
    def order(self) -> int:
        """Lags from which it makes no difference where the anchor is."""
        return self.model.order

    def up_to(self, ahead: int | None = None) -> Planted:
        """``u = C^-1 z``, C being the covariance of all inputs, or of those no more than so many steps ahead."""
        ahead = self.order if ahead is None else ahead
        first, sums = self.last.pop() if self.last else (0, None)
        if first > ahead + 1:
            first, sums = 0, None
        sums = self.model.singled(self.whitened, ahead, sums, first)
        self.last.append((ahead + 1, sums))
        return torch.where(self.inside[..., None], sums[:, :, 0, : self.probes], 0.0)


class LaggedCovariances:
    """``E[z_t z_{t-k}']`` over the steps that have an input k steps before."""

    def __init__(self, probes: int, time: int) -> None:
        # far apart there are few pairs of steps: from as far as half a long sequence
        self._most = steps_before(time, probes, max(MOST_STEPS, min(FARTHEST, time // 2)))
        # zeros behind, so that the end does not meet the beginning
        self._length = 1 << (time + self._most - 1).bit_length()
        self._spectra = torch.zeros(self._length // 2 + 1, probes, probes, dtype=torch.complex128)
        self._steps = np.zeros(self._most + 1)

    def add(self, planted: Planted, inside: Bool[Tensor, "seq time"]) -> None:
        """Add sequences whose inputs are zero where they are not `inside`."""
        for some in planted.split(TOGETHER):
            spectra = torch.fft.rfft(some.permute(1, 2, 0).contiguous(), self._length, dim=0)
            self._spectra += spectra @ spectra.mH
        by_step = inside.sum(0).cpu().numpy()  # of sequences, which end rather than begin at different steps
        self._steps[: len(by_step)] += by_step[::-1].cumsum()[::-1][: len(self._steps)]

    def result(self) -> tuple[Float[np.ndarray, "h probe probe"], Float[np.ndarray, "h"]]:
        """Covariances, and of how many steps each."""
        known = int((self._steps > 0).sum())  # of short sequences there may be none so far apart
        products = torch.fft.irfft(self._spectra, self._length, dim=0).numpy()
        return products[:known] / self._steps[:known, None, None], self._steps[:known]

    def autoregression(self) -> Autoregression:
        """How each step follows from those before."""
        covariances, steps = self.result()
        return autoregression(covariances[:, None], steps, LEAST)


class WholeCovariance:
    """Covariance of all inputs of a sequence, which may change in its course; of sequences that are equally long."""

    def __init__(self, probes: int, time: int) -> None:
        self._probes, self._sequences = probes, 0
        self._sums = torch.zeros(time * probes, time * probes, dtype=torch.float64)

    @staticmethod
    def suits(sequences: int, time: int, probes: int) -> bool:
        """Whether sequences are enough to tell how each input follows from all others, and these not too many."""
        return probes * time <= min(MOST_VALUES, sequences // FOR_EACH)

    def add(self, planted: Planted, inside: Bool[Tensor, "seq time"]) -> WholeCovariance | None:
        """Add sequences; None if one is shorter than the others."""
        if not bool(inside.all()) or planted.shape[1] * self._probes != len(self._sums):
            return None
        rows = planted.double().flatten(1)
        self._sums += rows.T @ rows
        self._sequences += len(rows)
        return self

    def instead_of(self, model: Autoregression) -> Autoregression | ByPosition:
        """The model where sequences are like that, regressions of every position's own where they are not."""
        covariance = (self._sums / self._sequences).numpy()
        left = float(np.trace(model.left[0])) / self._probes  # inputs have variance one
        if not better_by_position(model, left, covariance, self._sequences, LEAST):
            return model
        return ByPosition.of(covariance, self._probes, LEAST)
