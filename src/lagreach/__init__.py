"""lagreach: how far back in time can a recurrent model learn from N sequences?

A model is a `Cell` (or a `GatedRNN` built from one). `rollout` runs it once; `lag_gradients` splits its gradient
by the number of steps it travelled back; `effective_rates` gives the first-order rates of the paper and their
envelope f(l); `fidelity` says how far first order can be trusted.

>>> import torch, lagreach
>>> model = lagreach.GatedRNN("diag_gate", input_size=2, hidden_size=4, output_size=1, gate_init=0.1)
>>> x, y = torch.randn(8, 20, 2), torch.randn(8, 20, 1)
>>> lagreach.lag_gradients(model, x, y, lags=[0, 4, 16]).grads["layers.0.W_h"].shape
torch.Size([3, 4, 2])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lagreach._version import __version__

# Public names and where they live; modules load on first use, so that `import lagreach` stays cheap.
_HOME = {
    "GatedRNN": "lagreach.model",
    "Cell": "lagreach.cells",
    "all_cells": "lagreach.cells",
    "rollout": "lagreach.transport.rollout",
    "effective_rates": "lagreach.transport.first_order",
    "fidelity": "lagreach.transport.fidelity",
    "lag_gradients": "lagreach.gradients.lag_gradients",
    "Status": "lagreach.types",
    "LagreachError": "lagreach.errors",
}
_MODULES = {"errors": "lagreach.errors", "testing": "lagreach.testing", "stable": "lagreach.tails.stable"}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from lagreach.cells import Cell, all_cells
    from lagreach.errors import LagreachError
    from lagreach.gradients.lag_gradients import lag_gradients
    from lagreach.model import GatedRNN
    from lagreach.transport.fidelity import fidelity
    from lagreach.transport.first_order import effective_rates
    from lagreach.transport.rollout import rollout
    from lagreach.types import Status


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'lagreach' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES])
