"""Does the forecast tell what will be learned? The second validation study, its analysis and its page."""

from pathlib import Path

from studies.validation.design import OWN_TASKS
from studies.validation2.marked_tasks import MarkedParity, MarkedSum, SelectiveCopy
from studies.validation2.tasks import CuedRecall, Lagged, RealInputs

PROTOCOL = Path(__file__).parent / "protocols" / "validation2.yaml"
OWN_TASKS.update({task.name: task for task in (Lagged, RealInputs, CuedRecall, MarkedSum, SelectiveCopy, MarkedParity)})
