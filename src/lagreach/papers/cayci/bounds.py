"""Every bound of the paper in one place: constants, propositions, theorems, and what they ask for.

>>> round(certified("tanh", a=0.5, T=5).gam, 4)
13.0206
"""

from lagreach.papers.cayci.constants import Certified, Printed, certified, growth, mu0, mu1, printed
from lagreach.papers.cayci.requirements import Requirement, theorem1_requirement, theorem2
from lagreach.papers.cayci.theorems import (
    Bound,
    corollary1,
    proposition3,
    proposition4,
    proposition5,
    proposition6,
    theorem1,
)

__all__ = [
    "Bound",
    "Certified",
    "Printed",
    "Requirement",
    "certified",
    "corollary1",
    "growth",
    "mu0",
    "mu1",
    "printed",
    "proposition3",
    "proposition4",
    "proposition5",
    "proposition6",
    "theorem1",
    "theorem1_requirement",
    "theorem2",
]
