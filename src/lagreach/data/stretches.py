"""Windows of one series, dealt into stretches that hardly depend on each other; or the reason why that cannot be.

Neighbouring windows depend on each other, and so do slow series over long distances. Targets may be exchanged between
stretches of the series if these are nearly independent: so stretches are as long, and as far apart, as the correlation of
the contrast asks for. Windows between stretches are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from lagreach.data.correlation import autocorrelation, neighbours, settled, without_shared_lines
from lagreach.data.sequences import Sequences
from lagreach.data.sketch import batches, by_step, numbers
from lagreach.data.windows import Windows

ALIKE = 0.03  # correlation of neighbouring stretches that moves a test of 5 % by less than half a percent
FEWEST_BLOCKS = 8  # 128 patterns of signs
ENOUGH_BLOCKS = 16  # where there are many patterns of exchanges in each
MOST_INPUTS, MOST_OUTPUTS = 8, 4  # columns whose correlations are looked at, those that vary most
GAPS = (0, 1, 2)  # windows between stretches, beyond those that would overlap
RECORDINGS = 16  # series from which each of them can be a unit


def blocks_for(most: int, members: int) -> int:
    """Blocks there may be: where groups have more exchanges than one, fewer blocks tell as much."""
    return most if members == 2 else min(most, ENOUGH_BLOCKS)


@dataclass(frozen=True)
class Layout:
    """Groups of sequences (group, member) that exchange targets, the block of each group, and how it came about."""

    groups: np.ndarray
    blocks: np.ndarray
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Cut:
    """A way to cut a series: `members` sections, each with `blocks` stretches of `taken` windows, `left_out` between them."""

    members: int
    blocks: int
    taken: int
    left_out: int

    def efficiency(self, steps: int, of: int) -> float:
        """Share of the series in use, less what few exchanges and few blocks cost."""
        covered = self.members * self.blocks * steps / of
        return covered * (1 - 1 / self.members) * (1 - 2 / self.blocks)


def recordings(windows: Windows, most: int, members: int) -> Layout | None:
    """Exchange targets between whole series, if there are enough of them; None if there are not."""
    chains = windows.chains()
    if len(chains) < RECORDINGS:
        return None
    size = next((m for m in (8, 4, 2) if m <= members and len(chains) // m >= FEWEST_BLOCKS), 2)
    bundles = [chains[start : start + size] for start in range(0, len(chains) - size + 1, size)]  # of similar length
    kept = sum(size * len(bundle[-1]) for bundle in bundles)
    if kept < 0.5 * len(windows.start):
        return None
    groups, unit = [], []
    for number, bundle in enumerate(bundles):
        shortest = len(bundle[-1])
        groups.append(windows.number[np.stack([chain[:shortest] for chain in bundle], axis=1)])
        unit.append(np.full(shortest, number))
    count = min(blocks_for(most, size), len(bundles))
    blocks = np.concatenate(unit) * count // len(bundles)
    note = f"the sequences come from {len(chains)} series: each series counts as one unit in the test for dependence"
    return Layout(np.concatenate(groups), blocks, (note,))


def stretches(sequences: Sequences, windows: Windows, most: int, members: int) -> Layout | str:
    """Deal windows into stretches that are nearly independent; or say why not."""
    chains = windows.chains()
    series = _Series(sequences, windows, chains)
    best = next((cut for cut in series.cuts(most, members) if series.alike(cut) <= ALIKE), None)
    if best is None:
        return (
            "whether the target depends on any lag cannot be told from this series: inputs and targets vary so slowly that it "
            f"does not hold {2 * FEWEST_BLOCKS} stretches that are independent of each other; a longer series would tell, or "
            "differences (torch.diff) instead of levels where it drifts like a random walk"
        )
    groups, blocks = series.laid_out(best)
    notes = [
        "windows of one series are not independent: N counts windows; the test for dependence and the intervals compare "
        f"{best.members * best.blocks} stretches of {series.steps(best)} steps, {series.gap(best)} apart"
    ]
    if series.periods:
        notes.append(
            f"inputs and targets both repeat every {series.periods[0]:.3g} steps: what only comes from that season counts as a "
            "dependence too"
        )
    return Layout(groups, blocks, tuple(notes))


class _Series:
    """A series (or a few) put together from its windows, and the ways to cut it."""

    def __init__(self, sequences: Sequences, windows: Windows, chains: list[np.ndarray]) -> None:
        self._sequences, self._windows, self._chains = sequences, windows, chains
        self.length = sequences.read([int(windows.number[0])]).x.shape[1]
        self.stride = windows.stride or self.length
        self.total = sum(int(windows.start[chain[-1]] - windows.start[chain[0]]) + self.length for chain in chains)

    def steps(self, cut: _Cut) -> int:
        """Steps of a stretch."""
        return (cut.taken - 1) * self.stride + self.length

    def gap(self, cut: _Cut) -> int:
        """Steps between two stretches."""
        return (cut.left_out + 1) * self.stride - self.length

    def cuts(self, most: int, members: int) -> Iterator[_Cut]:
        """All ways to cut it into enough stretches, the most efficient first."""
        possible = []
        for size in (m for m in (8, 4, 2) if m <= members):
            sections, allowed = [self._section(chain, size) for chain in self._chains], blocks_for(most, size)
            for gap in GAPS:
                left_out = -(-((1 + gap) * self.length) // self.stride) - 1
                for room in {
                    max(sections) // k for k in range(1, allowed + 1)
                }:  # windows of a stretch and the gap behind it
                    if (taken := room - left_out) > 0:
                        count = min(allowed, sum(section // room for section in sections))
                        if count >= min(FEWEST_BLOCKS, most):
                            possible.append(_Cut(size, count, taken, left_out))
        yield from sorted(possible, key=lambda cut: -cut.efficiency(self.steps(cut), self.total))

    def _section(self, chain: np.ndarray, members: int) -> int:
        """Windows of a section: as many as there are, or some fewer, so that sections begin at different times of a season.

        Between windows at the same time of the season, an exchange would leave what comes from it unseen.
        """
        longest = len(chain) // members
        if not self.periods or longest * self.stride < 4 * self.periods[0]:
            return longest
        period = self.periods[0]
        choices = np.arange(longest, longest - int(period / self.stride) - 1, -1)
        away = np.abs(np.mod(choices * self.stride / period, 1.0) - 1 / members)
        return int(choices[np.argmin(np.round(np.minimum(away, 1 - away), 2))])

    def laid_out(self, cut: _Cut) -> tuple[np.ndarray, np.ndarray]:
        """Windows that exchange targets lie a section apart; blocks are stretches of each section."""
        groups, blocks, block = [], [], 0
        for chain in self._chains:
            section = self._section(chain, cut.members)
            for start in range(0, section - cut.taken - cut.left_out + 1, cut.taken + cut.left_out):
                if block < cut.blocks:
                    first = np.arange(start, start + cut.taken)
                    groups.append(self._windows.number[chain[first[:, None] + section * np.arange(cut.members)]])
                    blocks.append(np.full(cut.taken, block))
                    block += 1
        return np.concatenate(groups), np.concatenate(blocks)

    def alike(self, cut: _Cut) -> float:
        """Correlation of the contrasts of neighbouring stretches, if inputs and targets are unrelated.

        With several columns the mean over them is compared with how much their sum varies by chance, which is less.
        """
        worst = 0.0
        for correlation, weight in self._correlations:
            each = [neighbours(column, self.steps(cut), self.gap(cut)) for column in correlation.T]
            worst = max(worst, float((weight * np.array(each)).sum() / np.sqrt(np.square(weight).sum())))
        return worst

    @cached_property
    def _correlations(self) -> list[tuple[Float[np.ndarray, "distance pair"], Float[np.ndarray, "pair"]]]:
        """Of inputs x targets, and of squared inputs x targets (gates move with the size of an input too), with weights."""
        clean = [without_shared_lines(x, y) for x, y in self._joined]
        xs, ys = [one[0] for one in clean], [one[1] for one in clean]
        most = max(map(len, xs)) // 4
        target, of_target = self._settled(ys, most)
        products_and_weights = []
        for values in (xs, [np.square(x - x.mean(0)) for x in xs]):
            source, of_source = self._settled(values, most)
            products = source[:, :, None] * target[:, None, :]
            weight = of_source[:, None] * of_target
            if weight.sum() > 0:
                products_and_weights.append((products.reshape(len(products), -1), weight.ravel() / weight.sum()))
        return products_and_weights

    def _settled(self, parts: list[np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
        steps = sum(map(len, parts))
        variance = sum(len(part) * part.var(0) for part in parts) / steps
        return settled(autocorrelation(parts, most), steps), variance

    @cached_property
    def periods(self) -> list[float]:
        """Periods of cycles that inputs and targets of the longest series share."""
        return without_shared_lines(*self._joined[0])[2]

    @cached_property
    def _joined(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Inputs and targets of each series, step by step; targets of windows as a whole lie at their last steps."""
        return [self._join(chain) for chain in self._chains if len(chain) > 1 or len(self._chains) == 1]

    def _join(self, chain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start = self._windows.start[chain] - self._windows.start[chain[0]]
        total = int(start[-1]) + self.length
        columns: tuple[np.ndarray, np.ndarray] | None = None
        x, y, ends = np.zeros((0, 0)), np.zeros((0, 0)), []
        at = iter(start.tolist())
        for batch in batches(self._sequences, self._windows.number[chain].tolist()):
            inputs, targets = by_step(batch.x, self.length), by_step(batch.y, self.length)
            assert inputs is not None
            whole = targets is None
            values = numbers(batch.y).reshape(len(inputs), 1, -1) if targets is None else targets
            if columns is None:
                columns = _loudest(inputs, MOST_INPUTS), _loudest(values, MOST_OUTPUTS)
                x, y = (np.zeros((total, len(block))) for block in columns)
            for block, target in zip(inputs[..., columns[0]], values[..., columns[1]], strict=True):
                begin = next(at)
                x[begin : begin + self.length] = block
                if whole:
                    ends.append(target[0])
                else:
                    y[begin : begin + self.length] = target
        if ends:
            place, known = start + self.length - 1, np.array(ends)
            y = np.stack([np.interp(np.arange(total), place, column) for column in known.T], axis=1)
        return x, y


def _loudest(values: np.ndarray, most: int) -> np.ndarray:
    spread = values.reshape(-1, values.shape[-1]).var(0)
    return np.sort(np.argsort(-spread, kind="stable")[:most])
