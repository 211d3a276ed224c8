"""Run a user's model as a whole and leave it as it was.

Wrappers are taken off (`torch.compile`, `DataParallel`, `DistributedDataParallel`), so that the modules inside can be
reached; what is compiled runs as it is written. The model is in evaluation mode, and its weights ask for no gradients:
only the input module's output does, which keeps memory to what the way back needs. Layers that were asked to compute their
activations anew on the way back (`gradient_checkpointing_enable`) do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lagreach._util.full_precision import without_cudnn
from lagreach.adapters.calling import Call, as_output, default_call, frozen, replaced, untouched
from lagreach.data.batch import Batch
from lagreach.errors import InputError


@dataclass(frozen=True)
class WholeModel:
    """A model without its wrappers, and how it is called on a batch."""

    module: nn.Module
    call: Call

    @property
    def device(self) -> torch.device:
        """Where the first weight is; the processor for a model without weights."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the first weight that has one."""
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    def output(self, batch: Batch) -> Float[Tensor, "seq position out"]:
        """Run the model: a position per step, or fewer; half precision is widened, so that losses are not rounded to it."""
        main = _main_part(self.call(self.module, batch))
        if isinstance(main, Tensor) and main.ndim > 3:  # pictures, graphs: everything behind the steps is one output
            main = main.flatten(2)
        output = as_output(main, batch, batch.x.shape[1] if batch.x.ndim > 1 else 1)
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def whole_model(model: nn.Module, call: Call | None = None) -> WholeModel:
    """Take a model's wrappers off, and say how to call it."""
    if not isinstance(model, nn.Module):
        raise InputError(
            "lags of the whole model are for torch modules",
            got=type(model).__name__,
            expected="a torch.nn.Module",
            fix='leave lags_of out, or pass lags_of="layers"',
        )
    return WholeModel(unwrapped(model), call or default_call)


def unwrapped(model: nn.Module) -> nn.Module:
    """Take off `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def _main_part(returned: Any) -> Any:
    """The tensor that a dict or tuple of outputs is about, by the rules of `as_output`; anything else as it is."""
    if isinstance(returned, dict):
        returned = returned.get("logits", next(iter(returned.values()), None))
    while isinstance(returned, (tuple, list)) and returned and not isinstance(returned, nn.utils.rnn.PackedSequence):
        returned = returned[0]
    return returned


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, frozen weights, gradients on, nothing compiled; everything as it was afterwards, also after an error."""
    with ExitStack() as inside:
        inside.enter_context(untouched(model))
        inside.enter_context(torch.inference_mode(False))
        inside.enter_context(torch.enable_grad())
        if any(_compiled(part) for part in model.modules()) and hasattr(torch.compiler, "set_stance"):
            inside.enter_context(torch.compiler.set_stance("force_eager"))
        if any(isinstance(part, nn.RNNBase) for part in model.modules()):
            # cuDNN's recurrent layers have no way back in evaluation mode
            inside.enter_context(without_cudnn())
        for part in model.modules():
            if _checkpointed(part):
                inside.enter_context(replaced(part, partial(checkpoint, part.forward, use_reentrant=False)))
        inside.enter_context(frozen(model))
        yield


def _compiled(part: nn.Module) -> bool:
    return hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None


def _checkpointed(part: nn.Module) -> bool:
    """Whether a layer of the transformers library was asked not to keep its activations; it does so in training mode only."""
    asked = getattr(part, "gradient_checkpointing", False) is True
    return asked and any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(part).__mro__)
