"""`step` linearised at many steps: the transposed Jacobians that transport applies over and over.

Cells with a closed form (`Cell.pullback`) are pulled back by matrix products into buffers that exist already. Everything
else, and every weight that a closed form leaves out, goes through autodiff, which keeps the graph of the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.cells._pullback import Pullback
from lagreach.kernels.cpu import row_pass


class Linearised(ABC):
    """Rows are steps, of any sequence and time; `names` are the weights whose gradients may be asked for.

    A gradient at the states after the steps is first spread (`spread`, into a buffer with `width` columns) and then led on
    to the states before them (`state`) or to the weights (`weights`).
    """

    width: int
    compiled = False  # then `back` lets go of the interpreter, and can run on a thread of its own

    @abstractmethod
    def spread(self, cotangent: Float[Tensor, "row state"], out: Float[Tensor, "row width"]) -> None:
        """Prepare a gradient for what follows."""

    @abstractmethod
    def state(self, cotangent: Tensor, spread: Tensor, out: Float[Tensor, "row state"]) -> None:
        """Write the gradient at the states before the steps."""

    def back(
        self, cotangent: Tensor, spread: Tensor, out: Tensor, *, whole: bool = True, sizes: Tensor | None = None
    ) -> None:
        """Do both at once, and write the largest absolute value of each row; the spread may be lost unless `whole`."""
        self.spread(cotangent, spread)
        self.state(cotangent, spread, out)
        if sizes is not None:
            torch.amax(out.abs(), 1, out=sizes)

    @abstractmethod
    def weighted(self, by: Float[Tensor, "row k"]) -> Tensor:
        """Prepare sums over rows with k sets of row weights: something with one row per step, to be used many times."""

    @abstractmethod
    def weights(
        self, spread: Tensor, weighted: Tensor, groups: Sequence[slice], count: int
    ) -> Float[Tensor, "group k sum"]:
        """Gradients of the weights summed over the rows of each group, in a form that may be added up over calls.

        The rows of `count` sequences follow each other at every position; a group is a range of these sequences.
        """

    @abstractmethod
    def flat(self, sums: Float[Tensor, "*any sum"]) -> Float[Tensor, "*any param"]:
        """Lay the weights' gradients side by side, in the order of `names`."""


def linearise(
    recurrence: Recurrence, x: Float[Tensor, "row input"], s: Float[Tensor, "row state"], names: Sequence[str]
) -> Linearised:
    """In closed form where every layer has one and it knows the named weights, by autodiff otherwise."""
    stack, inputs, layers = recurrence.stack, x, []
    with torch.no_grad():
        for k, (cell, state) in enumerate(zip(stack.cells, stack.split(s), strict=True)):
            params = stack.layer_params(k, recurrence.params)
            layer = cell.pullback(inputs, state.contiguous(), params)
            used = [short for short, name in stack.names[k].items() if name in names]
            if layer is None or any(short not in layer.uses for short in used):
                return Autodiff(recurrence, x, s, names)
            layers.append(layer)
            if k + 1 < len(stack.cells):
                inputs = cell.output(cell.step(inputs, state, params)).contiguous()
    return Closed(recurrence, layers, names)


