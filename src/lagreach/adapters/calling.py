"""Calling a user's model without leaving traces: capture what a layer is given, or replace what it returns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lagreach._util.full_precision import without_short_cut
from lagreach.adapters.kept import Kept, named_states, remembered, reset_call
from lagreach.data.batch import Batch, one_series, or_one_series
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
    kind = reference.dtype if batch.x.is_floating_point() else batch.x.dtype
    x = batch.x.to(reference.device, kind, copy=True)  # some models change it in place
    if batch.state is not None:
        return model(x, _layers_first(batch.state, reference))
    known = _parameters(model)
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
        return value.to(reference.device, reference.dtype if value.is_floating_point() else value.dtype, copy=True)

    if isinstance(batch.others, tuple):
        return model(x, *(placed(value) for value in batch.others))
    known = _parameters(model)
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


def first_call(model: nn.Module, sample: Batch, call: Call) -> Any:
    """Run a model for the first time: if it fails, then because the data do not fit it."""
    try:
        with _refusing_one_series(model, sample.x):
            return call(model, sample)
    except LagreachError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's model raises
        fix = "see the error above, or pass call=lambda model, batch: ... if the model takes something else"
        fix += or_one_series(sample.x)
        held = Kept(model).held()
        if held:
            fix += f"; if {named_states(held)} is a state left by an earlier call, {reset_call(held)}"
        raise InputError(
            "the model does not run on the data",
            got=f"{type(error).__name__}: {error}, for x of shape {tuple(sample.x.shape)} and {sample.x.dtype}",
            expected="data for which model(x) works, sequences first",
            fix=fix,
        ) from error


@contextmanager
def _refusing_one_series(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Refuse inputs without an axis of time: torch's recurrent layers would take the sequences of a batch for steps."""

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim == 2 and len(args[0]) == len(x):
            raise one_series(f"nn.{type(layer).__name__}", x.shape[1])

    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    handles = [layer.register_forward_pre_hook(look) for layer in layers if x.ndim == 2 and x.is_floating_point()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layers_first(state: Any, reference: Tensor) -> Any:
    """Bring states from (seq, layer, unit) to torch's (layer, seq, unit)."""
    if isinstance(state, tuple):
        return tuple(_layers_first(part, reference) for part in state)
    return state.to(reference).transpose(0, 1).contiguous()


def _takes_lengths(model: nn.Module) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in _parameters(model).values()) >= 2


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What ``forward`` takes."""
    kind: Any = type(model)  # which can be hashed, whatever its stubs say
    known = None if "forward" in vars(model) else _parameters_of_class(kind)
    return inspect.signature(model.forward).parameters if known is None else known


@lru_cache(maxsize=64)  # asking takes as long as a small layer
def _parameters_of_class(kind: Any) -> Mapping[str, inspect.Parameter] | None:
    """What ``forward`` of a class takes beside the module; None where it is not a plain function."""
    function = inspect.getattr_static(kind, "forward")
    if not inspect.isfunction(function):
        return None
    return dict(list(inspect.signature(function).parameters.items())[1:])


@contextmanager
def untouched(model: nn.Module) -> Iterator[Kept]:
    """Evaluation mode inside; modes, random state and what modules keep as they were afterwards, also after an exception.

    Inside, the value tells what modules keep by then that they did not keep before.
    """
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(), without_short_cut(), remembered(model) as kept, warnings.catch_warnings():
        # said of checkpoints in runs that ask for no gradients
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
        # said by cuDNN of weights that were moved: they are compacted at every call, which is what is meant
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        model.eval()
        try:
            yield kept
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Weights ask for no gradients inside, so that autograd keeps no more than it needs for those of other things."""
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_()


