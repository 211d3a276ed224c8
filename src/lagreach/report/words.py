"""The sentences of a report: the answer, the name of each limit, and what to do about it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from lagreach.data.course import MISLED, STAND_IN
from lagreach.data.shared_inputs import VARYING
from lagreach.diagnosis.result import Diagnosis, LayerDiagnosis
from lagreach.diagnosis.window import Window
from lagreach.errors import InputError
from lagreach.regimes import TimeScales, timescales
from lagreach.types import Status

MORE_DATA = 100  # times as many sequences are still worth advising
LONG_ENOUGH = 0.9  # of a lag: units that retain so many steps need no other bias
A_TRACE = 0.005  # share of the target or of a lag below which nothing is said to be learned
CLIPPING_HELPS = 0.5  # clipping is worth a word if it needs less than this share of the sequences

CLOCKS = ("epoch", "step")  # labels that tell when in training a diagnosis was made
LIGHTS = {
    Status.LIMIT_LEARNED: "good",
    Status.LIMIT_NO_DEPENDENCY: "plain",
    Status.LIMIT_NONE_WHERE_INPUTS_VARY: "fair",
    Status.LIMIT_MAY_BE_MISSED: "fair",
    Status.LIMIT_UNDETERMINED: "fair",
    Status.LIMIT_EXPLAINED: "fair",
    Status.LIMIT_SHARED_INPUT: "fair",
    Status.LIMIT_CAPACITY: "bad",
    Status.LIMIT_SAMPLE_SIZE: "bad",
    Status.LIMIT_OUT_OF_REACH: "bad",
    Status.LIMIT_CANNOT_BE_TOLD: "fair",
}


def count(number: float) -> str:
    """Write a number of sequences for people: 8, 1,200, 3.4e+07, or "no number of".

    >>> count(8.3), count(1234.5), count(3.4e7), count(math.inf)
    ('9', '1,235', '3.4e+07', 'no number of')
    """
    if math.isnan(number):
        return "an unknown number of"
    if math.isinf(number):
        return "no number of"
    return f"{math.ceil(number):,}" if number < 1e6 else f"{number:.2g}"


def about(number: float) -> str:
    """Write a number of sequences to two digits, for sentences; unlike `count` it is not read as exact.

    >>> about(27_834.0), about(61.2), about(4.26e9)
    ('28,000', '61', '4.3e9')
    """
    if not math.isfinite(number):
        return count(number)
    rounded = float(f"{max(number, 1.0):.2g}")
    return f"{rounded:,.0f}" if rounded < 1e9 else brief(rounded)


def brief(number: float) -> str:
    """Write a number of sequences to three digits, for tables.

    >>> [brief(n) for n in (0.3, 4.187, 1063.2, 1.86e6, math.inf, math.nan)]
    ['less than one', '4.2', '1,060', '1.86e6', 'inf', 'nan']
    """
    if number < 1:
        return "less than one"
    if number < 10:
        return f"{number:.2g}"
    return f"{float(f'{number:.3g}'):,.0f}" if number < 1e6 else f"{number:.3g}".replace("e+0", "e").replace("e+", "e")


def span(first: int, last: int) -> str:
    """Name a band of lags.

    >>> span(4, 4), span(5, 8)
    ('4', '5-8')
    """
    return str(last) if first == last else f"{first}-{last}"


def listed(lags: Sequence[int]) -> str:
    """Write lags as people list them.

    >>> listed([3]), listed([3, 12, 40])
    ('lag 3', 'lags 3, 12 and 40')
    """
    *head, last = map(str, lags)
    return f"lags {', '.join(head)} and {last}" if head else f"lag {last}"


def sentence(text: str) -> str:
    """Let a text begin with a capital, and leave the rest of it alone.

    >>> sentence("use the Jacobian")
    'Use the Jacobian'
    """
    return text[:1].upper() + text[1:]


def share(strength: float) -> str:
    """Write a share of the target: 5 %."""
    return f"{100 * strength:.3g} %"


def technical(text: str) -> bool:
    """Whether a text uses a word of the method.

    >>> technical("kappa is 2"), technical("more sequences")
    (True, False)
    """
    return any(re.search(rf"\b{re.escape(term)}\b", text, re.IGNORECASE) for term in TERMS)


def named(diagnoses: Sequence[Diagnosis], names: Sequence[str] | None = None) -> list[str]:
    """One name for each diagnosis: the given one, its labels, or its number; names that occur twice are numbered."""
    if names is not None and len(names) != len(diagnoses):
        raise InputError("one name for every diagnosis", got=f"{len(names)} names for {len(diagnoses)}")
    chosen = []
    for i, diagnosis in enumerate(diagnoses):
        labels = ", ".join(v if isinstance(v, str) else f"{k} {v}" for k, v in diagnosis.labels.items())
        chosen.append(str(names[i]) if names is not None else labels or f"model {i + 1}")
    return [
        f"{name} ({chosen[:i].count(name) + 1})" if chosen.count(name) > 1 else name for i, name in enumerate(chosen)
    ]


def short(limit: Status) -> str:
    """Name a limit in a word or two."""
    return limit.name.removeprefix("LIMIT_").lower().replace("_", " ")


# What the validation study found, in a sentence that every report carries (docs/validation/index.md).
NO_FORECAST = (
    "This speaks of the network as it stands: whether a gradient at a lag stands out of its noise. What training will make of it "
    "is another question: lagreach.forecast(model, data) answers it."
)
# Words of the method, which stand on a page only in the part for those who want to know how (docs/style/terms.txt).
TERMS = (
    "alpha", "kappa", "transport", "swap contrast", "envelope", "jackknife", "design effect", "tail index", "Fano", "H_N",
    "cotangent",
)  # fmt: skip


def answer(diagnosis: Diagnosis) -> str:
    """Put the result into a few sentences: the reach, what lies beyond it, and what the data depend on."""
    pooled = any(layer.window.settings.get("pooled") for layer in diagnosis.layers)
    also = " The readout looks at the states of many steps, so inputs arrive at lag 0 as well." if pooled else ""
    return f"{_reach(diagnosis)} {depends(diagnosis)}{also}"


def _reach(diagnosis: Diagnosis) -> str:
    at = diagnosis.window()
    who = f"this {diagnosis.labels['cell']}" if "cell" in diagnosis.labels else "this model"
    start = f"With {count(at.sequences)} sequences {who} would"
    what = f"notice a dependency explaining {share(at.strength)} of the target"
    if at.lag is None and at.status is not Status.WINDOW_EMPTY:
        return f"How far back {who} would {what} with {count(at.sequences)} sequences cannot be said ({at.status})."
    if at.lag is None:
        return f"{start} not {what} at any lag that was examined{_beyond(diagnosis, -1)}."
    low, high = ("none" if end is None else str(end) for end in at.interval)
    if at.status is Status.WINDOW_CENSORED:
        return f"{start} {what} up to lag {at.lag}, the longest lag examined ({low} to {high})."
    steps = "step" if at.lag == 1 else "steps"
    return f"{start} {what} up to {at.lag} {steps} back ({low} to {high}){_beyond(diagnosis, at.lag)}."


def _beyond(diagnosis: Diagnosis, lag: int) -> str:
    """Say what the longest lag examined would need, if it lies beyond the reach."""
    planted = [layer.window.required_if_present() for layer in diagnosis.layers]
    longest = max(int(one.lags[-1]) for one in planted)
    ends = [(float(one.sequences[-1]), one.status[-1]) for one in planted if one.lags[-1] == longest]
    if longest <= lag:
        return ""
    known = [n for n, _ in ends if not math.isnan(n)]
    if not known:
        return f"; what lag {longest} needs cannot be said ({ends[0][1]})"
    return f"; at lag {longest} it would need about {about(min(known))}" if math.isfinite(min(known)) else ""


def depends(diagnosis: Diagnosis) -> str:
    """Say which lags the data depend on, and which of them N sequences do not reach."""
    lags = sorted({lag for layer in diagnosis.layers for lag in layer.window.dependences})
    if not lags:
        return f"{sentence(nothing_found(_most_telling(diagnosis)))}."
    visible = {lag for layer in diagnosis.layers for lag in layer.window.at(diagnosis.sequences).detectable}
    beyond = {lag for layer in diagnosis.layers for lag in unreached(layer, diagnosis)[0]} - visible
    unknown = set(lags) - visible - beyond
    doubt = f" ({IN_DOUBT})" if any(in_doubt(layer.window) for layer in diagnosis.layers) else ""
    words = f"The data depend on {listed(lags)}{doubt}"
    if beyond:
        words += f"; {listed(sorted(beyond))} {'is' if len(beyond) == 1 else 'are'} out of reach"
    if unknown:
        words += f"; what {listed(sorted(unknown))} {'needs' if len(unknown) == 1 else 'need'} cannot be said"
    return f"{words}." if beyond or unknown else f"{words}, within reach."


IN_DOUBT = "some of them perhaps by way of others: see the warnings"


def in_doubt(window: Window) -> bool:
    """Whether a warning says that lags may be named which only other inputs pass on, or which stand in for others."""
    said = [phrase in warning for warning in window.warnings for phrase in (MISLED, STAND_IN)]
    return bool(window.dependences) and any(said)


def _most_telling(diagnosis: Diagnosis) -> Window:
    """The window that says most where no lag is named: one in which inputs and target go together, then one that can tell."""
    windows = [layer.window for layer in diagnosis.layers]
    return max(windows, key=lambda one: (len(one.marginal_dependences), not np.isnan(one.adjusted_p).any()))


def nothing_found(window: Window) -> str:
    """Say why no lag is named."""
    marginal, untold = window.marginal_dependences, np.isnan(window.adjusted_p)
    if marginal and window.left < 1:
        return (
            f"the target goes with old inputs ({listed(marginal)}), but which of them it depends on cannot be told: they follow "
            "each other in time"
        )
    if Status.LIMIT_CANNOT_BE_TOLD in window.required.status:
        return "whether the target depends on any lag cannot be told from this series"
    if untold.all():
        return "whether the target depends on the inputs cannot be told: they are the same in every sequence"
    words = "no dependence of the target on any examined lag was found in the data"
    if window.shares_columns:
        words += f" {VARYING}; whether it depends on the others cannot be told"
    if untold.any():
        words += f"; at {listed(window.lags[untold].tolist())} the input is the same in every sequence, and nothing can be told"
    return words


def unreached(layer: LayerDiagnosis, diagnosis: Diagnosis) -> tuple[list[int], list[int]]:
    """Lags that the data depend on and that need more sequences, and those whose N is not known."""
    window = layer.window
    needed = {lag: float(window.required.sequences[window.required.index(lag)]) for lag in window.dependences}
    beyond = [lag for lag, n in needed.items() if n > diagnosis.sequences]
    return beyond, [lag for lag, n in needed.items() if math.isnan(n)]


def time_scales(layer: LayerDiagnosis) -> TimeScales | None:
    """Time scale of each unit from its effective rates; None where the layer has no first order."""
    if layer.rates is None:
        return None
    return timescales(layer.rates.lags.numpy(), log10_rates=layer.rates.log10_rates.numpy())


def retention(layer: LayerDiagnosis) -> float:
    """Steps that the slowest tenth of the units retain at least; NaN where no unit has a time scale."""
    scales = time_scales(layer)
    known = scales is not None and bool(np.isfinite(scales.tau).any())
    return float(np.nanquantile(scales.tau, 0.9)) if scales is not None and known else math.nan


def retained(layer: LayerDiagnosis) -> str:
    """Say what "gate bias" in the advice means for this layer."""
    longest = retention(layer)
    if math.isnan(longest):
        return ""
    return (
        f"gate bias +b: units retain at most about {longest:.2g} steps now; with a sigmoid gate's bias b higher, exp(b) times "
        "as many"
    )


def advice(diagnosis: Diagnosis, layer: LayerDiagnosis, lag: int) -> str:
    """Say what to do about the limit that binds at a lag."""
    window = layer.window
    limit = window.limit(lag, diagnosis.sequences)
    if limit in (Status.LIMIT_LEARNED, Status.LIMIT_NO_DEPENDENCY):
        return "nothing to do"
    if limit is Status.LIMIT_MAY_BE_MISSED:
        return f"nothing, or a sure answer from about {about(window.to_notice(lag))} sequences"
    if limit is Status.LIMIT_NONE_WHERE_INPUTS_VARY:
        return "nothing, or let the other columns of the input differ between sequences, if they can"
    if limit is Status.LIMIT_SHARED_INPUT:
        return "let this input differ between sequences, if it can"
    if limit is Status.LIMIT_EXPLAINED:
        return "nothing to do, unless more sequences tell it apart from the lags around it"
    if limit is Status.LIMIT_CANNOT_BE_TOLD:
        return "a longer series, or differences instead of levels"
    if limit is Status.LIMIT_UNDETERMINED:
        return f"train on, or tune the optimiser{_so_far(window, lag)}"
    if limit is Status.LIMIT_CAPACITY:
        return f"more units: {window.memory.total:.1f} of at most {window.memory.bound} inputs are remembered"
    if window.settings.get("pooled"):
        return "nothing on account of this lag: the readout sees the state of that step itself"
    numbers = (window.required if limit is Status.LIMIT_SAMPLE_SIZE else window.required_if_present()).at(lag)
    ways = _by_data(diagnosis, layer, numbers["sequences"], numbers["robust"]) + _by_retention(layer, lag)
    return "; ".join(ways) or str(numbers["status"])


def _so_far(window: Window, lag: int) -> str:
    """How much of the lag is learned, if the model has learned anything at all: a model that beats no constant has not."""
    share = window.learned(lag)
    return f" ({share:.0%} of it is learned)" if min(share, window.reliance.explained) >= A_TRACE else ""


def _by_data(diagnosis: Diagnosis, layer: LayerDiagnosis, needed: float, clipped: float) -> list[str]:
    """Sequences that would do, by the mean and with clipping."""
    ways = []
    if needed <= diagnosis.sequences:  # enough are planned for, but fewer were measured
        used = layer.window.sequences
        goal = f"{about(needed)} sequences" if needed > 1.1 * used else "a few more sequences"
        ways.append(f"measure on {goal} ({used:,} were used)")
    elif needed <= MORE_DATA * diagnosis.sequences:
        times = f"{needed / diagnosis.sequences:.2g}"
        more = f"{about(needed)} sequences ({times} times as many)"
        ways.append(more if times != "1" else f"a few more than {diagnosis.sequences:,} sequences")
    elif not math.isnan(needed):
        ways.append("more data alone will not do")
    helps = clipped < CLIPPING_HELPS * needed or (math.isnan(needed) and math.isfinite(clipped))
    if helps and clipped <= MORE_DATA * diagnosis.sequences:
        ways.append(f"clip each sequence's gradient ({about(clipped)} sequences)")
    return ways


def _by_retention(layer: LayerDiagnosis, lag: int) -> list[str]:
    """Gates that would carry the lag: sigmoid gates retain about exp(bias) steps. A plain recurrence has none."""
    if layer.fidelity.status is Status.FIRST_ORDER_VANISHES:
        return [
            f"an LSTM with open gates (`lagreach.advise_gates(model, x, lag={lag}).apply(model)`), or at least an orthogonal "
            "start (`torch.nn.init.orthogonal_` on the recurrent weights): a plain recurrence has no gates to open"
        ]
    longest = retention(layer)
    if math.isnan(longest) or longest >= LONG_ENOUGH * lag:
        return []
    return [f"gate bias +{math.log(lag / longest):.1f} (`lagreach.advise_gates(model, x, lag={lag}).apply(model)`)"]