class Closed(Linearised):
    """Matrix products. The spread's memory holds those of the layers behind each other, then the full gradients of lower ones."""

    def __init__(self, recurrence: Recurrence, layers: Sequence[Pullback], names: Sequence[str]) -> None:
        stack = recurrence.stack
        self._layers = layers
        self.forms = [layer.form for layer in layers]
        self._row_pass = row_pass(self.forms)
        self.compiled = self._row_pass is not None
        self._states = [cell.state_size(stack.hidden_size) for cell in stack.cells]
        self._parts = [layer.width for layer in layers] + self._states[:-1]
        self.width = sum(self._parts)
        owners = {name: (k, short) for k, _, short, name in stack.weights()}
        self._names = [owners[name] for name in names]
        self._used = [[short for j, short in self._names if j == k] for k in range(len(layers))]
        # of each layer's spread, as many as some weight uses
        self.columns = [
            max((c.stop for short in used for c in layer.uses[short].columns), default=0)
            for layer, used in zip(layers, self._used, strict=True)
        ]

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        """Spread the gradient from the top layer down: what a layer reads is the output of the one below."""
        if len(self._layers) == 1:
            self._layers[0].spread(cotangent, out)
            return
        by_layer, (spreads, whole) = cotangent.split(self._states, dim=1), self._split(out)
        current = by_layer[-1]
        for k in reversed(range(len(self._layers))):
            self._layers[k].spread(current, spreads[k])
            if k > 0:
                current = whole[k - 1].copy_(by_layer[k - 1])
                fed = self._layers[k].inputs(spreads[k])
                current[:, : fed.shape[1]] += fed

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        """Write the gradient at the states before the steps, layer by layer."""
        if len(self._layers) == 1:
            self._layers[0].state(cotangent, spread, out)
            return
        spreads, whole = self._split(spread)
        full = [*whole, cotangent.split(self._states, dim=1)[-1]]
        for layer, gradient, part, target in zip(
            self._layers, full, spreads, out.split(self._states, dim=1), strict=True
        ):
            layer.state(gradient, part, target)

    def back(
        self, cotangent: Tensor, spread: Tensor, out: Tensor, *, whole: bool = True, sizes: Tensor | None = None
    ) -> None:
        """Spread and lead on, in one pass over the rows for each layer where kernels know them all."""
        # with `whole`, sums over the rows follow on torch's threads, which torch then uses for this pass as well
        if self._row_pass is None or (whole and torch.get_num_threads() > 1):
            super().back(cotangent, spread, out, sizes=sizes)
        else:
            self._row_pass(cotangent, self._split(spread)[0], out, whole=whole, sizes=sizes)

    def _split(self, spread: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rows = len(spread)
        memory = spread.view(-1).split([rows * columns for columns in self._parts])
        parts = [part.view(rows, columns) for part, columns in zip(memory, self._parts, strict=True)]
        return parts[: len(self._layers)], parts[len(self._layers) :]

    def weighted(self, by: Tensor) -> Tensor:
        """Return what the weights multiply, times each set of row weights, layers side by side."""
        return torch.cat([(by[:, :, None] * factor[:, None, :]).flatten(1) for factor in self.factors], dim=1)

    @cached_property
    def factor_names(self) -> list[dict[str, slice]]:
        """What the weights of each layer multiply, and in which columns of its factors it stands."""
        return [layer.places(used) for layer, used in zip(self._layers, self._used, strict=True)]

    @cached_property
    def factors(self) -> list[Tensor]:
        """What the weights of each layer multiply, side by side."""
        return [layer.factor(used) for layer, used in zip(self._layers, self._used, strict=True)]

    def weights(
        self, spread: Tensor, weighted: Tensor, groups: Sequence[slice], count: int
    ) -> Float[Tensor, "group k sum"]:
        """Of each layer all factors times all columns that some weight uses; `flat` picks what is wanted."""
        sizes = [factor.shape[1] for factor in self.factors]
        sets = weighted.shape[1] // sum(sizes)
        by_layer = weighted.split([sets * size for size in sizes], dim=1)
        spreads = [own[:, :used] for own, used in zip(self._split(spread)[0], self.columns, strict=True)]
        products = [_products(*pair, groups, count) for pair in zip(by_layer, spreads, strict=True)]
        return torch.cat([product.reshape(len(groups), sets, -1) for product in products], dim=2)

    def flat(self, sums: Float[Tensor, "*any sum"]) -> Float[Tensor, "*any param"]:
        """Pick factors and columns of each weight."""
        sizes = [max((place.stop for place in places.values()), default=0) for places in self.factor_names]
        parts = sums.split([size * columns for size, columns in zip(sizes, self.columns, strict=True)], dim=-1)
        flattened = []
        for k, short in self._names:
            use = self._layers[k].uses[short]
            products = parts[k].unflatten(-1, (sizes[k], self.columns[k]))[..., self.factor_names[k][use.factor], :]
            blocks = [products[..., columns] for columns in _joined(use.columns)]
            mine = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)
            flattened.append(mine.mT.flatten(-2))
        return flattened[0] if len(flattened) == 1 else torch.cat(flattened, dim=-1)


def _products(
    a: Float[Tensor, "row i"], b: Float[Tensor, "row j"], groups: Sequence[slice], count: int
) -> Float[Tensor, "group i j"]:
    """``a^T b`` over the rows of each group; of groups of one size that follow each other, in one batched product."""
    if list(groups) == [slice(0, count)]:
        return (a.T @ b)[None]
    a, b = (rows.unflatten(0, (-1, count)) for rows in (a, b))  # (position, seq, ...)
    sizes = {group.stop - group.start for group in groups}
    if len(sizes) == 1 and all(one.stop == other.start for one, other in pairwise(groups)):
        in_groups = slice(groups[0].start, groups[-1].stop)
        by_group = (
            v.unflatten(1, (len(groups), -1)).transpose(0, 1).flatten(1, 2) for v in (a[:, in_groups], b[:, in_groups])
        )
        first, second = by_group
        return first.mT @ second
    return torch.stack([a[:, group].flatten(0, 1).T @ b[:, group].flatten(0, 1) for group in groups])


