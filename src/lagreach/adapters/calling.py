"""Calling a user's model without leaving traces: capture what a layer is given, or replace what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.data.batch import Batch
from lagreach.errors import InputError, LagreachError, UnsupportedError

Call = Callable[[nn.Module, Batch], Any]


def default_call(model: nn.Module, batch: Batch) -> Any:
    """Run ``model(x)``, with what the data bring beside it.

    A state is handed on as ``model(x, state)``; lengths as a mask if forward takes an `attention_mask`, or as
    ``model(x, lengths)`` if it takes two arguments.
    """
    reference = next(
        (p for p in model.parameters() if p.is_floating_point()), torch.empty(0)
    )  # complex weights say nothing
    x = batch.x.to(reference.device)
    if x.is_floating_point():
        x = x.to(reference.dtype)
    if batch.state is not None:
        return model(x, _layers_first(batch.state, reference))
    known = inspect.signature(model.forward).parameters
    if batch.others is not None:
        return _with_others(model, x, batch, reference)
    options = _known_options(batch, known, x)
    if options:
        return model(x, **options)
    if batch.lengths is not None and _takes_lengths(model):
        return model(x, batch.lengths)
    return model(x)


def _with_others(model: nn.Module, x: Tensor, batch: Batch, reference: Tensor) -> Any:
    """Hand over all inputs: one after the other, by their names, or as the dict that the model takes as its one argument."""

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(reference.device, reference.dtype if value.is_floating_point() else value.dtype)

    if isinstance(batch.others, tuple):
        return model(x, *(placed(value) for value in batch.others))
    known = inspect.signature(model.forward).parameters
    named = {batch.name: x} | {name: placed(value) for name, value in batch.others.items()}
    if batch.name not in known and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        return model(named)
    return model(**_known_options(batch, known, x) | named)


def _known_options(batch: Batch, known: Mapping[str, inspect.Parameter], x: Tensor) -> dict[str, Any]:
    """What libraries' models are told beside their inputs: no cache, which would keep states for later; where padding is."""
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in known else {}
    if batch.lengths is not None and "attention_mask" in known:
        steps = torch.arange(x.shape[1], device=x.device)
        options["attention_mask"] = (steps < batch.lengths.to(x.device)[:, None]).long()
    return options


def first_call(model: nn.Module, sample: Batch, call: Call) -> None:
    """Run a model for the first time: if it fails, then because the data do not fit it."""
    try:
        call(model, sample)
    except LagreachError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise InputError(
            "the model does not run on the data",
            got=f"{type(error).__name__}: {error}, for x of shape {tuple(sample.x.shape)} and {sample.x.dtype}",
            expected="data for which model(x) works, sequences first",
            fix="see the error above, or pass call=lambda model, batch: ... if the model takes something else",
        ) from error


def _layers_first(state: Any, reference: Tensor) -> Any:
    """Bring states from (seq, layer, unit) to torch's (layer, seq, unit)."""
    if isinstance(state, tuple):
        return tuple(_layers_first(part, reference) for part in state)
    return state.to(reference).transpose(0, 1).contiguous()


def _takes_lengths(model: nn.Module) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(model.forward).parameters.values()) >= 2


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; modes and random state as they were afterwards, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng():
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def captured(modules: list[nn.Module]) -> Iterator[dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any], Any]]]]:
    """Record the arguments and the result of every call of some modules."""
    calls: dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any], Any]]] = {module: [] for module in modules}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        calls[module].append((args, kwargs, result))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module return something else; its own forward is back afterwards."""
    own = vars(module).get("forward")  # some libraries put a wrapped forward on the instance
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def as_output(found: Any, batch: Batch, time: int) -> Tensor:
    """Bring what a model returns to (seq, position, out): a position per step, or one for the whole sequence."""
    output = found
    if isinstance(output, dict):
        output = output.get("logits", next(iter(output.values()), None))
    packed = nn.utils.rnn.PackedSequence  # itself a tuple
    while isinstance(output, (tuple, list)) and output and not isinstance(output, packed):
        output = output[0]
    if isinstance(output, packed):
        output = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=time)[0]
    if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != len(batch):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(found).__name__
        raise InputError(
            "the model's output does not have the sequences on its first axis",
            got=got,
            expected=f"({len(batch)}, time, out), ({len(batch)}, out) or ({len(batch)},)",
            fix="pass call=lambda model, batch: ... that returns such a tensor",
        )
    if output.ndim == 1:
        return output[:, None, None]
    if output.ndim == 2:
        steps = batch.y.ndim == 2 and batch.y.is_floating_point() and tuple(batch.y.shape) == tuple(output.shape)
        return output[..., None] if steps and output.shape[1] == time else output[:, None]
    if output.ndim > 3:
        raise InputError(
            "the model's output has too many axes", got=f"shape {tuple(output.shape)}", expected="at most 3"
        )
    if 1 < output.shape[1] < time and batch.lengths is not None:  # a packed batch is unpacked to its longest sequence
        output = nn.functional.pad(output, (0, 0, 0, time - output.shape[1]))
    return output


def agreement(dtype: torch.dtype) -> float:
    """How closely two ways to the same output must agree; autocast models compute in half precision."""
    return {torch.float64: 1e-8, torch.float32: 1e-4}.get(dtype, 5e-2)


def refuse_batch_norm(model: nn.Module) -> None:
    """BatchNorm in training mode couples the sequences of a batch, so no sequence has a gradient of its own."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise UnsupportedError(
                "BatchNorm in training mode couples the sequences of a batch",
                got=f"{name}: {type(module).__name__}, training",
                fix="call model.eval() first",
            )


def refuse_coupling(model: nn.Module, call: Call, batch: Batch, time: int) -> None:
    """Refuse models whose output for a sequence depends on the others, or differs from run to run."""
    with torch.no_grad():
        whole, again = (as_output(call(model, batch), batch, time) for _ in range(2))
        one = batch.select(slice(0, 1))
        alone = as_output(call(model, one), one, time)
    if not torch.equal(whole, again):
        raise UnsupportedError(
            "two runs of the model on the same input differ",
            got=f"a difference of {(whole - again).abs().max().item():.3g}",
            fix="remove what is random in evaluation mode, or set torch.use_deterministic_algorithms(True)",
        )
    tolerance = agreement(whole.dtype)
    width = min(whole.shape[1], alone.shape[1])
    if not torch.allclose(whole[:1, :width], alone[:, :width], rtol=tolerance, atol=tolerance):
        raise UnsupportedError(
            "the output of a sequence depends on the other sequences in its batch",
            got=f"a difference of {(whole[:1, :width] - alone[:, :width]).abs().max().item():.3g}",
            fix="lag gradients are defined per sequence; take out what mixes sequences",
        )
