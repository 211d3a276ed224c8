"""Heavy tails: the symmetric stable law, fits of it, and how averages over sequences concentrate."""

from lagreach.tails import stable
from lagreach.tails._common import Estimate, SupportCheck
from lagreach.tails.concentration import Concentration, RequiredN, concentration
from lagreach.tails.fit import TailFit, fit_tail

__all__ = [
    "Concentration",
    "Estimate",
    "RequiredN",
    "SupportCheck",
    "TailFit",
    "concentration",
    "fit_tail",
    "stable",
]
