"""Convergence of gradient descent for diagonal recurrent networks (Cayci & Eryilmaz 2024, "CE").

The network is a diagonal Elman network with a fixed readout; the questions are how wide it must be, how many steps
gradient descent needs, and what memory costs. ``form="corrected"`` statements were derived again and are checked by
simulation here; they are not peer reviewed. ``form="printed"`` gives the paper's numbers, known errors included.

>>> from lagreach.convergence import bounds
>>> constants = bounds.certified("tanh", a=0.5, T=5)
>>> round(constants.L, 5), round(constants.beta, 4)
(2.69621, 16.7525)
"""

from lagreach.papers.cayci import bounds, ntk
from lagreach.papers.cayci.cutoff import Standing, standing
from lagreach.papers.cayci.derivatives import scaled_tanh
from lagreach.papers.cayci.descent import Descent, GradientDescent, ProjectedGradientDescent, descend
from lagreach.papers.cayci.initialise import Weights, symmetric_init
from lagreach.papers.cayci.network import DiagonalNetwork
from lagreach.papers.cayci.transport_maps import TransportMap, random_map

__all__ = [
    "Descent",
    "DiagonalNetwork",
    "GradientDescent",
    "ProjectedGradientDescent",
    "Standing",
    "TransportMap",
    "Weights",
    "bounds",
    "descend",
    "ntk",
    "random_map",
    "scaled_tanh",
    "standing",
    "symmetric_init",
]
