# Where the lazily loaded names of `__init__.py` come from, for type checkers and editors.
from lagreach import callbacks as callbacks
from lagreach import convergence as convergence
from lagreach import errors as errors
from lagreach import tasks as tasks
from lagreach import testing as testing
from lagreach._version import __version__ as __version__
from lagreach.callbacks.watching import watch as watch
from lagreach.cells import Cell as Cell
from lagreach.cells import all_cells as all_cells
from lagreach.comparison import compare as compare
from lagreach.decays import retention as retention
from lagreach.detection import required_sequences as required_sequences
from lagreach.errors import LagreachError as LagreachError
from lagreach.gate_advice import advise_gates as advise_gates
from lagreach.gradients.lag_gradients import lag_gradients as lag_gradients
from lagreach.gradients.sequences import cut_series as cut_series
from lagreach.io import load as load
from lagreach.measure import measure_window as measure_window
from lagreach.model import GatedRNN as GatedRNN
from lagreach.pipeline import diagnose as diagnose
from lagreach.pipeline import diagnose_step as diagnose_step
from lagreach.planning import plan as plan
from lagreach.study.train import train as train
from lagreach.suggestion import suggest as suggest
from lagreach.tails import stable as stable
from lagreach.tails.concentration import concentration as concentration
from lagreach.tails.fit import fit_tail as fit_tail
from lagreach.transport.fidelity import fidelity as fidelity
from lagreach.transport.first_order import effective_rates as effective_rates
from lagreach.transport.rollout import rollout as rollout
from lagreach.types import Status as Status

__all__: list[str]
