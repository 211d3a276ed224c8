"""A diagnosis as a flat dict of numbers with fixed names, for trackers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from lagreach.diagnosis.result import Diagnosis
from lagreach.diagnosis.window import band_of
from lagreach.errors import InputError

PREFIX = "lagreach/"
FEW = 12  # examined lags up to which all are shown; of more, powers of two

# every name that `metrics` gives; N stands for a number of sequences, L for a lag, LAYER for the name of a layer
NAMES = {
    "window_N": "longest lag within reach of N sequences (of the layer that reaches farthest)",
    "window_N_low": "the same at the pessimistic end of the interval",
    "window_N_high": "the same at the optimistic end",
    "n_lag_L": "sequences that a dependency at lag L would need (the smallest number over layers)",
    "gain_lag_L": "what is left of the loss gradient after L steps back (the largest over layers)",
    "p_lag_L": "adjusted p-value of a dependence on lag L in the data (the smallest over layers)",
    "readable_lag_L": "share of a dependency at lag L that a readout recovers (the largest over layers)",
    "dependences": "number of lags at which a dependence was found",
    "longest_dependence": "the longest of them",
    "kappa": "concentration exponent of the gradient noise (of the first layer)",
    "alpha": "tail index of the gradient noise (of the first layer)",
    "memory": "linear memory in use, as a share of its bound (of the fullest layer)",
    "used": "sequences that were measured",
    "seconds": "time that the diagnosis took",
    "LAYER/window_N": "the window of each layer, where there are several",
}


def metrics(
    diagnosis: Diagnosis, *, sequences: Iterable[int] = (), lags: Sequence[int] | None = None
) -> dict[str, float]:
    """Flatten a diagnosis; what is not known is NaN or infinite.

    Parameters
    ----------
    sequences
        Numbers of sequences to give windows for, besides the one the diagnosis was made for.
    lags
        Lags to give numbers for; all that were examined if there are few, else powers of two.

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(64, 24, 2)
    >>> model = lagreach.GatedRNN("diag_gate", 2, 8, 1, gate_init=0.2)
    >>> numbers = metrics(lagreach.diagnose(model, (x, x[..., :1]), lags=[0, 4]), sequences=[8000])
    >>> [name for name in numbers if "/window" in name or "/n_lag" in name]  # doctest: +NORMALIZE_WHITESPACE
    ['lagreach/window_64', 'lagreach/window_64_low', 'lagreach/window_64_high', 'lagreach/window_8000',
     'lagreach/window_8000_low', 'lagreach/window_8000_high', 'lagreach/n_lag_0', 'lagreach/n_lag_4']
    """
    numbers: dict[str, float] = {}
    counts = list(dict.fromkeys([diagnosis.sequences, *sequences]))
    for count in counts:
        at = diagnosis.window(count)
        numbers[f"window_{count}"] = _lag(at.lag)
        numbers[f"window_{count}_low"], numbers[f"window_{count}_high"] = (_lag(end) for end in at.interval)
    for lag in _lags(diagnosis, lags):
        for name, value in _tracked(diagnosis, lag).items():
            numbers[f"{name}_lag_{lag}"] = value
    seen = {lag for one in diagnosis.layers for lag in one.window.dependences}
    numbers["dependences"] = float(len(seen))
    numbers["longest_dependence"] = float(max(seen)) if seen else math.nan
    numbers["kappa"] = diagnosis.layers[0].window.concentration.exponent
    numbers["alpha"] = diagnosis.tail.alpha
    held = [one.window.memory for one in diagnosis.layers if one.window.memory.bound]  # a whole model has no such bound
    numbers["memory"] = max((memory.total / memory.bound for memory in held), default=math.nan)
    numbers["used"] = float(diagnosis.settings["used"])
    numbers["seconds"] = sum(diagnosis.seconds.values())
    if len(diagnosis.layers) > 1:
        for one in diagnosis.layers:
            for count in counts:
                numbers[f"{one.name}/window_{count}"] = _lag(one.window.at(count).lag)
    return {PREFIX + name: float(value) for name, value in numbers.items()}


def _tracked(diagnosis: Diagnosis, lag: int) -> dict[str, float]:
    """Value of every tracked curve in the band that holds a lag; of several layers, the best one."""
    values: dict[str, float] = {}
    for one in diagnosis.layers:
        place = band_of(one.window.required, lag)
        for curve in one.window.curves.values():
            if curve.tracked and place is not None:
                value = float(curve.linear().value[place])  # curves have a value for every band, in their order
                values[curve.tracked] = curve.better(values.get(curve.tracked, math.nan), value)
    return values


def _lags(diagnosis: Diagnosis, lags: Sequence[int] | None) -> list[int]:
    examined = sorted({lag for one in diagnosis.layers for lag in one.window.lags.tolist()})
    if lags is not None:
        missing = [lag for lag in lags if all(band_of(one.window.required, lag) is None for one in diagnosis.layers)]
        if missing:
            raise InputError("these lags were not examined", got=missing, expected=f"some of {examined}")
        return list(lags)
    if len(examined) <= FEW:
        return examined
    powers = [2**k for k in range(examined[-1].bit_length())]
    return [lag for lag in powers if any(band_of(one.window.required, lag) is not None for one in diagnosis.layers)]


def _lag(lag: int | None) -> float:
    return math.nan if lag is None else float(lag)
