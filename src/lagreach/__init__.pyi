# Where the lazily loaded names of `__init__.py` come from, for type checkers and editors.
from lagreach import callbacks as callbacks
from lagreach import errors as errors
from lagreach import tasks as tasks
from lagreach import testing as testing
from lagreach._version import __version__ as __version__
from lagreach.advice.advise import advise as advise
from lagreach.advice.gates import advise_gates as advise_gates
from lagreach.advice.plan import plan as plan
from lagreach.advice.retention import retention as retention
from lagreach.advice.suggest import suggest as suggest
from lagreach.callbacks.watching import watch as watch
from lagreach.cells import Cell as Cell
from lagreach.cells import all_cells as all_cells
from lagreach.data.sequences import cut_series as cut_series
from lagreach.detection import required_sequences as required_sequences
from lagreach.diagnosis.bare_step import diagnose_step as diagnose_step
from lagreach.diagnosis.compare import compare as compare
from lagreach.diagnosis.diagnose import cost as cost
from lagreach.diagnosis.diagnose import diagnose as diagnose
from lagreach.diagnosis.files import load as load
from lagreach.diagnosis.measure import measure_window as measure_window
from lagreach.errors import LagreachError as LagreachError
from lagreach.forecasting.forecast import forecast as forecast
from lagreach.gradients.lag_gradients import lag_gradients as lag_gradients
from lagreach.models.gated_rnn import GatedRNN as GatedRNN
from lagreach.papers import cayci as _cayci
from lagreach.study.train import train as train
from lagreach.tails import stable as stable
from lagreach.tails.concentration import concentration as concentration
from lagreach.tails.fit import fit_tail as fit_tail
from lagreach.transport.fidelity import fidelity as fidelity
from lagreach.transport.first_order import effective_rates as effective_rates
from lagreach.transport.rollout import rollout as rollout
from lagreach.types import Status as Status

convergence = _cayci  # its name for users

__all__: list[str]
