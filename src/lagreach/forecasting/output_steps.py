"""Do a model's outputs belong to a step each, or all of them to the end? Decided as in a diagnosis.

A forecast of several steps that is made at the end is one output of many values, whatever its shape.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lagreach.adapters.own_use import no_gradient
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.forecasting.network import ModuleNetwork, Network
from lagreach.gradients.output_anchors import AT_THE_END, PER_STEP, check_outputs, decide
from lagreach.transport.rollout import run
from lagreach.whole_model.find_input import find_input_module
from lagreach.whole_model.input_module import read
from lagreach.whole_model.outputs import decide_outputs
from lagreach.whole_model.running import at_rest, whole_model


def which_outputs(network: Network, sample: Batch, output: Tensor, outputs: str | None = None) -> str:
    """Say which it is for outputs (seq, position, out), as the user says or by what feeds them; ask where both are possible."""
    check_outputs(outputs)
    positions, time = output.shape[1], sample.x.shape[1]
    if positions == 1 and (outputs != PER_STEP or time == 1):
        return AT_THE_END
    if outputs == AT_THE_END or (outputs == PER_STEP and positions > 1):
        return outputs
    try:
        views = network.recurrences(sample)
    except UnsupportedError:
        return _of_whole_model(network, sample, outputs)
    learning = [view for view in views if view.learns(sample)]
    if not learning:
        raise no_gradient()
    return decide([run(view.bind(sample)) for view in learning], outputs)


def _of_whole_model(network: Network, sample: Batch, outputs: str | None) -> str:
    """Without a recurrence that is known, by the inputs that feed the outputs."""
    assert isinstance(network, ModuleNetwork)
    whole = whole_model(network.model, network.call)
    try:
        with at_rest(whole.module):
            return decide_outputs(*read(whole, find_input_module(whole, sample), sample), outputs)
    except UnsupportedError:  # nothing tells what reads the input: as the shape says
        return PER_STEP


def in_one_output(batch: Batch, values: int) -> Batch:
    """Targets as the values of one output at the end, if they are as many numbers; classes and masks stay."""
    if not batch.y.is_floating_point() or batch.mask is not None:
        return batch
    flat = batch.y.flatten(1) if batch.y.ndim > 1 else batch.y[:, None]
    return replace(batch, y=flat[:, None]) if flat.shape[1] == values else batch
