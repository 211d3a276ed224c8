"""Heavy tails: the symmetric stable law, fits of it, and how averages over sequences concentrate."""

from lagreach.tails import stable
from lagreach.tails._common import Estimate, SupportCheck
from lagreach.tails.concentration import Concentration, RequiredN, concentration
from lagreach.tails.fit import TailFit, fit_tail
from lagreach.tails.sketches import CharacteristicSums, QuantileSketch, SequenceValues

__all__ = [
    "CharacteristicSums",
    "Concentration",
    "Estimate",
    "QuantileSketch",
    "RequiredN",
    "SequenceValues",
    "SupportCheck",
    "TailFit",
    "concentration",
    "fit_tail",
    "stable",
]
