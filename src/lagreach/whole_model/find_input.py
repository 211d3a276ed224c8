"""Find the module that reads the input: by what it is given, not by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import agreement, captured
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.whole_model.input_module import InputModule, Port, as_given, first_tensor, gradients_at, kind_of
from lagreach.whole_model.running import WholeModel

SHOWN = 8  # modules that an error lists


@dataclass(frozen=True)
class _Call:
    """One call of a module: what it was given, what it returned, and its number among the module's calls."""

    path: str
    module: nn.Module
    number: int
    received: Tensor
    result: Any


def find_input_module(model: WholeModel, sample: Batch, inputs: str | None = None) -> InputModule:
    """Find what reads the input of a model, on a small sample batch; or describe the module that `inputs` names."""
    if inputs is not None:
        return _named(model, sample, inputs)
    calls = _calls(model, sample, [m for _, m in model.module.named_modules() if kind_of(m) is not None])
    x = as_given(model, sample.x)
    ports = _reading(calls, x)
    if x.is_floating_point():
        return _of_numbers(model, sample, ports)
    if ports:
        return InputModule(tuple(ports), _why(model, ports))
    return _behind_tokens(model, calls, x)


def _calls(model: WholeModel, sample: Batch, modules: list[nn.Module]) -> list[_Call]:
    """Run the model on a sample, and list the calls of some modules in their order."""
    paths = {module: path for path, module in model.module.named_modules()}
    order: list[_Call] = []
    counts: dict[nn.Module, int] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        tensor = first_tensor(args, kwargs)
        number = counts.get(module, 0)
        counts[module] = number + 1
        if tensor is not None:
            order.append(_Call(paths[module], module, number, tensor.detach(), result))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            model.output(sample)
    finally:
        for handle in handles:
            handle.remove()
    return order


def _reading(calls: list[_Call], x: Tensor) -> list[Port]:
    """Modules that are given the input itself, each by its first call that is."""
    ports: dict[str, Port] = {}
    steps: dict[str, int] = {}
    for call in calls:
        kind = kind_of(call.module)
        assert kind is not None
        if (kind == "embedding") == x.is_floating_point() or call.path in ports:
            continue
        layout, lead = _layout(call.received, x, kind)
        if layout is not None:
            ports[call.path] = Port(call.path, kind, layout, call.number, lead)
        elif call.number == steps.get(call.path, 0) < x.shape[1] and _same(call.received, x[:, call.number]):
            steps[call.path] = call.number + 1
            if call.number + 1 == x.shape[1]:
                ports[call.path] = Port(call.path, kind, "one step a call")
    return list(ports.values())


def _layout(tensor: Tensor, x: Tensor, kind: str) -> tuple[str | None, int]:
    """How the input lies in what a module is given, and how many zeros are in front; None if it is something else."""
    if kind == "convolution":
        lead = tensor.shape[-1] - x.shape[1]
        turned = (x[..., None] if x.ndim == 2 else x).transpose(1, 2)
        if tensor.ndim == 3 and lead >= 0 and not tensor[..., :lead].any() and _same(tensor[..., lead:], turned):
            return "channels", lead
        return None, 0
    for form, layout in ((x, "sequences first"), (x.transpose(0, 1), "steps first"), (x.flatten(0, 1), "flat")):
        if _same(tensor, form) or (x.is_floating_point() and x.ndim == 2 and _same(tensor, form[..., None])):
            return layout, 0
    return None, 0


def _same(tensor: Tensor, x: Tensor) -> bool:
    return tensor.shape == x.shape and torch.equal(tensor, x.to(tensor))


def _of_numbers(model: WholeModel, sample: Batch, ports: list[Port]) -> InputModule:
    """The modules that read a numeric input, if nothing else reads it; the input itself otherwise."""
    itself = Port(None, "input")
    if not ports:
        return InputModule((itself,), "no linear layer or convolution is given the input as it is")
    if len(ports) > 1 and any(port.kind == "convolution" for port in ports):
        return InputModule((itself,), "several modules read the input")
    if not _complete(model, sample, ports):
        return InputModule((itself,), f"the input is used beside {', '.join(str(p.path) for p in ports)} as well")
    return InputModule(tuple(ports), _why(model, ports))


