"""Look at a model in the middle of its training and leave no trace: the weights will be the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from lagreach._util.settings_of_torch import flags, random_states


@contextmanager
def training_untouched(model: nn.Module, data: object = None) -> Iterator[None]:
    """Evaluation mode with gradients on and autocast off inside; everything as it was afterwards, also after an error.

    Put back are: the random states of torch (on all devices in use), numpy and python, and of the generators that a data
    loader owns; the mode of every module; gradients that were waiting for a step; buffers; cuDNN's flags, deterministic
    algorithms, the default type and the number of threads.

    Examples
    --------
    >>> layer = nn.Dropout(0.5)
    >>> before = torch.get_rng_state()
    >>> with training_untouched(layer):
    ...     drawn, mode = torch.rand(3), layer.training
    >>> mode, layer.training, torch.equal(before, torch.get_rng_state())
    (False, True, True)
    """
    put_back = [_random_states(data), _modules(model), flags()]
    with ExitStack() as inside:
        for restore in put_back:
            inside.callback(restore)
        inside.enter_context(torch.inference_mode(False))
        inside.enter_context(torch.enable_grad())
        inside.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            inside.enter_context(torch.autocast("cuda", enabled=False))
        model.eval()
        for weight in model.parameters():
            weight.grad = None  # those that are waiting are kept aside
        yield


def _random_states(data: object) -> Callable[[], None]:
    put_back = random_states()
    before = [(generator, generator.get_state()) for generator in _generators(data)]

    def restore() -> None:
        put_back()
        for generator, state in before:
            generator.set_state(state)

    return restore


def _generators(data: object) -> Iterator[torch.Generator]:
    """Generators of a data loader and of its samplers."""
    for name in ("generator", "sampler", "batch_sampler"):
        part = getattr(data, name, None)
        if isinstance(part, torch.Generator):
            yield part
        elif part is not None:
            yield from _generators(part)


def _modules(model: nn.Module) -> Callable[[], None]:
    modes = [(module, module.training) for module in model.modules()]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def restore() -> None:
        for module, training in modes:
            module.training = training
        for weight, grad in grads:
            weight.grad = grad
        for module, name, buffer, content in buffers:
            module._buffers[name] = buffer
            if not torch.equal(buffer, content):
                with torch.no_grad():
                    buffer.copy_(content)

    return restore
