"""The module that reads the input, and a run of the model with its output cut off as a leaf.

A linear layer or an embedding adds ``W x_s`` to what the model computes from step s. With the layer's output ``e_s`` as a
leaf, the part of the gradient of W that comes from step s is the outer product of ``dL/de_s`` and ``x_s``: one backward
pass gives it for every step. A convolution over time does so with one such product for every tap. Where something else
reads the input, the input itself is the leaf, and the weights are those of an identity layer in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.whole_model.running import WholeModel

# How sequences and steps lie in what a module is given.


@dataclass(frozen=True)
class Port:
    """One module that reads the input.

    `kind` is "embedding", "linear", "convolution" or "input" (its own input is the leaf; ``path=None`` is the model's).
    `call` is the number of the call that reads the input, for a module that is called several times; `lead` counts
    the zeros that a causal convolution has in front.
    """

    path: str | None
    kind: str
    layout: str = "sequences first"
    call: int = 0
    lead: int = 0


@dataclass(frozen=True)
class InputModule:
    """What reads the input: one or several modules that are given the same, and why it was chosen."""

    ports: tuple[Port, ...]
    why: str
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Path of the modules, or what stands for them."""
        return ", ".join("the model's input" if port.path is None else port.path for port in self.ports)

    @property
    def reads_tokens(self) -> bool:
        """Whether inputs are numbers of rows of a table."""
        return self.ports[0].kind == "embedding"


class Reading:
    """One run of a model: what the input modules were given, and the leaves from which on the model ran."""

    def __init__(
        self, model: WholeModel, source: InputModule, sequences: int, exchange: Exchange | None = None
    ) -> None:
        self.source = source
        self.sequences = sequences
        self.exchange = exchange
        self._modules = [None if p.path is None else model.module.get_submodule(p.path) for p in source.ports]
        self._received: list[list[Tensor]] = [[] for _ in source.ports]
        self._leaves: list[list[Tensor]] = [[] for _ in source.ports]

    @property
    def inputs(self) -> Tensor:
        """What was read: (seq, time) numbers of tokens, or (seq, time, input)."""
        port = self.source.ports[0]
        received = self._received[0]
        read = torch.stack(received, dim=1) if port.layout == "one step a call" else self._by_step(port, received[0])
        if port.kind == "embedding":
            return read
        return read[..., None] if read.ndim == 2 else read.flatten(2)

    @property
    def width(self) -> int:
        """Numbers that the input modules return at a step."""
        leaves = [leaf for calls in self._leaves for leaf in calls]
        return -(-sum(leaf.numel() for leaf in leaves) // (self.sequences * self.inputs.shape[1]))

    def pull(self, picked: Tensor, cotangent: Tensor, *, keep: bool = True) -> Float[Tensor, "seq time width"]:
        """Gradient at what the input modules return at every step, of some outputs weighted by a cotangent.

        Of a convolution, one for each tap of the input at that step; of several modules, side by side. `keep` the graph
        for another way back.
        """
        leaves = [leaf for module_leaves in self._leaves for leaf in module_leaves]
        with _hooks(self, again=True):
            gradients = iter(gradients_at(leaves, picked, cotangent, keep=keep))
        parts = []
        for port, module, module_leaves in zip(self.source.ports, self._modules, self._leaves, strict=True):
            taken = [next(gradients) for _ in module_leaves]
            if port.kind == "convolution":
                parts.append(_by_tap(port, module, taken[0], self.inputs.shape[1]))
            elif port.layout == "one step a call":
                parts.append(torch.stack(taken, dim=1).flatten(2))
            else:
                gradient = self._by_step(port, taken[0])
                parts.append(gradient[..., None] if gradient.ndim == 2 else gradient.flatten(2))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return self._without_padding(joined)

    def record(self, number: int, tensor: Tensor, leaf: Tensor) -> None:
        """Keep what the module with this number was given in a call, and its leaf."""
        self._received[number].append(tensor.detach())
        self._leaves[number].append(leaf)

    @property
    def ports(self) -> list[tuple[int, Port, nn.Module]]:
        """Modules that read the input, with their numbers; none where the model's own input is the leaf."""
        both = enumerate(zip(self.source.ports, self._modules, strict=True))
        return [(number, port, module) for number, (port, module) in both if module is not None]

    def refuse_unknown_call(self, number: int) -> None:
        """A checkpoint calls a module once more on the way back; of several calls it is not known which one that is."""
        if len(self._received[number]) > 1 or self.source.ports[number].call:
            raise UnsupportedError(
                "a module that reads the input is called several times inside torch.utils.checkpoint",
                got=self.source.name,
                expected="at most one call of it that is made anew on the way back",
                fix="leave the checkpoint out while lags are measured: the model's outputs and gradients stay the same",
            )

    def check(self) -> None:
        """Refuse a run in which an input module was not called, or was called at other steps."""
        for port, received in zip(self.source.ports, self._received, strict=True):
            if not received:
                raise InputError(
                    "the module that reads the input was not called", got=port.path, fix='pass inputs="path.to.module"'
                )

    def _by_step(self, port: Port, values: Tensor) -> Tensor:
        return by_step(values, port, self.sequences)

    def _without_padding(self, gradients: Tensor) -> Tensor:
        """Rows of an embedding that stand for padding never learn."""
        module = self._modules[0]
        padding = getattr(module, "padding_idx", None) if self.source.reads_tokens else None
        if padding is None:
            return gradients
        return gradients.masked_fill((self.inputs == padding)[..., None], 0.0)


def gradients_at(tensors: list[Tensor], of: Tensor, cotangent: Tensor, *, keep: bool) -> list[Tensor]:
    """Gradients at some tensors; by a plain backward pass where the model's own checkpoints allow nothing else."""
    try:
        return list(torch.autograd.grad(of, tensors, cotangent, retain_graph=keep, materialize_grads=True))
    except RuntimeError as error:
        if not any(told in str(error) for told in ("use_reentrant=True", "Checkpointing is not compatible")):
            raise
    for tensor in tensors:
        tensor.retain_grad()
        tensor.grad = None
    torch.autograd.backward(of, cotangent, retain_graph=keep)
    arrived = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return arrived


def by_step(values: Tensor, port: Port, sequences: int) -> Tensor:
    """Bring what a module is given or returns to (seq, time, ...)."""
    if port.layout == "steps first":
        return values.transpose(0, 1)
    if port.layout == "flat":
        return values.unflatten(0, (sequences, -1))
    if port.layout == "channels":
        return values.transpose(1, 2)[:, port.lead :]
    return values


def _by_tap(port: Port, module: nn.Module | None, gradient: Tensor, time: int) -> Tensor:
    """Gradient at a convolution's output (seq, channel, position), by the step of the input that each tap read."""
    assert isinstance(module, nn.Conv1d)
    taps, (dilation,) = module.kernel_size[0], module.dilation
    pad = _padding(module)
    position = torch.arange(time, device=gradient.device)[:, None] + port.lead + pad
    position = position - dilation * torch.arange(taps, device=gradient.device)  # (time, tap)
    inside = (position >= 0) & (position < gradient.shape[2])
    taken = gradient[:, :, position.clamp(0, gradient.shape[2] - 1)] * inside  # (seq, channel, time, tap)
    return taken.permute(0, 2, 3, 1).flatten(2)


def _padding(module: nn.Conv1d) -> int:
    if isinstance(module.padding, str):
        return 0 if module.padding == "valid" else module.dilation[0] * (module.kernel_size[0] - 1) // 2
    return int(module.padding[0])


def kind_of(module: nn.Module) -> str | None:
    """What a module does with its input, as far as it is a product with weights; None for anything else."""
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, nn.Linear) or (type(module).__name__ == "Conv1D" and hasattr(module, "nf")):
        return "linear"  # transformers' Conv1D is a linear layer with its weight turned round
    if isinstance(module, nn.Conv1d) and module.stride == (1,) and module.groups == 1:
        even = module.padding == "same" and module.dilation[0] * (module.kernel_size[0] - 1) % 2
        return "convolution" if module.padding_mode == "zeros" and not even else None
    return None


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor among the arguments of a call."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


@dataclass(frozen=True)
class PartnerSteps:
    """An exchange of inputs within pairs: rows 2i and 2i + 1 are partners.

    `steps` (seq, time) is the step of its partner's input that a sequence reads instead of its own, -1 for its own.
    """

    steps: Tensor

    def apply(self, values: Tensor, first: int) -> Tensor:
        """Change inputs (seq, step, ...) that begin with a step; one step alone must meet the same step of its partner."""
        count = values.shape[1]
        here = self.steps[:, first : first + count].to(values.device)
        if count < self.steps.shape[1]:
            if bool(((here >= 0) & (here != first)).any()):
                raise UnsupportedError(
                    "inputs of sequences of different lengths cannot be exchanged in a module that sees one step at a time",
                    got="a module that is called once for each step",
                    fix="pass sequences of one length, or name an input module that reads whole sequences",
                )
            here = torch.where(here >= 0, 0, -1)
        row = torch.arange(len(values), device=values.device)[:, None]
        chosen = (here >= 0).reshape(*here.shape, *[1] * (values.ndim - 2))
        return torch.where(chosen, values[row ^ 1, here.clamp(min=0)], values)


@dataclass(frozen=True)
class OtherInputs:
    """Inputs (seq, time, input) that take the place of a sequence's own at the chosen steps (seq, time)."""

    values: Tensor
    chosen: Tensor

    def apply(self, values: Tensor, first: int) -> Tensor:
        """Change inputs (seq, step, ...) that begin with a step."""
        here = slice(first, first + values.shape[1])
        chosen = self.chosen[:, here].reshape(*values.shape[:2], *[1] * (values.ndim - 2)).to(values.device)
        return torch.where(chosen, self.values[:, here].reshape(values.shape).to(values), values)


Exchange = PartnerSteps | OtherInputs


def read(
    model: WholeModel, source: InputModule, batch: Batch, *, exchange: Exchange | None = None
) -> tuple[Reading, Float[Tensor, "seq position out"]]:
    """Run a model on a batch with the output of what reads its input cut off; the hooks are gone afterwards.

    With an `exchange`, sequences read other inputs than their own.
    """
    reading = Reading(model, source, len(batch), exchange)
    if source.ports[0].path is None:
        x = as_given(model, batch.x)
        if exchange is not None:
            x = exchange.apply(x, 0)
        leaf = x.detach().requires_grad_()
        reading.record(0, leaf, leaf)
        output = model.output(batch.with_x(leaf.clone()))
    else:
        with _hooks(reading):
            output = model.output(batch)
    reading.check()
    if not output.requires_grad:
        raise UnsupportedError(
            "no gradient gets from the model's output to its input",
            got=f"input read by {source.name}",
            expected="a model that is differentiable in its inputs",
            fix="is there a detach(), a no_grad() or a rounding on the way? Or pass inputs='path.to.module' behind it",
        )
    return reading, output


def as_given(model: WholeModel, x: Tensor) -> Tensor:
    """Inputs on the model's device, real numbers in its type."""
    return x.to(model.device, model.dtype if x.is_floating_point() else x.dtype)


@contextmanager
def _hooks(reading: Reading, *, again: bool = False) -> Iterator[None]:
    """Cut the input modules' outputs off as leaves while the model runs, or what its checkpoints run `again` on the way back."""
    handles = []
    calls = [0] * len(reading.source.ports)
    exchange = reading.exchange

    def record(number: int, tensor: Tensor, leaf: Tensor) -> None:
        if not again:
            reading.record(number, tensor, leaf)

    def counts(number: int, port: Port) -> bool:
        if again:
            reading.refuse_unknown_call(number)
            return True
        return port.layout == "one step a call" or calls[number] == port.call

    def before(number: int, port: Port, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = first_tensor(args, kwargs)
        if tensor is None or not counts(number, port):
            return None
        changed = tensor if exchange is None else _exchange_in(tensor, port, exchange, calls[number], reading.sequences)
        if port.kind == "input":
            leaf = changed.detach().requires_grad_()
            record(number, leaf, leaf)
            changed = leaf.clone()  # for layers that work in place
        if changed is tensor:
            return None
        return (
            tuple(changed if value is tensor else value for value in args),
            {name: changed if value is tensor else value for name, value in kwargs.items()},
        )

    def after(number: int, port: Port, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        counted = counts(number, port)
        calls[number] += 1
        tensor = first_tensor(args, kwargs)
        if port.kind == "input" or not counted or tensor is None:
            return None
        leaf = result.detach().requires_grad_()
        record(number, tensor, leaf)
        return leaf.clone()  # for layers that work in place

    try:
        for number, port, module in reading.ports:
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, args, kwargs, n=number, p=port: before(n, p, args, kwargs), with_kwargs=True
                )
            )
            handles.append(
                module.register_forward_hook(
                    lambda _, args, kwargs, result, n=number, p=port: after(n, p, args, kwargs, result),
                    with_kwargs=True,
                )
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


def _exchange_in(tensor: Tensor, port: Port, exchange: Exchange, call: int, sequences: int) -> Tensor:
    """Change inputs in the layout that a module is given them in."""
    if port.layout == "one step a call":
        return exchange.apply(tensor[:, None], call)[:, 0]
    changed = exchange.apply(by_step(tensor, port, sequences), 0)
    if port.layout == "steps first":
        return changed.transpose(0, 1)
    if port.layout == "flat":
        return changed.flatten(0, 1)
    if port.layout == "channels":
        return torch.cat((tensor[..., : port.lead], changed.transpose(1, 2)), dim=2)
    return changed
