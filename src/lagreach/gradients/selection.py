"""Which weights a statistic looks at."""

from __future__ import annotations

from collections.abc import Callable

from lagreach.adapters import Recurrence
from lagreach.errors import InputError

Selection = str | Callable[[str], bool]
SELECTIONS = ("input", "recurrent", "gates", "all")


def select_params(recurrence: Recurrence, params: Selection = "input") -> list[str]:
    """Names of the selected recurrent weights.

    "input" (the default) are the weights that read the model's input: with them a lag is the age of an *input*. With
    "all" or "recurrent", a weight used at lag l sees older inputs through the state, so lags smear towards zero.
    "gates" are all weights of gates, of cells that keep them apart: torch's own layers hold them in one tensor with the
    rest. A function picks by name.
    """
    weights = list(recurrence.stack.weights())
    if callable(params):
        chosen = [name for *_, name in weights if params(name)]
    elif params == "all":
        chosen = [name for *_, name in weights]
    elif params == "input":
        chosen = [name for k, cell, short, name in weights if k == 0 and cell.role(short) == "input"]
    elif params == "recurrent":
        chosen = [name for _, cell, short, name in weights if cell.role(short) == "recurrent"]
    elif params == "gates":
        chosen = [name for _, cell, short, name in weights if short.rpartition("_")[2] in cell.gate_names]
    else:
        raise InputError(
            "unknown selection of weights", got=repr(params), expected=", ".join(SELECTIONS) + " or a function"
        )
    names = [name for *_, name in weights]
    of_torch = any(short.startswith("weight_") for _, _, short, _ in weights)
    if not chosen and params == "gates" and of_torch and any(cell.gate_names for _, cell, *_ in weights):
        raise InputError(
            "the gates of this layer have no weights of their own: one tensor holds those of all gates and of the rest",
            got=f"params='gates', for {', '.join(names)}",
            fix='pass params="all", or build the network as a GatedRNN, whose gates have weights of their own',
        )
    if not chosen:
        raise InputError(
            "the selection holds no weights",
            got=f"params={params!r}",
            expected=f"some of {', '.join(names)}",
            fix='this cell has no gates with weights: pass params="all"'
            if params == "gates"
            else 'for a cell whose input weights have other names, pass params=lambda name: name.endswith("...")',
        )
    return chosen
