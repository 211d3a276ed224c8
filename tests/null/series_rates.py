"""How often is a dependence named in series, windows and repeats that hold none, and how often one that is there?

Inputs and targets are independent of each other in every situation but the last ones, so whatever is named is false; what makes
it hard is that sequences resemble each other: they are cut from one series, overlap, or are copies. From the root of the
repository,

    python -m tests.null.series_rates --runs 400 --workers 16

prints for every situation how often anything was named, with the upper end of the binomial interval, and how often the answer
was that it cannot be told. `--only` chooses situations by a part of their name, `--first` is the first seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from scipy.signal import lfilter

from lagreach import GatedRNN, cut_series
from lagreach._util.threads import one_thread
from lagreach.diagnosis.locate import LookHere
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.diagnosis.passes import between_passes, first_pass
from tests.null.false_lags import upper_end

LENGTH = 24
LAGS = [0, 1, 2, 3, 5, 8, 13, 20]

Rng = np.random.Generator
Data = Any


def autoregressive(rng: Rng, steps: int, width: int, phi: float) -> np.ndarray:
    """A stationary AR(1) of unit variance, (time, width)."""
    noise = rng.normal(size=(steps, width))
    noise[1:] *= np.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=0)


def _tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(values).float() for values in arrays)


def series(phi: float, windows: int, stride: int = LENGTH, signal: float = 0.0) -> Callable[[Rng], Data]:
    """Two series cut by `cut_series`; `signal` of the input five steps back in the target."""

    def draw(rng: Rng) -> Data:
        steps = stride * (windows - 1) + LENGTH
        x, y = autoregressive(rng, steps, 2, phi), autoregressive(rng, steps, 1, phi)
        y[5:] += signal * x[:-5, :1]
        return cut_series(*_tensors(x, y), length=LENGTH, stride=stride)

    return draw


def sliding(phi: float, windows: int, stride: int, signal: float = 0.0) -> Callable[[Rng], Data]:
    """The same windows as plain tensors: nobody says that they come from one series."""

    def draw(rng: Rng) -> Data:
        cut = series(phi, windows, stride, signal)(rng)
        whole = cut.read(list(range(len(cut))))
        return whole.x, whole.y

    return draw


def walks(windows: int) -> Callable[[Rng], Data]:
    """Two random walks."""

    def draw(rng: Rng) -> Data:
        x, y = (rng.normal(size=(windows * LENGTH, width)).cumsum(0) for width in (2, 1))
        return cut_series(*_tensors(x, y), length=LENGTH)

    return draw


def copies(different: int, times: int, share: float = 1.0, noise: float = 0.0) -> Callable[[Rng], Data]:
    """Independent sequences of which a share is there several times, exactly or nearly."""

    def draw(rng: Rng) -> Data:
        x, y = rng.normal(size=(different, LENGTH, 2)), rng.normal(size=(different, LENGTH, 1))
        repeated = np.arange(int(share * different))
        order = rng.permutation(np.concatenate([np.arange(different), np.tile(repeated, times - 1)]))
        return _tensors(*(values[order] + noise * rng.normal(size=values[order].shape) for values in (x, y)))

    return draw


def independent(sequences: int, signal: float = 0.0) -> Callable[[Rng], Data]:
    """Sequences that have nothing to do with each other."""

    def draw(rng: Rng) -> Data:
        x, y = rng.normal(size=(sequences, LENGTH, 2)), rng.normal(size=(sequences, LENGTH, 1))
        y[:, 5:] += signal * x[:, :-5, :1]
        return _tensors(x, y)

    return draw


NOTHING = {
    "independent": independent(96),
    **{f"series AR {phi}, 96 windows": series(phi, 96) for phi in (0.9, 0.95, 0.97, 0.99)},
    "series AR 0.99, 384 windows": series(0.99, 384),
    "series AR 0.9, stride 6": series(0.9, 96, 6),
    "series AR 0.95, stride 6": series(0.95, 96, 6),
    "series white, stride 6": series(0.0, 96, 6),
    "series white, stride 1": series(0.0, 192, 1),
    "random walks": walks(96),
    "tensors white, stride 1": sliding(0.0, 192, 1),
    "tensors white, stride 6": sliding(0.0, 96, 6),
    "tensors AR 0.9, stride 1": sliding(0.9, 384, 1),
    "tensors AR 0.9, stride 24": sliding(0.9, 96, LENGTH),
    "copies 24 x 4": copies(24, 4),
    "copies 48 x 2": copies(48, 2),
    "copies 128, half twice": copies(128, 2, 0.5),
    "near copies 24 x 4": copies(24, 4, noise=1e-3),
    "near copies 128 x 2": copies(128, 2, noise=1e-3),
}
SOMETHING = {
    "power, independent": independent(96, 0.5),
    "power, series AR 0.9, 96 windows": series(0.9, 96, signal=1.0),
    "power, series AR 0.9, 384 windows": series(0.9, 384, signal=1.0),
    "power, tensors white, 960 windows of stride 1": sliding(0.0, 960, 1, 0.5),
    "power, series white, 96 windows": series(0.0, 96, signal=0.5),
}
SITUATIONS = NOTHING | SOMETHING


def named(situation: str, seed: int) -> tuple[tuple[int, ...], bool]:
    """Lags that are named, and whether the answer was that nothing can be told."""
    rng = np.random.default_rng([seed, list(SITUATIONS).index(situation)])
    model = GatedRNN("lstm", 2, 8, 1, generator=torch.Generator().manual_seed(seed))
    settings = MeasureSettings(probes=1, flips=399, seed=seed)
    with one_thread():
        plan = plan_measurement(model, SITUATIONS[situation](rng), "mse", LAGS, settings=settings)
        first = first_pass(plan, {})
        between = between_passes(plan, first.means, settings, first.inputs, LookHere(plan))
    marginal = np.array(plan.bands.lags)[between.marginal <= settings.error].tolist()
    return tuple(sorted({*between.dependences, *marginal})), bool(plan.block_plan.untold)


def _named(item: tuple[str, int]) -> tuple[tuple[int, ...], bool]:
    return named(*item)


def main() -> None:
    """Count what is named, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.workers) as pool:
        for situation in SITUATIONS:
            if asked.only not in situation:
                continue
            items = [(situation, asked.first + i) for i in range(asked.runs)]
            results = list(pool.map(_named, items, chunksize=max(1, asked.runs // (4 * asked.workers))))
            some, untold = sum(bool(lags) for lags, _ in results), sum(cannot for _, cannot in results)
            words = f"{situation:46s} named {some} of {asked.runs}"
            if situation in NOTHING:
                words += f" (upper end {100 * upper_end(some, asked.runs):.1f} %)"
            else:
                words += f", lag 5 {sum(5 in lags for lags, _ in results)}"
            print(f"{words}, cannot be told {untold}", flush=True)


if __name__ == "__main__":
    main()
