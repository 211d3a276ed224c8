"""From the call of `lagreach.diagnose` to its result: `diagnose.py` is the whole way on one screen."""

from importlib import import_module
from typing import Any

_HOME = {
    "Diagnosis": "lagreach.diagnosis.result",
    "LayerDiagnosis": "lagreach.diagnosis.result",
    "NoiseSample": "lagreach.diagnosis.result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lagreach.diagnosis' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(_HOME[name]), name)
