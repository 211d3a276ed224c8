"""Which weights a statistic looks at."""

from __future__ import annotations

from collections.abc import Callable

from lagreach.errors import InputError
from lagreach.transport.rollout import Recurrence

Selection = str | Callable[[str], bool]
SELECTIONS = ("input", "recurrent", "gates", "all")


def select_params(recurrence: Recurrence, params: Selection = "input") -> list[str]:
    """Names of the selected recurrent weights.

    "input" (the default) are the weights that read the model's input: with them a lag is the age of an *input*. With
    "all" or "recurrent", a weight used at lag l sees older inputs through the state, so lags smear towards zero.
    "gates" are all weights of gates. A function picks by name.
    """
    names = list(recurrence.params)
    if callable(params):
        chosen = [name for name in names if params(name)]
    elif params == "all":
        chosen = names
    elif params == "input":
        chosen = [name for name in names if name.startswith("layers.0.W_")]
    elif params == "recurrent":
        chosen = [name for name in names if name.rsplit(".", 1)[1].startswith(("U_", "u_"))]
    elif params == "gates":
        gates = {gate for cell in recurrence.stack.cells for gate in cell.gate_names}
        chosen = [name for name in names if name.rsplit("_", 1)[1] in gates]
    else:
        raise InputError(
            "unknown selection of weights", got=repr(params), expected=", ".join(SELECTIONS) + " or a function"
        )
    if not chosen:
        raise InputError(
            "the selection holds no weights",
            got=f"params={params!r}",
            expected=f"some of {', '.join(names)}",
            fix='for a cell whose input weights have other names, pass params=lambda name: name.endswith("...")',
        )
    return chosen
