"""Shared vocabulary: axis names and the `Status` of a result.

Axes, always in this order where several occur: ``seq`` (independent sequences), ``time`` (steps),
``lag`` (steps back), ``unit`` (state coordinates), ``param`` (entries of one parameter tensor). Some code has further
ones: ``replica`` (models that run together, before all others), ``block`` (of sequences), ``band`` (of lags) and
``probe`` (planted dependencies).
"""

from __future__ import annotations

from enum import Enum

# choices of a measurement, in the words that arguments take
SIGNALS = ("dependence", "gradient")
DIRECTIONS = ("matched", "random")
NOISES = ("gradient", "lag")
UNITS = ("sequence", "step")
TRANSPORTS = ("exact", "first-order")
_NOT_USABLE = False  # beside the advice of a status


class Status(Enum):
    """How far a number can be trusted; the value is advice for the reader.

    Results carry a status instead of sentinel numbers: what is missing is NaN or inf *and* says why.

    Examples
    --------
    >>> print(Status.OK)
    ok
    >>> Status.OK.usable
    True
    """

    usable: bool  # whether the number beside this status may be used as it stands

    def __new__(cls, advice: str, usable: bool = True) -> Status:
        """Make a member; the advice is its value."""
        member = object.__new__(cls)
        member._value_, member.usable = advice, usable
        return member

    OK = "ok"

    # transport
    FIRST_ORDER_EXACT = "first order is exact for this cell: the step's Jacobian is diagonal"
    FIRST_ORDER_VANISHES = (
        "this cell has no retention path, so the first-order expansion is zero beyond lag 1; use the exact gain",
        _NOT_USABLE,
    )
    FIRST_ORDER_FAITHFUL = "first order and exact transport agree within a factor of 3 at every lag"
    FIRST_ORDER_MISLEADS = "first order and exact transport differ by more than a factor of 3; trust the exact gain"
    FIRST_ORDER_UNAVAILABLE = "first order has no meaning for a projected hidden state; use the exact gain"
    FIRST_ORDER_OF_LAYERS = "first order belongs to recurrent layers: lags of the whole model have the exact gain alone"
    NO_ANCHOR = ("no sequence reaches back this far, or the loss ignores those steps; nothing can be said", _NOT_USABLE)

    # regimes
    TOO_FEW_POINTS = ("too few points above the floor; add lags, lower the floor, or pass log10 values", _NOT_USABLE)
    NO_DECAY = ("the curve does not decay over these lags, so it has no time scale; look at longer lags", _NOT_USABLE)
    SHAPE_AT_EDGE = "the stretched exponent ran to the end of its range; the data prefer another law"
    NOT_MONOTONE = "the envelope rises somewhere (Lemma 5.1 fails); read the set of visible lags, not only the largest"
    GROWTH_DIFFERS = "the computed window does not follow the envelope's growth law: signal or noise depend on the lag"
    SANDWICH_FAILS = "N(lag) leaves the bounds of (38); check its exponent and constant"
    SANDWICH_PREMISE_FAILS = "noise or alignment leave the bounds that Lemma 5.2 assumes; it does not apply"
    SANDWICH_EMPTY = (
        "the bounds of (38) are wider than the envelope's own fall, so they explain nothing; "
        "does the noise shrink with the envelope (noise of the lag's own term)?"
    )

    # detection and planning
    NO_CONCENTRATION = (
        "alpha <= 1: a mean over sequences is no more concentrated than one sequence, so no number of them "
        "suffices; use robust (clipped) aggregation, whose exponent is 2",
        _NOT_USABLE,
    )
    EXPONENT_FRAGILE = (
        "alpha <= 1.1: the exponent is 11 or more and 0.01 in alpha moves N a hundredfold; "
        "measure the concentration exponent instead, or use robust aggregation"
    )
    NOT_EVEN_LAG_ONE = (
        "not even lag 1 is within reach; more sequences, a stronger signal or less noise are needed",
        _NOT_USABLE,
    )
    WINDOW_UNBOUNDED = "the window exceeds 2^53 steps: unbounded for any practical purpose"

    # tail fits and concentration
    TOO_FEW_SAMPLES = ("too few samples for a tail fit; collect at least 50 independent values", _NOT_USABLE)
    NO_SPREAD = (
        "the bulk of the samples is one single value, so no scale can be measured; nothing can be fitted",
        _NOT_USABLE,
    )
    STABLE_NOT_SUPPORTED = (
        "the stable model is not supported: alpha describes the bulk of the samples, not how their averages "
        "concentrate; use concentration()"
    )
    ALPHA_AT_TWO = "the fit sits at alpha = 2, the Gaussian end; the interval reaches down from there only"
    ALPHA_AT_FLOOR = "the fit sits at the smallest alpha searched; the tails are at least this heavy"
    TAIL_INDEX_ONLY = (
        "a tail index (Hill), not a stable fit: it is no use for alpha >= 1.7, and a value above 2 does not "
        "exclude a stable law; use method='mle'"
    )
    KAPPA_TWO = "not distinguishable from 2: kappa = 2 is used, with N at the pessimistic end beside it"
    KAPPA_NOT_ESTIMABLE = (
        "not estimable: too few sequences to measure kappa; kappa = 2 is assumed where N is asked for",
        _NOT_USABLE,
    )
    KAPPA_REFUSED = (
        "refused: kappa may be 11 or more, so N cannot be extrapolated; collect more sequences or use robust "
        "(clipped) aggregation, whose exponent is 2",
        _NOT_USABLE,
    )
    N_MEASURED = "read off the samples, no model"
    N_EXTRAPOLATED = "beyond the samples: extrapolated, with the standard deviation where kappa is 2"

    # matched statistic
    ORIENTED_BY_ITSELF = (
        "biased: the units were turned by the same data, so noise alone looks like a signal; use orientation='split'",
        _NOT_USABLE,
    )

    # windows
    NOT_SIGNIFICANT = "no dependence was found at this lag; the lower bound says how many sequences one would need"
    NEVER_ARRIVES = "no gradient arrives from this lag: the way back is cut, or its gain is below the smallest number"
    INTERRUPTED = ("not measured: interrupted before", _NOT_USABLE)
    WINDOW_EMPTY = "no examined lag is within reach; more sequences, or gates that retain longer, are needed"
    WINDOW_CENSORED = "the window reaches the longest lag examined; look at longer lags or longer sequences"
    LIMIT_LEARNED = "learned: the loss rises when the input at this lag is replaced"
    LIMIT_NO_DEPENDENCY = "no dependency found, although one of the given strength would have been noticed"
    LIMIT_MAY_BE_MISSED = (
        "no dependency found, but one of the given strength might have been missed; more sequences would tell"
    )
    LIMIT_NONE_WHERE_INPUTS_VARY = (
        "no dependency found on the columns of the input that vary between sequences, although one of the given strength would "
        "have been noticed; whether the target depends on the others cannot be told"
    )
    LIMIT_OUT_OF_REACH = (
        "no dependency found, and one of the given strength could not have been noticed with these sequences"
    )
    LIMIT_SHARED_INPUT = ("cannot be told: the input at this lag is the same in every sequence", _NOT_USABLE)
    LIMIT_CANNOT_BE_TOLD = (
        "cannot be told: the series holds too few stretches that are independent of each other for a test; a longer series, "
        "or differences instead of levels, would tell",
        _NOT_USABLE,
    )
    LIMIT_EXPLAINED = (
        "explained: the target goes with the input at this lag, but not beyond what the inputs around it explain"
    )
    LIMIT_SAMPLE_SIZE = "sample size: the dependence needs more sequences than there are"
    LIMIT_CAPACITY = "capacity: enough sequences, but the state's linear memory is full and does not hold this lag"
    LIMIT_UNDETERMINED = (
        "undetermined: enough sequences and memory, but not learned (yet); train on, or tune the optimiser"
    )

    # training
    DIVERGED = "diverged: loss or gradient stopped being a number; the weights are the last good ones; lower lr or clip"

    def __str__(self) -> str:
        return self.value
