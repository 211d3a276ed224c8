"""A forward pass that keeps of its states only sums and a few steps, for `lagreach.forecasting.target_batches`.

The states of all steps are far more than a cache holds. Here some steps are run, read, weighted and added up before the next
ones, so that states are never written to memory, nor inputs with time before sequences.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from lagreach.kernels.cpu.compiled import inlined
from lagreach.kernels.cpu.weighted_sums import add_up

STEPS = 32  # that are run before their states are summed


@inlined
@no_type_check
def sum_along(forward, x, w, h, c, run, turned, pull, near, target, share, index, read, summed, picked):
    """Run `forward` over sequences (seq, time, input), read one output of each state, and leave what the arguments say.

    `read` (seq, time) takes the output, `summed` (seq, unit) the sum of ``share (target - read) h``, and `picked` (seq, pick,
    unit) h at the steps of `index`. `h` and `c` hold the state before the first step, and after it that of the last. `run` has
    room for some steps, as `turned` (some, seq, input), `pull` (seq, some) and `near` (seq, pick) have.
    """
    rows, time, width = x.shape
    for start in range(0, time, turned.shape[0]):
        steps = min(turned.shape[0], time - start)
        for s in range(rows):
            for t in range(steps):
                for d in range(np.uint64(width)):
                    turned[t, s, d] = x[s, start + t, d]
        forward(turned[:steps], w, h, c, run, 0, rows)
        for s in range(rows):
            for t in range(steps):
                value = run.read[t, s, 0]
                read[s, start + t] = value
                pull[s, t] = share[s, start + t] * (target[s, start + t] - value)
            for a in range(near.shape[1]):
                near[s, a] = index[s, a] - start
        add_up(pull, run.h[:steps], near, summed, picked)
        h[:] = run.h[steps - 1]
        if run.c.size:
            c[:] = run.c[(steps - 1) % run.c.shape[0]]
