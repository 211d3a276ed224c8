"""lagreach: how far back in time can a recurrent model learn from N sequences?

`diagnose(model, data)` answers that for any torch model with a recurrent layer. Underneath: `lag_gradients` splits a
gradient by the number of steps it travelled back, `effective_rates` gives the paper's first-order rates and their
envelope f(l), `fidelity` says how far first order can be trusted, `concentration`, `fit_tail` and `stable` deal with
noise, `required_sequences` and `plan` with how many sequences a signal needs, without a model.

>>> import torch, lagreach
>>> model = lagreach.GatedRNN("diag_gate", input_size=2, hidden_size=4, output_size=1, gate_init=0.1)
>>> x, y = torch.randn(8, 20, 2), torch.randn(8, 20, 1)
>>> lagreach.lag_gradients(model, x, y, lags=[0, 4, 16]).grads["layers.0.W_h"].shape
torch.Size([3, 4, 2])
"""

from importlib import import_module
from typing import Any

from lagreach import _moved
from lagreach._version import __version__

_moved.install()

# Where the public names live. Modules load on first use, so that `import lagreach` stays cheap.
_HOME = {
    "Cell": "lagreach.cells",
    "GatedRNN": "lagreach.models.gated_rnn",
    "LagreachError": "lagreach.errors",
    "Status": "lagreach.types",
    "advise": "lagreach.advice.advise",
    "advise_gates": "lagreach.advice.gates",
    "all_cells": "lagreach.cells",
    "compare": "lagreach.diagnosis.compare",
    "concentration": "lagreach.tails.concentration",
    "cost": "lagreach.diagnosis.diagnose",
    "cut_series": "lagreach.data.sequences",
    "diagnose": "lagreach.diagnosis.diagnose",
    "diagnose_step": "lagreach.diagnosis.bare_step",
    "effective_rates": "lagreach.transport.first_order",
    "fidelity": "lagreach.transport.fidelity",
    "fit_tail": "lagreach.tails.fit",
    "forecast": "lagreach.forecasting.forecast",
    "lag_gradients": "lagreach.gradients.lag_gradients",
    "load": "lagreach.diagnosis.files",
    "measure_window": "lagreach.diagnosis.measure",
    "plan": "lagreach.advice.plan",
    "required_sequences": "lagreach.detection",
    "retention": "lagreach.advice.retention",
    "rollout": "lagreach.transport.rollout",
    "suggest": "lagreach.advice.suggest",
    "train": "lagreach.study.train",
    "watch": "lagreach.callbacks.watching",
}
_MODULES = {
    "callbacks": "lagreach.callbacks",
    "convergence": "lagreach.papers.cayci",
    "errors": "lagreach.errors",
    "stable": "lagreach.tails.stable",
    "tasks": "lagreach.tasks",
    "testing": "lagreach.testing",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif f"lagreach.{name}" in _moved.MOVED:
        value = import_module(f"lagreach.{name}")
    else:
        raise AttributeError(f"module 'lagreach' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, *_MODULES, "__version__"])


__all__ = ["__version__", *_HOME]  # noqa: PLE0604 (all strings; the names are written once, above)
