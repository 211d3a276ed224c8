"""Measure the lags of a whole model: signals, the exchange of single lags, noise, and gain.

1. *Signals*: a few ways back from each sequence, for swapped targets and planted dependencies.
2. *Exchange*: at the lags where swapping targets shows something, the inputs of that lag alone are exchanged. A lag counts
   as a dependence of the data if both tests say so (`locate.py`).
3. *Noise*: the whole gradient of every sequence along every lag's direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from lagreach._util.interrupts import as_it_stands
from lagreach._util.progress import Progress
from lagreach.gradients.blocks import BlockMeans
from lagreach.gradients.lag_sketch import bands_test
from lagreach.gradients.noise import NoiseValues
from lagreach.gradients.significance import Significance
from lagreach.statistics.reliance import Reliance
from lagreach.whole_model.anchors import draw_anchors, pair_streams
from lagreach.whole_model.factors import Products
from lagreach.whole_model.locate import Located, locate
from lagreach.whole_model.measurement_plan import WholeModelPlan, subsample
from lagreach.whole_model.noise import TABLE_BYTES, NoiseWork, held_directions, measure_noise
from lagreach.whole_model.outputs import cotangents
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import Signals, measure_signals
from lagreach.whole_model.spread import Spread

GAIN_SEQUENCES = 64  # that the gain is averaged over


@dataclass(frozen=True)
class ModelMeasurement:
    """All that was measured of a whole model. `means` are in coordinates that keep the inner products of gradients."""

    plan: WholeModelPlan
    means: BlockMeans
    located: Located
    noise: NoiseValues
    log10_gain: Float[np.ndarray, "lag"]
    correlated_inputs: bool
    ahead: float
    told: np.ndarray
    cut_short: bool = False

    @property
    def test(self) -> Significance:
        """P-values of all tests together, by band."""
        return self.located.test

    @property
    def reliance(self) -> Reliance:
        """Rise of the loss at the lags where inputs were exchanged."""
        return self.located.reliance


def measure_model(
    plan: WholeModelPlan,
    *,
    flips: int,
    error: float,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> ModelMeasurement:
    """Run all passes; the model is left as it was. An interrupt keeps what is finished, if that says something."""
    with at_rest(plan.model.module):
        signals = measure_signals(plan, progress, spread)
        plan, cut_short = signals.plan, signals.plan.block_plan.count < plan.block_plan.count
        pairings, probe = signals.means()
        data = pairings.mean(1)
        draw = np.random.default_rng(plan.seed)
        test = bands_test(plan.bands, pairings, signals.sketch, flips=flips, generator=draw)
        located = locate(signals, data, test, flips=flips, error=error, progress=progress, spread=spread)
        noise = measure_noise(plan, directions_of(signals, located.products), progress, spread)
        cut_short = cut_short or located.cut_short or len(noise.step_block) < plan.block_plan.count
        gain = np.full(len(plan.bands), np.nan)
        if noise.measured:
            put_back = as_it_stands()
            try:
                gain = measure_gain(subsample(plan, GAIN_SEQUENCES))
            except KeyboardInterrupt:  # all else is there
                put_back()
                cut_short = True
    blocks = np.arange(plan.block_plan.count)
    return ModelMeasurement(
        plan=plan,
        means=BlockMeans(blocks, signals.size, located.data[:, None], probe, signals.spread),
        located=located,
        noise=noise,
        log10_gain=gain,
        correlated_inputs=signals.moments.correlated,
        ahead=signals.ahead,
        told=signals.told,
        cut_short=cut_short,
    )


def directions_of(signals: Signals, exchanged: Mapping[int, Products]) -> NoiseWork:
    """Directions of the data and of the probes, band by band; of the exchange where it was made."""
    plan = signals.plan
    dtype = torch.float64 if signals.factors.arrived.dtype == np.float64 else torch.float32

    def held(band: int) -> list[Products]:
        probes = [signals.probe(p, band) for p in range(len(plan.group))]
        return held_directions(
            [exchanged.get(band) or signals.data(band), *probes], TABLE_BYTES // len(plan.bands), dtype
        )

    return NoiseWork([held(band) for band in range(len(plan.bands))], dtype)


def measure_gain(plan: WholeModelPlan) -> Float[np.ndarray, "lag"]:
    """Decimal logarithm of ``sqrt(E|dL_t/de_{t-l}|^2 / E|dL_t/de_t|^2)`` over the anchors that reach back l steps."""
    lags = torch.tensor(plan.bands.lags)

    def squares(rows: np.ndarray, _blocks: np.ndarray) -> np.ndarray:
        piece = plan.run(rows)
        field, _ = cotangents(piece.objective, piece.output)
        usable = (field.abs().amax(-1) > 0).view(len(rows) // 2, 2, -1).all(1)
        streams = pair_streams(piece.batch.x, piece.batch.lengths, plan.seed)
        anchors = draw_anchors(usable, plan.anchors, streams)
        row, sums = torch.arange(len(rows), device=field.device), np.zeros((2, len(lags)))
        for number in range(anchors.count):
            position = torch.from_numpy(anchors.position[:, number]).repeat_interleave(2).to(field.device)
            counted = torch.from_numpy(anchors.weight[:, number] > 0).repeat_interleave(2).to(field.device)
            square = piece.pull(position, field[row, position]).double().square().sum(-1)
            stand = piece.stand[row, position]
            step = stand[:, None] - lags.to(stand)
            reached = (step >= 0) & counted[:, None]
            reached = reached & piece.inside[row[:, None], step.clamp(min=0)]
            there = square[row[:, None], step.clamp(min=0)] * reached
            here = square[row, stand][:, None] * reached
            sums += np.stack((there.sum(0).cpu().numpy(), here.sum(0).cpu().numpy()))
        return sums

    there, here = sum(plan.each(squares), np.zeros((2, len(lags))))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(here > 0, 0.5 * (np.log10(there) - np.log10(np.where(here > 0, here, 1.0))), np.nan)