def _complete(model: WholeModel, sample: Batch, ports: list[Port]) -> bool:
    """Whether all of the gradient at the input comes through these modules."""
    x = as_given(model, sample.x).detach().requires_grad_()
    modules = [model.module.get_submodule(port.path or "") for port in ports]
    with torch.enable_grad(), captured(modules, apart=True) as calls:
        output = model.output(sample.with_x(x.clone()))
        if not output.requires_grad:
            return True  # which is refused when the model is read
        cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        leaves = [
            result
            for module, port in zip(modules, ports, strict=True)
            for number, (*_, result) in enumerate(calls[module])
            if port.layout == "one step a call" or number == port.call
        ]
        whole, *parts = gradients_at([x, *leaves], output, cotangent, keep=True)
        (through,) = torch.autograd.grad(leaves, x, parts, materialize_grads=True)
    tolerance = 10 * agreement(whole.dtype)
    return bool((whole - through).norm() <= tolerance * whole.norm())


def _behind_tokens(model: WholeModel, calls: list[_Call], x: Tensor) -> InputModule:
    """The first layer that is given something else for every sequence and step, where no embedding reads the tokens."""
    for call in calls:
        port = _shaped(call, len(x))
        if port is None or call.received.shape[:2] != x.shape[:2] or torch.equal(call.received[0], call.received[1]):
            continue
        return InputModule(
            (port,),
            "no embedding is given the tokens as they are; this is the first layer that reads something of every step",
        )
    raise UnsupportedError(
        "no module that reads the input was found",
        got=f"tokens of shape {tuple(x.shape)}, {_listed(model)}",
        expected="an embedding, a linear layer or a convolution that is given (sequences, steps, ...)",
        fix='name it: inputs="path.to.module"',
    )


def _named(model: WholeModel, sample: Batch, path: str) -> InputModule:
    """Describe the module that a user names."""
    modules = dict(model.module.named_modules())
    if path not in modules or path == "":
        raise InputError(
            "there is no such module", got=f"inputs={path!r}", expected=_listed(model), fix="give the path of a module"
        )
    calls = _calls(model, sample, [modules[path]])
    if not calls:
        raise InputError("this module is not called", got=f"inputs={path!r}", expected=_listed(model))
    x = as_given(model, sample.x)
    ports = _reading(calls, x) if kind_of(modules[path]) is not None else []
    port = ports[0] if ports else _shaped(calls[0], len(x), len(calls))
    if port is None or (port.kind == "input" and not calls[0].received.is_floating_point()):
        raise UnsupportedError(
            "this module is not given a sequence of inputs",
            got=f"{path} is given {tuple(calls[0].received.shape)}, {calls[0].received.dtype}",
            expected=f"({len(x)}, steps, ...), numbers or tokens",
            fix="name the embedding or the first layer that reads the input",
        )
    return InputModule((port,), "as asked for")


def _shaped(call: _Call, sequences: int, calls: int = 1) -> Port | None:
    """How sequences and steps lie in what a module is given, by its shape alone."""
    kind = kind_of(call.module) or "input"
    shape, features = call.received.shape, int(kind != "embedding")
    if kind == "convolution":
        return Port(call.path, kind, "channels", call.number) if shape[0] == sequences and len(shape) == 3 else None
    if isinstance(call.module, nn.RNNBase) and not call.module.batch_first:
        return Port(call.path, kind, "steps first", call.number)
    if calls > 1 and shape[0] == sequences and len(shape) == 1 + features:
        return Port(call.path, kind, "one step a call")
    if len(shape) >= 2 + features and shape[0] == sequences:
        return Port(call.path, kind, "sequences first", call.number)
    if len(shape) >= 2 + features and shape[1] == sequences:
        return Port(call.path, kind, "steps first", call.number)
    if len(shape) == 1 + features and shape[0] > sequences and shape[0] % sequences == 0:
        return Port(call.path, kind, "flat", call.number)
    return None


def _why(model: WholeModel, ports: list[Port]) -> str:
    names = [f"{port.path} ({type(model.module.get_submodule(port.path or '')).__name__})" for port in ports]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} given the input"


def _listed(model: WholeModel) -> str:
    candidates = [path for path, module in model.module.named_modules() if kind_of(module) is not None]
    more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
    return (
        f"one of {', '.join(candidates[:SHOWN])}{more}" if candidates else "no embedding, linear layer or convolution"
    )
