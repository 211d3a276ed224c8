"""How long a diagnosis of a whole model takes: every pass is timed on a few pairs, more of them while that costs little.

Ways back are most of the work, and there are several from every sequence: pieces have one, and what one takes is told by the
pass that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from lagreach.diagnosis import pacing
from lagreach.diagnosis.pacing import MORE, Allowance, Pace, PieceLaw, timed
from lagreach.whole_model.exchange import ExchangeWork
from lagreach.whole_model.exchange_rounds import MORE_RUNS, runs_of_a_lag
from lagreach.whole_model.measure import directions_of, measure_gain
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import Signals, measure_signals

GROWS = (1 + MORE) / 2  # times that the next piece takes, if half of a piece is starting
FIRST = 2  # pairs of the first piece: hardly more than one takes, most of it is starting
SMALL = 8  # the second piece has at most that part of all pairs
SETTLING = 0.6  # seconds of tests and fits afterwards,
PER_VALUE = (
    3e-8  # and for every value of what arrived from an anchor, in each pairing: block means are made of all of them
)
FEW_LAGS = 1.5  # between one and two
READOUT = 0.3  # of the time of the noise, for the shares that a readout recovers
FORWARD, BACK, SIGNALS, EXCHANGE, NOISE, GAINS = "forward", "back", "signals", "exchange", "noise", "gains"
NO_TIME = Pace()

Seconds = dict[str, float]  # of each pass over a piece, with one way back from a sequence


@dataclass(frozen=True)
class WholeModelPace:
    """Of the work that is always done, and of exchanges: none if no lag shows anything, some if few do, most if many do."""

    always: Pace = NO_TIME
    few_lags: Pace = NO_TIME
    many_lags: Pace = NO_TIME

    @property
    def whole(self) -> Pace:
        """Of a diagnosis that finds something, in the middle between few lags and many."""
        return self.always + (self.few_lags + self.many_lags).times(0.5)


def whole_model_pace(plan: WholeModelPlan, begun: float, budget: float | None = None) -> WholeModelPace:
    """Time the passes; set-up, since it was `begun`, is part of the work. Less is timed if the `budget` is ample."""
    setting_up, allowance = pacing.clock() - begun, Allowance(begun, budget=budget)
    count, together = len(plan.block_plan.pairs), min(plan.pairs_together, len(plan.block_plan.pairs))
    pairs, took, pieces = max(1, min(FIRST, together, count // (MORE * SMALL))), 0.0, dict[int, Seconds]()

    def pace_of(pieces: dict[int, Seconds]) -> WholeModelPace:
        made = _put_together(plan, pieces)
        return replace(made, always=made.always + Pace(setting_up + SETTLING, PER_VALUE * _values(plan)))

    def expected(pieces: dict[int, Seconds]) -> float:
        return pace_of(pieces).whole.seconds(2 * count)

    def left(pieces: dict[int, Seconds]) -> float:
        return allowance.left(expected(pieces))

    with at_rest(plan.model.module):
        # one piece alone is mostly starting: where pairs are many, a second one follows unless the budget is ample
        while pairs <= together and (
            not pieces
            or (len(pieces) == 1 and pairs <= count // SMALL and not allowance.ample(expected(pieces)))
            or GROWS * took <= left(pieces)
        ):
            started = pacing.clock()
            pieces[pairs] = _piece(plan, pairs, pieces, left)
            took, pairs = pacing.clock() - started, MORE * pairs
    return pace_of(pieces)


def _values(plan: WholeModelPlan) -> float:
    """Values that arrive from the anchors of a sequence at all lags, of all pairings."""
    several = plan.output.shape[1] > 1
    signals = len(plan.output) + (plan.pairings if several else 1)
    return plan.anchors * plan.anchor_bytes / torch.float32.itemsize / signals * plan.pairings


def _put_together(plan: WholeModelPlan, pieces: dict[int, Seconds]) -> WholeModelPace:
    """Fit each pass on its own."""
    chunks = -(-len(plan.block_plan.pairs) // plan.pairs_together)

    def law(of: Callable[[Seconds], float]) -> PieceLaw:
        return PieceLaw.fitted({(pairs, 1.0, 1.0): of(one) for pairs, one in pieces.items()})

    more, always = plan.anchors * _ways_back(plan, plan.pairings) - _ways_back(plan, 1), Pace()
    for each, times in ((law(lambda s: s[SIGNALS] + more * s[BACK]), 1.0), (law(lambda s: s[NOISE]), 1 + READOUT)):
        always = always + Pace(times * chunks * each.start, times * each.a_pair() / 2)
    gains = law(lambda s: s[GAINS] + (plan.anchors - 1) * s[BACK])
    one = runs_of_a_lag(plan)
    exchanges = (
        law(lambda s: _exchanging(plan, s, FEW_LAGS * one)),
        law(lambda s: _exchanging(plan, s, MORE_RUNS * one)),
    )
    return WholeModelPace(
        always + Pace(gains.start, per_shown=gains.a_pair() / 2),
        *(Pace(chunks * exchange.start, exchange.a_pair() / 2) for exchange in exchanges),
    )


def _ways_back(plan: WholeModelPlan, pairings: int) -> int:
    """From an anchor of a sequence: for planted targets, and for the data's own in each pairing where outputs are several."""
    return len(plan.output) + (pairings if plan.output.shape[1] > 1 else 0)