def _joined(columns: Sequence[slice]) -> list[slice]:
    """The same columns in fewer slices: those that follow each other are one."""
    joined = list(columns[:1])
    for one in columns[1:]:
        if one.start == joined[-1].stop:
            joined[-1] = slice(joined[-1].start, one.stop)
        else:
            joined.append(one)
    return joined


class Autodiff(Linearised):
    """The graph of one call of `step`, made when it is needed and kept for repeated use."""

    def __init__(self, recurrence: Recurrence, x: Tensor, s: Tensor, names: Sequence[str]) -> None:
        self.width = s.shape[1]
        self._recurrence, self._x, self._before = recurrence, x, s.detach().requires_grad_()
        self._weights = {name: recurrence.params[name].detach().requires_grad_() for name in names}

    def spread(self, cotangent: Tensor, out: Tensor) -> None:
        """Nothing to prepare."""
        out.copy_(cotangent)

    def state(self, cotangent: Tensor, spread: Tensor, out: Tensor) -> None:
        """One backward pass."""
        out.copy_(_pulled(self._after, spread, [self._before])[0])

    def weighted(self, by: Tensor) -> Tensor:
        """Return the row weights themselves."""
        return by

    def weights(
        self, spread: Tensor, weighted: Tensor, groups: Sequence[slice], count: int
    ) -> Float[Tensor, "group k sum"]:
        """One backward pass for each set of row weights; for several groups, of every sequence by itself."""
        if list(groups) == [slice(0, count)]:
            leaves = list(self._weights.values())
            sets = [_pulled(self._after, spread * one[:, None], leaves) for one in weighted.T]
            return torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in sets])[None]
        states, leaves = self._by_sequence(count)
        by_set = []
        for one in weighted.T:
            gradients = _pulled(states, by_sequence(spread * one[:, None], count), leaves)
            flat = torch.cat([g.flatten(1) for g in gradients], dim=1)
            by_set.append(torch.stack([flat[group].sum(0) for group in groups]))
        return torch.stack(by_set, dim=1)

    def flat(self, sums: Tensor) -> Tensor:
        """They are flat already."""
        return sums

    @cached_property
    def _after(self) -> Tensor:
        recurrence = self._recurrence
        with torch.enable_grad():
            return recurrence.stack.step(self._x, self._before, recurrence.params | self._weights)

    @cached_property
    def _apart(self) -> dict[int, tuple[Tensor, list[Tensor]]]:
        return {}

    def _by_sequence(self, count: int) -> tuple[Tensor, list[Tensor]]:
        if count not in self._apart:
            x, before = (by_sequence(rows.detach(), count) for rows in (self._x, self._before))
            self._apart[count] = step_by_sequence(self._recurrence, x, before, list(self._weights))
        return self._apart[count]


def by_sequence(rows: Float[Tensor, "row k"], count: int) -> Float[Tensor, "seq position k"]:
    """Rows that are ordered by position and then by sequence, the other way round."""
    return rows.unflatten(0, (-1, count)).transpose(0, 1)


def step_by_sequence(
    recurrence: Recurrence,
    x: Float[Tensor, "seq time input"],
    before: Float[Tensor, "seq time state"],
    names: Sequence[str],
) -> tuple[Float[Tensor, "seq time state"], list[Tensor]]:
    """States after all steps, and weights of its own for every sequence that they were made with.

    A pullback then gives the gradient of every sequence at once, in one batched product.
    """
    shared = [recurrence.params[name].detach() for name in names]
    leaves = [weight.expand(len(x), *weight.shape).clone().requires_grad_() for weight in shared]

    def step(x: Tensor, before: Tensor, *weights: Tensor) -> Tensor:
        return recurrence.stack.step(x, before, recurrence.params | dict(zip(names, weights, strict=True)))

    with torch.enable_grad():
        return torch.func.vmap(step)(x, before, *leaves), leaves


def _pulled(after: Tensor, cotangent: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(after, wanted, grad_outputs=cotangent, retain_graph=True, materialize_grads=True)
