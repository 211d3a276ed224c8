"""How well a token fits where it stands, from the tokens around it: what makes an exchange of tokens fair.

Exchanging the tokens of two partners at one step tells lags apart only if they might as well have stood the other way round.
Where tokens follow each other, as in a language, they might not. Given the two tokens and everything else, the chance that they
stand as they do is ``p = sigmoid(f(a, n) + f(b, m) - f(a, m) - f(b, n))``, with f the interaction of a token with what stands
around it; only interactions are left of the ratio of the two likelihoods. If the target does not depend on the token given the
rest, what an exchange changes, times ``2 (1 - p)``, has mean zero however tokens follow each other: it is what the arrangement
that was drawn differs from the mean over both. For independent tokens p is one half, and nothing changes.

f adds up over distances in time: a table of frequent tokens, and whether the two are the same. It is fitted by telling pairs
of sequences as they are from exchanged ones, on half of the blocks for the other half. Distances are those at which tokens are
related beyond chance; tokens behind the anchor are never used, since they may be what is forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lagreach.gradients.partial_inputs import SURE
from lagreach.transport.objective import valid_steps
from lagreach.whole_model.measurement_plan import WholeModelPlan

FARTHEST = 64  # steps between tokens that are looked at
MOST_DISTANCES = 12  # that are used: those that tell most
CLASSES = 32  # of tokens in a table, at most: the most frequent ones, and all others together
EXPECTED = 5  # counts in a cell of a table that a test needs
MOST_TOKENS = 2**21  # that are looked at
READ = 64  # sequences at once
MOST_SAMPLES = 2**16  # steps of pairs that are fitted to
PAIRINGS = 4  # of the sequences of a half
ROUNDS = 40  # of the fit
PRIORS = (0.0, 0.3, 1.0, 3.0)  # spread of a table's entries; the one that tells best what was not fitted is taken
SAME_SPREAD = 3.0  # that of what it means to be the same token


@dataclass(frozen=True)
class TokenContext:
    """Interactions of tokens at some `distances`, as `half` 0 and 1 of the blocks have them, fitted for one lag.

    `classes` (token,) are rows of the `tables` (half, distance, class, class); `same` (half, distance) counts where both are
    the same token. `left` is the mean of ``4 p (1 - p)`` over pairs: one for independent tokens.
    """

    distances: tuple[int, ...]
    classes: np.ndarray
    tables: np.ndarray
    same: np.ndarray
    left: float

    def fairness(
        self, tokens: Int[Tensor, "seq time"], inside: Tensor, step: Int[Tensor, "seq"], half: Int[Tensor, "seq"]
    ) -> Tensor:
        """``2 (1 - p)`` for the exchange of the tokens at a step of partners, rows 2i and 2i + 1; those of `half` are judged.

        The coefficients of the other half are used. Steps outside count as one that could not be exchanged.
        """
        device = tokens.device
        classes = torch.from_numpy(self.classes).to(device)
        of_token = classes[tokens.clamp(max=len(classes) - 1)]
        tables, same = (torch.from_numpy(one).to(device) for one in (self.tables, self.same))
        row = torch.arange(len(tokens), device=device)
        gain = torch.zeros(len(tokens), dtype=torch.float64, device=device)
        place = step.clamp(0, tokens.shape[1] - 1)
        for number, distance in enumerate(self.distances):
            at = place + distance
            there = (at >= 0) & (at < tokens.shape[1])
            at = at.clamp(0, tokens.shape[1] - 1)
            there = there & inside[row, at]
            for sign, of in ((1.0, row), (-1.0, row ^ 1)):
                placed = place[of]
                table = tables[1 - half, number, of_token[of, placed], of_token[row, at]]
                again = same[1 - half, number] * (tokens[of, placed] == tokens[row, at])
                gain += torch.where(there, sign * (table + again), 0.0)
        return 2 * torch.sigmoid(-(gain + gain[row ^ 1]))


@dataclass
class TokenContexts:
    """Tokens of all sequences and the distances at which they are related; `at(lag)` fits what belongs to a lag."""

    tokens: np.ndarray
    inside: np.ndarray
    half: np.ndarray  # (seq,), of the block of each sequence
    distances: tuple[int, ...]
    classes: np.ndarray
    seed: int
    _fitted: dict[tuple[int, ...], TokenContext] = field(default_factory=dict)

    def at(self, lag: int) -> TokenContext:
        """Interactions with tokens before, and with those behind up to the anchor."""
        chosen = tuple(sorted([-d for d in self.distances] + [d for d in self.distances if d <= lag]))
        if chosen not in self._fitted:
            self._fitted[chosen] = self._fit(chosen)
        return self._fitted[chosen]

    def _fit(self, distances: tuple[int, ...]) -> TokenContext:
        samples = [_Samples.draw(self, half, distances) for half in (0, 1)]
        count = int(self.classes.max()) + 1
        best: list[tuple[Tensor, Tensor]] = []
        for mine, others in (samples, samples[::-1]):
            tried = [_fitted(mine, len(distances), count, prior) for prior in PRIORS]
            told = [float(others.told(*one)) for one in tried]
            best.append(tried[told.index(max(told))])
        chances = torch.cat([torch.sigmoid(samples[1 - half].gain(*best[half])) for half in (0, 1)])
        tables, same = (torch.stack(parts).numpy() for parts in zip(*best, strict=True))
        return TokenContext(
            distances, self.classes, tables, same, float((4 * chances * (1 - chances)).mean()) if len(chances) else 1.0
        )


@dataclass(frozen=True)
class _Samples:
    """Steps of pairs of sequences, as the odds that they stand as they do are linear in the coefficients.

    `cell` (2, 2, sample, distance) are cells of the tables, of the token of one with what stands around the other, and `sign`
    how they count: zero where nothing stands. `same` (sample, distance) counts tokens that are the same.
    """

    cell: Tensor
    sign: Tensor
    same: Tensor

    @classmethod
    def draw(cls, of: TokenContexts, half: int, distances: Sequence[int]) -> _Samples:
        """Pair the sequences of a half at random, a few times; a step of both is a sample if their tokens differ."""
        generator = np.random.default_rng((of.seed, half))
        mine = np.flatnonzero(of.half == half)
        first, second = [], []
        for _ in range(PAIRINGS):
            order = generator.permutation(mine)
            pairs = order[: len(order) // 2 * 2].reshape(-1, 2)
            first.append(pairs[:, 0])
            second.append(pairs[:, 1])
        rows = np.stack((np.concatenate(first), np.concatenate(second)))  # (2, pair)
        time = of.tokens.shape[1]
        differ = of.inside[rows].all(0) & (of.tokens[rows[0]] != of.tokens[rows[1]])
        pair, step = np.nonzero(differ)
        if len(pair) > MOST_SAMPLES:
            some = np.sort(generator.choice(len(pair), MOST_SAMPLES, replace=False))
            pair, step = pair[some], step[some]
        rows = rows[:, pair]
        at = step[:, None] + np.asarray(distances, dtype=int)
        there = (at >= 0) & (at < time)
        at = np.clip(at, 0, time - 1)
        token, around = of.tokens[rows, step], of.tokens[rows[..., None], at]
        there = there & of.inside[rows[..., None], at]
        sign = np.array([[1.0, -1.0], [-1.0, 1.0]])[:, :, None, None] * there[None]  # (of, around, sample, distance)
        same = (sign * (token[:, None, :, None] == around[None])).sum((0, 1))
        count, number = int(of.classes.max()) + 1, np.arange(len(distances))
        cell = (number * count + of.classes[token][:, None, :, None]) * count + of.classes[around][None]
        return cls(torch.from_numpy(cell), torch.from_numpy(sign), torch.from_numpy(same))

    def gain(self, tables: Tensor, same: Tensor) -> Tensor:
        """Logarithm of the odds that samples stand as they do."""
        gain = self.same @ same
        return (
            gain + (tables.take(self.cell) * self.sign).sum((0, 1, 3))
            if bool(tables.any()) or tables.requires_grad
            else gain
        )

    def told(self, tables: Tensor, same: Tensor) -> Tensor:
        """Log likelihood of the samples standing as they do; pairings of the same tokens count once together."""
        return logsigmoid(self.gain(tables, same)).sum() / PAIRINGS


def _fitted(samples: _Samples, distances: int, classes: int, prior: float) -> tuple[Tensor, Tensor]:
    """Tables (distance, class, class) and what being the same counts (distance,), by penalised likelihood."""
    tables = torch.zeros(distances, classes, classes, dtype=torch.float64, requires_grad=prior > 0)
    same = torch.zeros(distances, dtype=torch.float64, requires_grad=True)
    free = [same, *([tables] if prior > 0 else [])]
    optimiser = torch.optim.LBFGS(free, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        penalty = same.square().sum() / (2 * SAME_SPREAD**2)
        if prior > 0:
            penalty = penalty + tables.square().sum() / (2 * prior**2)
        value = penalty - samples.told(tables, same)
        value.backward()
        return value

    if len(samples.same):
        with torch.enable_grad():
            optimiser.step(loss)
    return tables.detach(), same.detach()


def token_contexts(plan: WholeModelPlan) -> TokenContexts | None:
    """Tokens of a plan's sequences, if they are related in time; None if they are not, or are no plain tokens."""
    # of many sequences some are enough, from every block, so that memory stays flat
    every = -(-2 * len(plan.block_plan.pairs) * plan.time // MOST_TOKENS)
    read = _tokens(plan, plan.block_plan.pairs[::every].ravel())
    if read is None:
        return None
    tokens, inside = read
    classes = _classes(tokens[inside])
    distances = related_distances(tokens, inside, classes)
    if not distances:
        return None
    half = np.repeat(plan.block_plan.blocks[::every] % 2, 2)
    return TokenContexts(tokens, inside, half, distances, classes, plan.seed)


def _tokens(plan: WholeModelPlan, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Tokens and valid steps of some sequences; None where the input is not one token a step."""
    first = plan.run(rows[:2])
    x = first.batch.x
    if x.ndim != 2 or x.is_floating_point() or not torch.equal(first.reading.inputs.cpu(), x.cpu()):
        return None
    tokens, inside = np.zeros((len(rows), plan.time), np.int64), np.zeros((len(rows), plan.time), bool)
    for start in range(0, len(rows), READ):
        batch, some = plan.sequences.read(rows[start : start + READ].tolist()), slice(start, start + READ)
        time = batch.x.shape[1]  # of ragged sequences, that of the longest here
        tokens[some, :time] = batch.x.cpu().numpy()
        inside[some, :time] = valid_steps(batch.lengths, len(batch), time, torch.device("cpu")).numpy()
    return tokens, inside


def _classes(tokens: np.ndarray) -> np.ndarray:
    """A class for every token: the most frequent ones have their own, as far as a table of them can be filled."""
    counts = np.bincount(tokens)
    frequent = np.argsort(-counts, kind="stable")[: CLASSES - 1]
    frequent = frequent[counts[frequent] >= np.sqrt(EXPECTED * len(tokens))]
    classes = np.zeros(len(counts), dtype=np.int64)
    classes[frequent] = 1 + np.arange(len(frequent))
    if (counts[classes == 0] == 0).all():  # nobody is left for the class of all others
        classes = np.maximum(classes - 1, 0)
    return classes


def related_distances(tokens: np.ndarray, inside: np.ndarray, classes: np.ndarray) -> tuple[int, ...]:
    """Distances at which tokens are related beyond chance, by the classes of both or by being the same."""
    from scipy.special import chdtrc, ndtr

    farthest, count = min(FARTHEST, tokens.shape[1] - 1), int(classes.max()) + 1
    of_token = classes[tokens]
    chances: dict[int, float] = {}
    for distance in range(1, farthest + 1):
        both = inside[:, distance:] & inside[:, :-distance]
        now, then = tokens[:, distance:][both], tokens[:, :-distance][both]
        if len(now) < 2 * EXPECTED:
            continue
        table = np.bincount(of_token[:, distance:][both] * count + of_token[:, :-distance][both], minlength=count**2)
        table = table.reshape(count, count).astype(float)
        expected = np.outer(table.sum(1), table.sum(0)) / len(now)
        square = np.square(table - expected)[expected > 0] / expected[expected > 0]
        freedom = max(0, (table.sum(1) > 0).sum() - 1) * max(0, (table.sum(0) > 0).sum() - 1)
        by_table = float(chdtrc(freedom, square.sum())) if freedom else 1.0
        shares = [np.bincount(one, minlength=len(classes)) / len(one) for one in (now, then)]
        chance = float(shares[0] @ shares[1])
        excess = ((now == then).mean() - chance) * np.sqrt(len(now) / max(chance * (1 - chance), 1e-300))
        chances[distance] = 2 * min(by_table, float(2 * ndtr(-abs(excess))))
    sure = [d for d, p in chances.items() if p * len(chances) <= SURE]
    return tuple(sorted(sorted(sure, key=lambda d: chances[d])[:MOST_DISTANCES]))