@contextmanager
def captured(
    modules: list[nn.Module], *, apart: bool = False
) -> Iterator[dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any], Any]]]]:
    """Record the arguments and the result of every call of some modules.

    Models that work in place change results afterwards; not if copies are handed on, so that these are kept `apart`.
    """
    calls: dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any], Any]]] = {module: [] for module in modules}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        calls[module].append((args, kwargs, result))
        return result.clone() if apart and isinstance(result, Tensor) else None

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module return something else; its own forward is back afterwards."""
    wrapped = vars(module).get("forward")  # some libraries put a wrapped forward on the instance
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if wrapped is not None:
            module.forward = wrapped


def as_output(returned: Any, batch: Batch, time: int) -> Tensor:
    """Bring what a model returns to (seq, position, out): a position per step, or one for the whole sequence."""
    output = returned
    if isinstance(output, dict):
        output = output.get("logits", next(iter(output.values()), None))
    packed = nn.utils.rnn.PackedSequence  # itself a tuple
    while isinstance(output, (tuple, list)) and output and not isinstance(output, packed):
        output = output[0]
    if isinstance(output, packed):
        output = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=time)[0]
    if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != len(batch):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(returned).__name__
        raise InputError(
            "the model's output does not have the sequences on its first axis",
            got=got,
            expected=f"({len(batch)}, time, out), ({len(batch)}, out) or ({len(batch)},)",
            fix=f"pass call=lambda model, batch: ... that returns such a tensor{or_one_series(batch.x)}",
        )
    if output.ndim == 1:
        return output[:, None, None]
    if output.ndim == 2:
        if not _one_a_step(output, batch, time):
            return output[:, None]
        output = output[..., None]
    if output.ndim > 3:
        raise InputError(
            "the model's output has too many axes",
            got=f"shape {tuple(output.shape)}",
            expected="(seq, time, out) at most",
            fix="pass call=lambda model, batch: model(batch.x).flatten(2), and targets y.flatten(2) if they have as many axes",
        )
    if 1 < output.shape[1] < time and batch.lengths is not None:  # a packed batch is unpacked to its longest sequence
        output = nn.functional.pad(output, (0, 0, 0, time - output.shape[1]))
    return output


def _one_a_step(output: Tensor, batch: Batch, time: int) -> bool:
    """Whether outputs (seq, position) may be a number for each step, as the targets are, with or without an axis of one."""
    targets, positions = batch.y.shape[1:], output.shape[1]
    if targets[:1] != (time,) or targets.numel() != time:
        return False
    return positions == time or (batch.lengths is not None and positions == int(batch.lengths.max()))  # unpacked


def agreement(dtype: torch.dtype) -> float:
    """How closely two ways to the same output must agree; autocast models compute in half precision."""
    return {torch.float64: 1e-8, torch.float32: 1e-4}.get(dtype, 5e-2)


def refuse_other_objects(model: object) -> None:
    """Only torch modules can be run and differentiated."""
    if not isinstance(model, nn.Module):
        raise InputError(
            "this is not a model",
            got=type(model).__name__,
            expected="a torch.nn.Module",
            fix="pass the module that a wrapper holds, such as net.module_",
        )


def refuse_batch_norm(model: nn.Module) -> None:
    """BatchNorm in training mode couples the sequences of a batch, so no sequence has a gradient of its own."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if module.running_mean is None:
            raise UnsupportedError(
                "BatchNorm without running statistics couples the sequences of a batch, in evaluation mode too",
                got=f"{name}: {type(module).__name__}, track_running_stats=False",
                fix="train it with track_running_stats=True, or use LayerNorm, GroupNorm or InstanceNorm",
            )
        if module.training:
            raise UnsupportedError(
                "BatchNorm in training mode couples the sequences of a batch",
                got=f"{name}: {type(module).__name__}, training",
                fix="call model.eval() first",
            )


def refuse_scripted(model: nn.Module) -> None:
    """TorchScript has no hooks and no forward of its own, so that nothing inside can be looked at."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                "TorchScript modules cannot be looked into",
                got=f"{name or 'the model'}: {type(module).__name__}",
                expected="modules of Python code",
                fix="pass the module as it was before torch.jit.script or torch.jit.trace, with load_state_dict for its weights",
            )


def refuse_without_values(model: nn.Module) -> None:
    """Refuse weights that cannot be computed with: on the meta device, or made where autograd may not see them."""
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(weight):
            raise UnsupportedError(
                "the model has lazy layers, whose weights are not made yet",
                got=name,
                expected="weights with values",
                fix="run the model once on a batch, model(x), before",
            )
        if weight.is_meta:
            raise UnsupportedError(
                "the weights of the model have no values",
                got=f"{name} on the meta device",
                expected="weights on a processor or a GPU",
                fix='build the model without torch.device("meta"), or call model.to_empty(device="cpu") and load its weights',
            )
        if weight.is_inference():
            raise UnsupportedError(
                "the weights of the model were made inside torch.inference_mode(), and can have no gradients",
                got=name,
                fix="build the model outside of it, or pass copy.deepcopy(model) made outside of it",
            )


def refuse_inference_mode() -> None:
    """Inside it nothing has a gradient, and nothing made there ever will."""
    if torch.is_inference_mode_enabled():
        raise UnsupportedError(
            "there are no gradients inside torch.inference_mode()",
            got="a call inside it",
            expected="a call outside of it; torch.no_grad() does no harm",
            fix="leave it first, or call inside with torch.inference_mode(False):",
        )
