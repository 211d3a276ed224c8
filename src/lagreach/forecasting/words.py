"""A forecast in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lagreach.forecasting.kinds import NO_RECORD, in_short, meanings, remedies
from lagreach.forecasting.limits import (
    BLENDED,
    FEW_SEQUENCES,
    FEW_STEPS,
    LIMITS,
    NONE_FOUND,
    REACHABLE,
    READABLE,
    UNKNOWN,
    UNSEEN,
)
from lagreach.forecasting.result import Forecast
from lagreach.forecasting.track_record import track_record

NO_LAG = "In the data no lag was found that the target depends on (linearly, one lag at a time)"
NOT_LOOKED_AT = "by lags that were not looked at"
SHARED = "by what inputs that follow from each other share, so that single lags could not be told"
PRODUCTS = "by products or other functions of several inputs"
SOMETHING = 0.05  # part of the targets that a fit must explain to be spoken of
NOT_SEEN = "not seen"  # in the gradients of these sequences; more of them might show it
LESS_THAN_ONE = "less than one"
ROWS = 8  # lags in the printed table
NEIGHBOURS = 0.2  # share of a lag that the next one looked at may lie beyond it
SAID = {  # of one lag, and of several
    (READABLE, REACHABLE): ("will be learned", "will be learned"),
    (FEW_SEQUENCES,): ("needs more sequences", "need more sequences"),
    (FEW_STEPS,): ("needs more steps", "need more steps"),
    (BLENDED,): ("is blended with its neighbours", "are blended with their neighbours"),
    (UNSEEN,): ("is unseen", "are unseen"),
}

NOTHING_TO_DO = "Nothing to do: these lags will be learned."


def describe(forecast: Forecast) -> str:
    """About a dozen lines: what will be learned, what is in the data, a few lags in numbers, and what to do."""
    lines = [*_answers(forecast), record_of(forecast), "", *_table(forecast), *_reasons(forecast), *notes(forecast)]
    return "\n".join(lines)


def record_of(forecast: Forecast) -> str:
    """How often such forecasts came true, if that was counted for networks of this kind."""
    return NO_RECORD.get(forecast.kind) or track_record(budgeted=forecast.within is not None)


def in_words(forecast: Forecast, sequences: float | None = None) -> str:
    """Say in one sentence what would be learned from so many sequences: "lags 1 to 12 will be learned; 24 is blended ..."."""
    count = forecast.available if sequences is None else sequences
    return sentence(forecast.lags, forecast.limits_at(count))


def plainly(forecast: Forecast, sequences: float | None = None) -> str:
    """Say what will be learned and what to do about the rest, of any lag and of those in the data."""
    number = forecast.available if sequences is None else sequences
    limits = forecast.limits_at(number)
    enough = _enough(forecast, [word == FEW_SEQUENCES for word in limits], number)
    said = sentence(forecast.lags, limits, in_short(forecast.kind) | ({FEW_SEQUENCES: enough} if enough else {}))
    words, there = forecast.limits_in_data_at(number), forecast.found
    if not any(there):
        return said
    depends = f"{'lags' if sum(there) > 1 else 'lag'} {spans(forecast.lags, there)}"
    return f"{said}. The data depend on {depends}: {sentence(forecast.lags, words)}"


def to_do(forecast: Forecast, sequences: float | None = None) -> list[str]:
    """What would help at the lags that will not be learned: those that the data depend on, if any were found, else all."""
    number = forecast.available if sequences is None else sequences
    words = forecast.limits_in_data_at(number) if any(forecast.found) else forecast.limits_at(number)
    lines = []
    for word, remedy in remedies(forecast.kind).items():
        chosen = [limit == word for limit in words]
        if any(chosen):
            line = f"{'Lags' if sum(chosen) > 1 else 'Lag'} {spans(forecast.lags, chosen)}: {remedy}"
            lines.append(f"{line}{_from_more(forecast, word, chosen, number)}.")
    return lines or [NOTHING_TO_DO]


def _from_more(forecast: Forecast, word: str, chosen: Sequence[bool], number: float) -> str:
    """How many sequences a remedy is about, or takes besides: more steps alone may not do."""
    if word == FEW_SEQUENCES:
        enough = _enough(forecast, chosen, number)
        return f", {enough}" if enough else ""
    too_few = forecast.needed.values > number
    both = [yes and bool(few) for yes, few in zip(chosen, too_few, strict=True)]
    enough = _enough(forecast, both, number, forecast.needed.values) if word == FEW_STEPS and any(both) else ""
    return f", and with more sequences, {enough}" if enough else ""


def _enough(
    forecast: Forecast, chosen: Sequence[bool], number: float, needed: Float[np.ndarray, "lag"] | None = None
) -> str:
    """Sequences from which half of each of these lags would be recovered, which `number` of them are too few for."""
    numbers = forecast.enough if needed is None else needed
    most = max((float(n) for n, yes in zip(numbers, chosen, strict=True) if yes), default=math.inf)
    if not math.isfinite(most):
        return ""
    return (
        f"a few more than {number:,.0f}" if count(most) in (count(number), f"{number:,.0f}") else f"about {count(most)}"
    )


def sentence(lags: Sequence[int], words: Sequence[str], remedies: Mapping[str, str] | None = None) -> str:
    """Lags by what binds them, and what to do about it if `remedies` say so.

    >>> sentence([0, 1, 2, 24, 64], ["readable", "readable", "reachable", "blended", "unseen"])
    'lags 0 to 2 will be learned; 24 is blended with its neighbours; 64 is unseen'
    >>> sentence([64], ["unseen"], in_short("gated"))
    'lag 64 is unseen: stop, or change gates'
    """
    parts: list[str] = []
    for kinds, (one, many) in SAID.items():
        chosen = [word in kinds for word in words]
        if any(chosen):
            named = spans(lags, chosen) if parts else f"{'lags' if sum(chosen) > 1 else 'lag'} {spans(lags, chosen)}"
            remedy = (remedies or {}).get(kinds[0])
            parts.append(f"{named} {many if sum(chosen) > 1 else one}{'' if remedy is None else f': {remedy}'}")
    return "; ".join(parts) or "nothing can be said of these lags"


def spans(lags: Sequence[int], chosen: Iterable[bool]) -> str:
    """Neighbours among the lags together; lags that lie far apart are not neighbours.

    >>> spans([0, 1, 2, 4, 8, 20], [True, True, True, False, True, True])
    '0 to 2, 8 and 20'
    """
    runs: list[list[int]] = []
    before = False
    for lag, yes in zip(lags, chosen, strict=True):
        if yes and before and lag <= runs[-1][-1] + max(1, NEIGHBOURS * lag):
            runs[-1].append(lag)
        elif yes:
            runs.append([lag])
        before = yes
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def count(number: float, endless: str = "never") -> str:
    """A number of sequences as people write it.

    >>> count(1234.0), count(3.2e7), count(float("inf")), count(0.5), count(float("nan"))
    ('1,200', '3e+07', 'never', 'less than one', '-')
    """
    if math.isnan(number):
        return "-"
    if math.isinf(number):
        return endless
    if number < 1:
        return LESS_THAN_ONE
    if number >= 1e6:
        return f"{number:.0e}"
    digits = max(0, len(str(int(number))) - 2)
    return f"{round(number / 10**digits) * 10**digits:,.0f}"


def _answers(forecast: Forecast) -> list[str]:
    have, strength = forecast.available, f"{100 * forecast.strength:g} %"
    lines = [
        f"From these {have:,} sequences, if the target depended on them ({strength} of its variance): {in_words(forecast)}."
    ]
    limits, there = forecast.limits.values, forecast.found
    if not any(there):
        return [*lines, nothing_found(forecast)]
    depends = f"{'lags' if sum(there) > 1 else 'lag'} {spans(forecast.lags, there)}"
    return [*lines, f"In the data the target depends on {depends}: {sentence(forecast.lags, list(limits))}."]


def nothing_found(forecast: Forecast) -> str:
    """Say that no dependence was found, or that these sequences cannot tell."""
    if np.isnan(forecast.adjusted_p).all():
        return "Whether the target depends on any of these lags cannot be told from these sequences."
    return f"{NO_LAG}{_together(forecast)}."


def _together(forecast: Forecast) -> str:
    """Whether a fit explains what no lag by itself does, and what that may be: products of inputs, say."""
    missed = forecast.settings.get("missed", math.nan)
    both = [curves.explained(forecast.available) for curves in forecast.fits]
    value, low = max((1 - (1 - value) * missed, 1 - (1 - low) * missed) for value, low in both)
    if math.isnan(low) or low < SOMETHING or value > 1:  # beside outputs very much larger, it is the rounding of these
        return ""
    steps = forecast.settings.get("time", 0)
    left_out = not set(range(steps)) <= set(forecast.lags)
    ways = [NOT_LOOKED_AT] * left_out + [SHARED] * bool(forecast.settings.get("follow")) + [PRODUCTS]
    asked = f"pass lags=range({steps}) for all lags; " if left_out else ""
    return (
        f"; all inputs together explain {100 * value:.0f} % of the targets, {', or '.join(ways)}: {asked}a forecast does not "
        "tell the lags of products, lagreach.diagnose does, by exchanging inputs"
    )


def _table(forecast: Forecast) -> list[str]:
    """A few lags in numbers: those in the data, and others evenly among all."""
    chosen = _chosen(forecast)
    shares, needed, seen = forecast.if_present, forecast.needed.values, forecast.seen.values
    data, words = forecast.in_data.values, forecast.limits_if_present.values
    # what binds is said of the sequences that are there, whatever numbers were asked about
    limited = (
        "limited by" if max(forecast.sequences) == forecast.available else f"limited by, {forecast.available:,} seq."
    )
    heads = [f"share, {count(n)} seq." for n in forecast.sequences]
    lines = [f"{'lag':>6} {'seen from':>13} {'half from':>13}  {'  '.join(f'{h:>18}' for h in heads)}  {limited}"]
    for i in chosen:
        cells = []
        for j in range(len(forecast.sequences)):
            value, low, high = (float(part[i, j]) for part in (shares.values, shares.low.values, shares.high.values))
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]".rjust(18))
        of_data = (
            "" if np.isnan(data[i, -1]) else f"; in the data {data[i, -1]:.2f} with {count(forecast.sequences[-1])}"
        )
        numbers = f"{forecast.lags[i]:>6} {count(seen[i], NOT_SEEN):>13} {count(needed[i]):>13}"
        lines.append(f"{numbers}  {'  '.join(cells)}  {words[i]}{of_data}")
    return lines


def _chosen(forecast: Forecast) -> list[int]:
    lags = len(forecast.lags)
    significant = [i for i in range(lags) if forecast.found[i]]
    even = np.unique(np.linspace(0, lags - 1, min(lags, ROWS)).round().astype(int)).tolist()
    most = max(2, ROWS - len(significant[:ROWS]))
    others = [i for i in even if i not in significant][:: max(1, math.ceil(len(even) / most))]
    return sorted({*significant[:ROWS], *others})


def _reasons(forecast: Forecast) -> list[str]:
    there = {*forecast.limits_if_present.values, *forecast.limits.values}
    meaning = meanings(forecast.kind)
    return [f"{word}: {meaning[word]}." for word in LIMITS if word in there - {NONE_FOUND, UNKNOWN}]


def notes(forecast: Forecast) -> list[str]:
    """How much the directions that were looked at may have missed, and what else has to be known."""
    lines = []
    if forecast.reach is not None:
        directions, weights = forecast.settings["directions"], forecast.settings["weights"]
        if directions < weights:
            added = float(np.nanmax(forecast.sketch)) if np.isfinite(forecast.sketch).any() else math.nan
            lines.append(
                f"All weights: {directions} random directions of {weights:,} weights; the second half of them added "
                f"{max(added, 0.0):.2f} to a share at most."
            )
            reachable = forecast.takes("reachable")
            if reachable is not None and np.isnan(forecast.needed.values[np.isinf(reachable.value[:, 0])]).any():
                lines.append(
                    'Where the limit is "unknown", shares still rise with the directions and are lower bounds: ask for more of '
                    "them (directions=)."
                )
    return [*lines, *(f"! {warning}" for warning in forecast.warnings)]
