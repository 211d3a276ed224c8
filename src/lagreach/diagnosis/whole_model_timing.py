"""How long a diagnosis of a whole model takes: every pass is timed on a few pairs, more of them while that costs little.

Ways back are most of the work, and there are several from every sequence: pieces have one, and are multiplied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lagreach.diagnosis import pacing
from lagreach.diagnosis.pacing import MORE, Allowance, Pace, PieceLaw, timed
from lagreach.whole_model.exchange import MOST_ANCHORS, ExchangeWork
from lagreach.whole_model.measure import directions_of, measure_gain
from lagreach.whole_model.measurement_plan import WholeModelPlan
from lagreach.whole_model.running import at_rest
from lagreach.whole_model.signals import Signals, measure_signals

GROWS = (1 + MORE) / 2  # times that the next piece takes, if half of a piece is starting
SMALL = 8  # the first piece has at most that part of all pairs
SETTLING = 0.6  # seconds of tests and fits afterwards
READOUT = 0.3  # of the time of the noise, for the shares that a readout recovers
GAINS = "gains"


def whole_model_pace(plan: WholeModelPlan, begun: float) -> Pace:
    """Time the passes; set-up, since it was `begun`, is part of the work."""
    setting_up, allowance = pacing.clock() - begun, Allowance(begun)
    count, together = len(plan.block_plan.pairs), min(plan.pairs_together, len(plan.block_plan.pairs))
    pairs, took, pace = max(1, min(MORE, together, count // SMALL)), 0.0, Pace()
    passes: dict[int, dict[str, float]] = {}
    with at_rest(plan.model.module):
        # one piece alone is mostly starting: where pairs are many, a second one follows in any case
        while pairs <= together and (
            not passes
            or (len(passes) == 1 and pairs <= count // SMALL)
            or GROWS * took <= allowance.left(pace.seconds(2 * count))
        ):
            started = pacing.clock()
            passes[pairs] = _passes(plan, pairs)
            took, pairs = pacing.clock() - started, MORE * pairs
            pace = _put_together(plan, passes) + Pace(setting_up + SETTLING)
    return pace


def _put_together(plan: WholeModelPlan, passes: dict[int, dict[str, float]]) -> Pace:
    """Fit each pass on its own."""
    chunks = -(-len(plan.block_plan.pairs) // plan.pairs_together)
    total = Pace()
    for name in next(iter(passes.values())):
        law = PieceLaw.fitted({(pairs, 1.0, 1.0): seconds[name] for pairs, seconds in passes.items()})
        if name == GAINS:
            total = total + Pace(law.start, per_shown=law.a_pair() / 2)
        else:
            total = total + Pace(chunks * law.start, law.a_pair() / 2)
    return total


def _passes(plan: WholeModelPlan, pairs: int) -> dict[str, float]:
    """Seconds of each pass over so many pairs: signals, the exchange at one lag, noise with what a readout shows, gains."""
    alone = replace(plan.block_plan, pairs=plan.block_plan.pairs[:pairs], blocks=np.zeros(pairs, dtype=int), count=1)
    few, made = replace(plan, block_plan=alone, anchors=1), list[Signals]()
    forward = timed(lambda: few.run(alone.pairs.ravel()))
    signals = timed(lambda: made.append(measure_signals(few)))
    lag, noise = plan.bands.lags[len(plan.bands) // 2], directions_of(made[0], {})

    def ways_back(seconds: float, anchors: int) -> float:
        return seconds + (anchors - 1) * max(0.0, seconds - forward)

    exchange = timed(lambda: ExchangeWork(((lag, lag),))(few, (0,)))
    return {
        "signals": ways_back(signals, plan.anchors),
        "exchange": ways_back(exchange, min(MOST_ANCHORS, plan.anchors)),
        "noise": (1 + READOUT) * timed(lambda: noise(few, (0,))),
        GAINS: ways_back(timed(lambda: measure_gain(few)), plan.anchors),
    }
