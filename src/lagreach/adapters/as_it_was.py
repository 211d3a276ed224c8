"""Leave a model as it was, whatever happens, an interrupt (Ctrl-C) at any moment too.

Runs of a model exchange its weights, modes, hooks and forwards for a while, each in a context of its own, and an interrupt
may come between any two of their steps. So what may change is noted once, before anything does, by every function that is
given a model, and put back at its end, again where that is interrupted.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from lagreach._util.interrupts import NOTING, Put, close_left_open
from lagreach._util.settings_of_torch import settings_of_torch
from lagreach.adapters.kept import TORCHS_OWN, Kept

P = ParamSpec("P")
T = TypeVar("T")

# weights, parts, hooks and modes; forwards that were replaced; the copies of weights that recurrent layers know of
NOTED = TORCHS_OWN | {"_buffers", "forward", "_flat_weight_refs"}
COPIED = 2**28  # bytes of tensors whose values are copied, the smallest first: what forwards write into is small


class AsItWas:
    """A model as it is now: nothing is copied but, if asked for, values of tensors that forwards may write into."""

    def __init__(self, model: nn.Module, *, values: bool = False) -> None:
        self._handled = sys.exc_info()[1]
        self._parts = [(part, _noted(part)) for part in model.modules() if not _uninitialised(part)]
        self._weights = [(weight, weight.requires_grad, weight.grad) for weight in model.parameters()]
        self._kept = Kept(model)
        self._values = _copies(self._kept) if values else []
        self._set_torch = settings_of_torch()

    def restore(self) -> None:
        """Put everything back; may be called again where it was interrupted."""
        close_left_open(self._handled)
        self._set_torch()
        for part, noted in self._parts:
            own = vars(part)
            if "forward" in own and "forward" not in noted:
                del own["forward"]
            for name, (value, inside) in noted.items():
                if own.get(name) is not value:
                    own[name] = value
                _put_inside(value, inside)
        for weight, learns, grad in self._weights:
            if weight.requires_grad != learns:
                weight.requires_grad_(learns)
            if weight.grad is not grad:
                weight.grad = grad
        self._kept.restore()
        with torch.no_grad():
            for tensor, value in self._values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def leaves_as_it_was(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function leave the model that it is given first, and torch's settings and random states, as they were."""
    first = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        model = _module(args[0] if args else kwargs.get(first))
        outside = NOTING.get()
        if model is None or (isinstance(outside, partial) and outside.args[0] is model):
            return function(*args, **kwargs)
        before = AsItWas(model, values=True)

        def restore() -> None:
            before.restore()
            NOTING.set(outside)

        try:  # no call in between and no loop below: interrupts come at those
            NOTING.set(partial(_note, model))
            return function(*args, **kwargs)
        finally:
            try:
                restore()
            except BaseException:
                try:
                    restore()
                finally:
                    restore()
                raise

    return whole


def _note(model: nn.Module) -> Put:
    return AsItWas(model).restore


def _module(given: Any) -> nn.Module | None:
    """The module that a function was given, also inside a view or a watch."""
    model = given if isinstance(given, nn.Module) else getattr(given, "_model", None)
    return model if isinstance(model, nn.Module) else None


def _uninitialised(part: nn.Module) -> bool:
    """Whether the first run makes a lazy module another one, which it has to stay."""
    return isinstance(part, nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params()


def _noted(part: nn.Module) -> dict[str, tuple[Any, Any]]:
    own = {name: value for name, value in vars(part).items() if name in NOTED}
    return {
        name: (value, value.copy() if isinstance(value, (dict, list, set)) else None) for name, value in own.items()
    }


def _put_inside(value: Any, inside: Any) -> None:
    """Give a dict, list or set the very same parts again, in their order."""
    if isinstance(value, dict):
        if list(value) != list(inside) or any(value[key] is not part for key, part in inside.items()):
            value.clear()
            value.update(inside)
    elif isinstance(value, list):
        value[:] = inside
    elif isinstance(value, set) and value != inside:
        value.clear()
        value.update(inside)


def _copies(kept: Kept) -> list[tuple[Tensor, Tensor]]:
    """Buffers and states with their values."""
    copies, left = [], COPIED
    held = {id(one): one for one in kept.tensors() if _plain(one)}.values()
    for tensor in sorted(held, key=lambda one: one.nbytes):
        if tensor.nbytes > left:
            break
        copies.append((tensor, tensor.detach().clone()))
        left -= tensor.nbytes
    return copies


def _plain(tensor: Tensor) -> bool:
    strided = type(tensor) is Tensor and tensor.layout is torch.strided
    return strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_inference())
