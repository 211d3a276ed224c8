"""Modules that others may compute in their place: nobody looks at them or has changed them."""

from __future__ import annotations

import torch
from torch import nn

KNOWN = (nn.Linear, nn.LSTM, nn.GRU, nn.RNN)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_bare(module: nn.Module) -> bool:
    """Whether a module does what its class in torch does, with weights as they are stored (parametrised ones have another class).

    >>> is_bare(nn.Linear(2, 1)), is_bare(nn.Linear(2, 1, bias=False))
    (True, False)
    """
    everywhere = torch.nn.modules.module._has_any_global_hook()
    plain = type(module) in KNOWN and module.bias is not None and "forward" not in vars(module)
    return plain and not everywhere and not any(getattr(module, name) for name in HOOKS)
