"""Models that are one recurrent layer of torch and a linear readout of its states, with nothing in between.

torch leaves the states of all steps in memory. A model of this form is run by the package's own kernels, which can sum states
as they come. That nothing is in between is not told from numbers, which may agree by chance (a clamp that no value has reached
yet), but from memory: the layer is given the very tensor that the model was given, and so on, and nobody has written into it.
Nor has anybody so much as looked at a tensor on the way: what a model does may hang on what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lagreach.adapters.calling import Call
from lagreach.adapters.torch_rnn import stack_of
from lagreach.cells.stack import Stack
from lagreach.data.batch import Batch
from lagreach.kernels import scan_readout_and_output, scan_readout_and_sums
from lagreach.models.bare import is_bare


@dataclass(frozen=True)
class Straight:
    """The layer and the readout of such a model; weights are read when it is run. It runs without gradients."""

    layer: nn.RNNBase
    readout: nn.Linear
    stack: Stack

    @classmethod
    def of(cls, model: nn.Module, readout: nn.Module, sample: Batch, call: Call) -> Straight | None:
        """See a model so; None where it is something else."""
        layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
        if len(layers) != 1 or not isinstance(readout, nn.Linear):
            return None
        (layer,) = layers
        stored = set(layer._flat_weights_names) <= set(layer._parameters)  # or else computed
        plain = stored and is_bare(layer) and is_bare(readout) and type(model).__call__ is nn.Module.__call__
        if not (plain and layer.batch_first and not layer.bidirectional):
            return None
        before = _numbers(model)
        with torch.no_grad(), _Watch(model, layer, readout) as watch:
            call(model, sample)
        seen = watch.once()
        if seen is None or watch.looked or _numbers(model) != before:
            return None
        whole, states, read = seen
        passed_on = (whole.given, states.returned, whole.returned) == (states.given, read.given, read.returned)
        of_one_type = read.given[1] == states.given[1]  # or else inputs are rounded on the way, as autocast does
        return cls(layer, readout, stack_of(layer)) if passed_on and of_one_type else None

    def output_and_features(
        self, x: Float[Tensor, "seq time input"]
    ) -> tuple[Float[Tensor, "seq time output"], Float[Tensor, "seq time unit"]] | None:
        """What the model gives, and what its readout reads; None where one pass does not give both."""
        return scan_readout_and_output(*self._run(x)) if self._known() else None

    def output_and_sums(
        self,
        x: Float[Tensor, "seq time input"],
        target: Float[Tensor, "seq time"],
        share: Float[Tensor, "seq time"],
        index: Int[Tensor, "seq pick"],
    ) -> tuple[Float[Tensor, "seq time"], Float[Tensor, "seq unit"], Float[Tensor, "seq pick unit"]] | None:
        """See `lagreach.GatedRNN.output_and_sums`."""
        return scan_readout_and_sums(*self._run(x), target, share, index) if self._known() else None

    def _known(self) -> bool:
        """Whether nobody has begun to look on since."""
        return is_bare(self.layer) and is_bare(self.readout)

    def _run(self, x: Tensor) -> tuple[Stack, Tensor, Tensor, dict[str, Tensor], Tensor, Tensor]:
        params = {name: weight.detach() for name, weight in self.layer.named_parameters(remove_duplicate=False)}
        readout = self.readout.weight.detach(), self.readout.bias.detach()
        return self.stack, x, x.new_zeros(len(x), self.stack.state_size), params, *readout


Sight: TypeAlias = tuple[object, ...]


@dataclass
class _Calls:
    """What one module is given and returns, call by call, as it is at that moment; None of what is not one tensor."""

    given: list[Sight | None] = field(default_factory=list)
    returned: list[Sight | None] = field(default_factory=list)
    weights: list[list[Sight | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Once:
    """The one call of a module."""

    given: Sight
    returned: Sight


class _Watch(TorchFunctionMode):
    """Note the calls of a model, its layer and its readout, and whether anything of torch is called in the model but by these.

    Modules that do nothing in evaluation may stand in between.
    """

    def __init__(self, model: nn.Module, *parts: nn.Module) -> None:
        super().__init__()
        self.looked = False
        self._model, self._modules = model, (model, *parts)
        self._calls = [_Calls() for _ in self._modules]
        self._inside = 1  # of modules that may call torch; none of them in the model itself
        self._kept: list[Any] = []  # so that no other tensor takes the place of one of these

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.looked = self.looked or self._inside == 0
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> _Watch:
        idle = [module for module in self._model.modules() if type(module) in (nn.Dropout, nn.Identity)]
        self._handles = [
            handle
            for module, calls in [*zip(self._modules, self._calls, strict=True), *((one, _Calls()) for one in idle)]
            for handle in (
                module.register_forward_pre_hook(partial(self._before, calls), with_kwargs=True),
                module.register_forward_hook(partial(self._after, calls)),
            )
        ]
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for handle in self._handles:
            handle.remove()

    def _before(self, calls: _Calls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside += 1
        self._kept.append((args, list(module.parameters())))
        calls.given.append(_sight(args[0]) if len(args) == 1 and not kwargs else None)
        calls.weights.append(_sights(module))
        self._inside = 0 if module is self._model else self._inside

    def _after(self, calls: _Calls, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        self._inside += module is self._model
        self._kept.append(result)
        calls.returned.append(_sight(result[0] if isinstance(result, tuple) else result))
        self._inside -= module is not self._model

    def once(self) -> list[_Once] | None:
        """The calls, if every module was called once, with the weights that it has now, on one tensor."""
        seen = []
        for module, calls in zip(self._modules, self._calls, strict=True):
            sights = [*calls.given, *calls.returned]
            if len(sights) != 2 or sights[0] is None or sights[1] is None or calls.weights != [_sights(module)]:
                return None
            seen.append(_Once(sights[0], sights[1]))
        return seen


def _sights(module: nn.Module) -> list[Sight | None]:
    return [_sight(weight) for weight in module.parameters()]


def _sight(value: object) -> Sight | None:
    """Where a tensor is, how it is read, and how often it has been written into; None if that cannot be told."""
    if not isinstance(value, Tensor) or value.is_inference():
        return None
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride(), value._version


def _numbers(model: nn.Module) -> list[dict[str, object]]:
    """Numbers and names that modules keep: a model that counts its calls may do something else later."""
    return [{name: v for name, v in vars(part).items() if isinstance(v, (int, float, str))} for part in model.modules()]
