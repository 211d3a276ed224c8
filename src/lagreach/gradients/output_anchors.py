"""Does each output belong to a step of its own, or do all of them belong to one anchor, as in a forecast made at the end?

Shapes cannot tell: a forecaster whose horizon is as long as its look-back returns what a network with an output at every step
returns. Gradients can: they say which states feed which output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lagreach.errors import InputError
from lagreach.transport.rollout import Rollout

PER_STEP, AT_THE_END = "per step", "at the end"
OUTPUTS = (PER_STEP, AT_THE_END)


def check_outputs(outputs: str | None) -> None:
    """Refuse what says neither."""
    if outputs is not None and outputs not in OUTPUTS:
        raise InputError("unknown outputs", got=repr(outputs), expected=" or ".join(repr(name) for name in OUTPUTS))


def feeding_states(part: Rollout, position: int) -> frozenset[tuple[int, int]]:
    """Sequences and steps whose states feed the output at a position."""
    recurrence = part.recurrence
    with torch.enable_grad():
        leaves = part.states.detach().requires_grad_()
        output = recurrence.head(leaves, recurrence.head_params)[:, position]
        along = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        (gradient,) = torch.autograd.grad(output, leaves, along, materialize_grads=True)
    return frozenset((int(n), int(t)) for n, t in (gradient != 0).any(-1).nonzero().tolist())


def evidence(part: Rollout) -> str | None:
    """What the states of a recurrence say about the outputs behind it; None where they say nothing.

    If the first and the last output are fed by other states, there is an output for every step. If one state feeds both, they
    belong together. If the same several states feed both (pooling, attention, layers above that see the future), only the
    number of outputs can tell: a number other than that of the steps.
    """
    time, positions = part.x.shape[1], part.output.shape[1]
    if positions == 1:
        return AT_THE_END
    first, last = (feeding_states(part, position) for position in (0, positions - 1))
    if first != last:
        return PER_STEP
    if len(first) == len(part.x) or (first and positions != time):
        return AT_THE_END
    return None


def decide(parts: Sequence[Rollout], outputs: str | None = None) -> str:
    """Say which it is from all recurrences of a model, or as the user says; ask where both are possible.

    States of lower layers may feed every output through the layers above: one recurrence that can tell is enough.
    """
    check_outputs(outputs)
    _, positions, width = parts[0].output.shape
    time = max(part.x.shape[1] for part in parts)
    if outputs is not None:
        if outputs == PER_STEP and positions == 1 and time > 1:
            raise InputError(
                f'outputs="{PER_STEP}" needs an output at every step',
                got=f"one output of {width} values for {time} steps",
                fix=f'pass outputs="{AT_THE_END}", or return (seq, time, out) from the model',
            )
        return outputs
    said = {evidence(part) for part in parts}
    if PER_STEP in said:
        return PER_STEP
    if AT_THE_END in said:
        return AT_THE_END
    fed = any(feeding_states(part, 0) for part in parts)
    if width > 1 or not fed:  # several values at as many positions as there are steps
        return PER_STEP
    raise InputError(
        "are these outputs at every step, or a forecast made at the end?",
        got=f"{positions} outputs for {time} steps, all of them fed by the same states",
        expected="outputs that tell by the states that feed them",
        fix=f'pass outputs="{PER_STEP}" if output t belongs to step t, or outputs="{AT_THE_END}" if all belong to the end',
    )