def _exchanging(plan: WholeModelPlan, piece: Seconds, runs: float) -> float:
    """Seconds of all exchanges of a piece: one run was timed, with one anchor that is carried back for its control."""
    a_run = max(0.0, piece[EXCHANGE] - piece[FORWARD] - piece[BACK])
    return piece[FORWARD] + runs * a_run + plan.anchors * piece[BACK]


def _piece(
    plan: WholeModelPlan, pairs: int, before: dict[int, Seconds], left: Callable[[dict[int, Seconds]], float]
) -> Seconds:
    """Seconds of the passes over so many pairs: the first is timed; so are the others as long as there is time `left`.

    Else they are taken to grow like the first since the piece before, or to take as long as their runs and ways back.
    """
    some = plan.block_plan.pairs[:pairs]
    alone = replace(plan.block_plan, pairs=some, blocks=np.zeros(pairs, dtype=int), count=1, members=2)
    few, made = replace(plan, block_plan=alone, anchors=1), list[Signals]()
    forward = timed(lambda: few.run(alone.pairs.ravel()))
    signals = timed(lambda: made.append(measure_signals(few)))  # pairs alone are one pairing
    back = max(0.0, signals - forward) / _ways_back(plan, 1)  # at most: there are block means to be made, too
    once = forward + back
    seconds = {FORWARD: forward, SIGNALS: signals, GAINS: once, BACK: back, EXCHANGE: 2 * once, NOISE: once}
    if before:
        last = before[max(before)]
        grown = signals / last[SIGNALS]
        seconds |= {name: grown * last[name] for name in (GAINS, BACK, EXCHANGE, NOISE)}
    lag = plan.bands.lags[len(plan.bands) // 2]
    works: dict[str, Callable[[], object]] = {
        GAINS: lambda: measure_gain(few),
        EXCHANGE: lambda: ExchangeWork((lag,))(few, (0,)),
        NOISE: lambda: directions_of(made[0], {})(few, (0,)),
    }
    # for a second piece, which tells more than further passes over this one
    reserved = 0.0 if before else MORE * signals
    for name, work in works.items():
        if seconds[name] <= left(before | {pairs: seconds}) - reserved:
            seconds[name] = timed(work)
            if name == GAINS:  # a run and a way back, which takes as long at least: the first run may be a slow one
                seconds[BACK] = min(seconds[BACK], max(seconds[GAINS] - forward, seconds[GAINS] / 2))
    return seconds
