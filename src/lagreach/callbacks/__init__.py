"""Windows while a model trains: in a loop of your own, with Lightning, or with the Trainer of transformers.

`watch` serves plain loops; `LightningCallback` and `TrainerCallback` do the same inside trainers, and load those packages
only when they are asked for. All diagnose held-out data every so many steps or epochs, leave the training exactly as it
would have been, and hand flat numbers to whatever draws your loss curves.
"""

from importlib import import_module
from typing import Any

from lagreach.callbacks.flat import metrics
from lagreach.callbacks.loggers import Logger, as_logger
from lagreach.callbacks.untouched import training_untouched
from lagreach.callbacks.watching import Watch, watch

__all__ = [
    "LightningCallback", "Logger", "TrainerCallback", "Watch", "as_logger", "metrics", "training_untouched", "watch",
]  # fmt: skip

_HOME = {
    "LightningCallback": "lagreach.callbacks.lightning_callback",
    "TrainerCallback": "lagreach.callbacks.trainer_callback",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lagreach.callbacks' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
