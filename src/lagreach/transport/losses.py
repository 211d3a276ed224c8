"""Losses as users name them: by a word, as a module or function of torch, or as a function of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lagreach.errors import InputError, LagreachError

Loss = str | Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES = ("mse", "cross_entropy")
IGNORE_INDEX = -100  # torch's convention for class targets that do not count
_FORM = "a function (output, y, mask) -> (seq,), one value for each sequence"
_EXAMPLE = "def loss(output, y, mask): return ((output - y).abs().mean(-1) * mask).sum(1) / mask.sum(1)"
_OF_CLASSES = (
    'def loss(output, y, mask): return (cross_entropy(output.mT, y, reduction="none") * mask).sum(1) / mask.sum(1)'
)
_OF_TWO_CLASSES = (
    'give the model two outputs and pass loss="cross_entropy" with y.long(); or, except to a forecast, '
    "def loss(output, y, mask): return (binary_cross_entropy_with_logits(output, y.reshape(output.shape), "
    'reduction="none").mean(-1) * mask).sum(1) / mask.sum(1)'
)
_OF_TORCH: tuple[tuple[Any, str], ...] = (
    (nn.MSELoss, "mse"),
    (nn.CrossEntropyLoss, "cross_entropy"),
    (functional.mse_loss, "mse"),
    (functional.cross_entropy, "cross_entropy"),
)
_OPTIONS = {"weight": None, "reduction": "mean", "label_smoothing": 0.0, "ignore_index": IGNORE_INDEX}  # as they come


def as_loss(loss: Any) -> Loss:
    """The word for a loss, also for torch's modules and functions that mean the same; functions of one's own stay.

    >>> as_loss(nn.MSELoss()), as_loss(functional.cross_entropy), as_loss("mse")
    ('mse', 'cross_entropy', 'mse')
    """
    if isinstance(loss, str) and loss in LOSSES:
        return loss
    kind = loss if isinstance(loss, type) or not isinstance(loss, nn.Module) else type(loss)
    word = next((word for known, word in _OF_TORCH if known is kind), None)
    if word is not None:
        _refuse_options(loss, word)
        return word
    if isinstance(kind, type) and kind.__module__ == nn.modules.loss.__name__:
        raise InputError(
            "this loss of torch gives one value for all sequences, or one for each number",
            got=repr(loss) if isinstance(loss, nn.Module) else kind.__name__,
            expected=f'"mse", "cross_entropy", or {_FORM}',
            fix=_OF_TWO_CLASSES if kind is nn.BCEWithLogitsLoss else f"write it down, such as {_EXAMPLE}",
        )
    if isinstance(loss, str) or not callable(loss):
        raise InputError("unknown loss", got=repr(loss), expected=f'"mse", "cross_entropy" or {_FORM}')
    return loss


def _refuse_options(loss: Any, word: str) -> None:
    """Refuse modules of torch that are not as they come: what they are asked for would be lost."""
    options = vars(loss) | dict(getattr(loss, "_buffers", {})) if isinstance(loss, nn.Module) else {}
    for name, usual in _OPTIONS.items():
        value = options.get(name, usual)
        if value is usual or (not isinstance(value, Tensor) and value == usual):
            continue
        if name == "ignore_index":
            fix = f"pass y.masked_fill(y == {value}, {IGNORE_INDEX}): targets of {IGNORE_INDEX} do not count"
        else:
            example = _OF_CLASSES if word == "cross_entropy" else _EXAMPLE
            fix = f'pass loss="{word}" to leave it out, or {example}, with your own in its place'
        raise InputError(
            f"an option of {type(loss).__name__} would be lost",
            got=f"{name}={value if not isinstance(value, Tensor) else 'a tensor'}",
            expected=f'{name}={usual}, as "{word}" has it, or {_FORM}',
            fix=fix,
        )


def losses_of(loss: Callable[[Tensor, Tensor, Tensor], Tensor], output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Call a user's own loss function: one value for each sequence, or a sentence that says what is wrong."""
    versions = output._version, y._version
    try:
        value = loss(output, y, mask)
    except (LagreachError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's function raises
        shapes = ", ".join(
            f"{name} {tuple(part.shape)}" for name, part in (("output", output), ("y", y), ("mask", mask))
        )
        raise InputError(
            "the loss function does not run on the outputs",
            got=f"{type(error).__name__}: {error}, for {shapes}",
            expected=_FORM,
            fix=f"see the error above; a loss looks like {_EXAMPLE}",
        ) from error
    if not isinstance(value, Tensor) or value.shape != output.shape[:1]:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            "a loss function must return one value per sequence",
            got=got,
            expected=f"shape ({output.shape[0]},)",
            fix=f"reduce over time and outputs, but not over sequences: {_EXAMPLE}",
        )
    _check_losses(value, output, changed=(output._version, y._version) != versions)
    return value


def _check_losses(value: Tensor, output: Tensor, *, changed: bool) -> None:
    """Refuse losses that say nothing of outputs, or change them."""
    wrong = None
    if changed:
        wrong = "changes its arguments in place", "operations such as (output - y), not output.sub_(y)"
    elif torch.is_grad_enabled() and output.requires_grad and value.grad_fn is None:
        wrong = "does not depend on the outputs", "no detach(), no_grad or numpy inside, and not a constant"
    elif not bool(value.isfinite().all()) and bool(output.isfinite().all()):
        wrong = "is not finite, though all outputs are", "no division by zero, and no logarithm or root of it"
    if wrong is not None:
        raise InputError(
            f"the loss function {wrong[0]}", got=_shown(value), expected=wrong[1], fix=f"a loss looks like {_EXAMPLE}"
        )


def _shown(value: Tensor) -> str:
    return f"{[float(one) for one in value.detach()[:3]]} for the first sequences"
