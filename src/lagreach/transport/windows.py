"""Short runs side by side, and gradients led back from their later steps to the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from lagreach.adapters import Recurrence
from lagreach.kernels import gpu, scan_stack
from lagreach.kernels.cpu import row_pass
from lagreach.transport.joined import Joined, kept_run
from lagreach.transport.linearised import Closed, linearise
from lagreach.transport.scaled import sizes_in_powers_of_two

if TYPE_CHECKING:
    from lagreach.kernels.gpu.kept_run import KeptRun

RESCALE_EVERY = 8  # steps, so that float32 holds what is carried
# A kernel does not rescale on its way: gradients start at 2^40, and what arrives below 2^-60 may have lost bits.
START, LEAST = 2.0**40, 2.0**-60

Arrived = tuple[dict[int, Tensor], dict[int, float]]


class Windows:
    """Rows that run for a few steps, through which gradients are led back.

    Where a kernel keeps what it computes on the way, that is used again; else each step is linearised when it is come to.

    Parameters
    ----------
    states
        States after each step but the last, if they are known already; else they are run.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        x: Float[Tensor, "step row input"],
        initial: Float[Tensor, "row state"],
        states: Float[Tensor, "known row state"] | None = None,
    ) -> None:
        self._recurrence, self._x, self._initial = recurrence, x, initial
        self.together = x.is_cuda  # all gradients in one call: starting a kernel there takes longer than what it does
        self._kept = None if states is not None else kept_run(recurrence, x, initial)
        self._known = states

    @cached_property
    def states(self) -> Float[Tensor, "known row state"]:
        """States after each step but the last, or after all of them."""
        if self._known is not None:
            return self._known
        if self._kept is not None:
            layers = [layer.states for layer in self._kept]
            return torch.cat(layers, dim=-1) if len(layers) > 1 else layers[0]
        return self._run(self._x)

    def _run(self, x: Float[Tensor, "step row input"]) -> Float[Tensor, "step row state"]:
        recurrence = self._recurrence
        with torch.no_grad():
            run = scan_stack(recurrence.stack, x.transpose(0, 1), self._initial, recurrence.params)
        return run.transpose(0, 1)

    def to_first_step(self, starts: Float[Tensor, "lag row state"], lags: Sequence[int]) -> Arrived:
        """What arrives after the first step from the states l steps later, and the power of two that it was divided by."""
        arrived = self._in_one_launch(starts, lags)
        return self._step_by_step(starts, lags) if arrived is None else arrived

    def _in_one_launch(self, starts: Float[Tensor, "lag row state"], lags: Sequence[int]) -> Arrived | None:
        """Each lag in one launch; None where no kernel of a GPU can, or its numbers leave the range of float32."""
        run = None if lags[-1] == 0 else self._behind_first_step()
        if run is None:
            return None
        sizes = sizes_in_powers_of_two(list(starts))
        carried, power = dict[int, Tensor](), dict[int, float]()
        for lag, start, size in zip(lags, starts, sizes, strict=True):
            carried[lag] = run.back(lag, start / size * START) if lag else start
            power[lag] = size / START if lag else 1.0
        largest = torch.stack([carried[lag].abs().amax() for lag in lags if lag])
        none = torch.stack([start.abs().amax() == 0 for lag, start in zip(lags, starts, strict=True) if lag])
        held = largest.isfinite() & ((largest >= LEAST) | none)
        return (carried, power) if bool(held.all()) else None

    def _behind_first_step(self) -> KeptRun | None:
        """All steps but the first, run by a kernel that goes back over any number of them at once."""
        stack, x = self._recurrence.stack, self._x
        cell, params = stack.cells[0].plain(stack.layer_params(0, self._recurrence.params))
        if len(stack.cells) > 1 or self._kept is not None or gpu.missing(cell, x.device, x.dtype) is not None:
            return None
        if self._initial.shape[-1] > cell.state_size(gpu.WIDEST) or any(p.dtype != x.dtype for p in params.values()):
            return None
        from lagreach.kernels.gpu.kept_run import KeptRun  # which loads triton

        first = self._run(x[:1])[0] if self._known is None else self._known[0]
        return KeptRun(cell, x[1:].transpose(0, 1).contiguous(), first.contiguous(), params)

    def _step_by_step(self, starts: Float[Tensor, "lag row state"], lags: Sequence[int]) -> Arrived:
        carried: dict[int, Tensor] = {}
        power = dict.fromkeys(lags, 1.0)
        for step in range(lags[-1], 0, -1):
            if step in lags:
                carried[step] = starts[lags.index(step)]
            if step % RESCALE_EVERY == 0 and carried:
                sizes = sizes_in_powers_of_two(list(carried.values()))
                for (lag, values), size in zip(carried.items(), sizes, strict=True):
                    carried[lag], power[lag] = values / size, power[lag] * size
            led_on = self.back(step, [values.contiguous() for values in carried.values()])
            carried = dict(zip(carried, led_on, strict=True))
        if 0 in lags:
            carried[0] = starts[0]
        return carried, power

    def back(self, step: int, cotangents: Iterable[Float[Tensor, "row state"]]) -> Iterator[Tensor]:
        """Lead gradients after a step on to the states before it."""
        steps = slice(step, step + 1)
        compiled = None if self._kept is None else row_pass([layer.form(steps) for layer in self._kept])
        if compiled is not None:
            spreads = compiled.spreads(self._x)
            for after in cotangents:
                before = torch.empty_like(after)
                compiled(after, spreads, before, whole=False, sizes=None)
                yield before
            return
        x, s = self._x[step], self.states[step - 1] if step else self._initial
        if self.together:
            after = torch.cat(list(cotangents))
            many = len(after) // len(x)
            linear, before = (
                linearise(self._recurrence, x.repeat(many, 1), s.repeat(many, 1), ()),
                torch.empty_like(after),
            )
            linear.back(after, x.new_empty(len(after), linear.width), before, whole=False)
            yield from before.chunk(many)
            return
        linear = linearise(self._recurrence, x, s, ())
        spread = x.new_empty(len(x), linear.width)
        for after in cotangents:
            before = torch.empty_like(after)
            linear.back(after, spread, before, whole=False)
            yield before

    def first_step_sums(
        self, names: Sequence[str], cotangents: Iterable[Float[Tensor, "row state"]], by: Float[Tensor, "row k"]
    ) -> list[Float[Tensor, "k param"]] | None:
        """Sums over rows, weighted in k ways, of what the weights get at the first step; None if no kernel has run the rows."""
        like = None if self._kept is None else linearise(self._recurrence, self._x[0, :1], self._initial[:1], names)
        if self._kept is None or not isinstance(like, Closed) or not like.compiled:
            return None
        joined = Joined.of_kept(like, self._kept, self._x[:1])
        led_on = torch.empty_like(self._initial)
        return [joined.flat(joined.back_and_sums(after, led_on, None, by)) for after in cotangents]
