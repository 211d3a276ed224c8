"""Random architectures: lag gradients against autograd and against a loop with one copy of the weights for every step.

Every configuration follows from its number. Some make no sense, and must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lagreach import GatedRNN, all_cells, diagnose, lag_gradients
from lagreach.adapters import find_views
from lagreach.data.batch import Batch
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.errors import LagreachError
from tests.reliability.counting import Count, Hang, Size, alarm

CONFIGURATIONS = {"quick": 40, "full": 1000}
DIAGNOSES = {"quick": 2, "full": 100}
ONE_SENSELESS_IN = 10  # configurations, one is made to be refused
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4}
HANG_SECONDS = 120


@dataclass(frozen=True)
class Setting:
    """A model, data and a loss, with everything to compute the loss of each sequence a second time."""

    about: str
    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Any
    options: dict[str, Any]
    losses: Callable[[Tensor], Tensor]  # of the output (seq, time, out), one value a sequence


class TorchNet(nn.Module):
    """Something in front of a recurrent layer of torch, and something behind.

    Lengths are used as people use them: packed, sorted before they are packed, or not at all, so that the layer runs over the
    padding. Some models read the last state beside the outputs.
    """

    def __init__(self, kind: str, rng: np.random.Generator, sizes: dict[str, int], dtype: torch.dtype) -> None:
        super().__init__()
        hidden, self.batch_first = sizes["hidden"], bool(rng.integers(2))
        options: dict[str, Any] = {"bidirectional": bool(rng.integers(2)), "bias": bool(rng.integers(4))}
        if kind == "LSTM" and hidden > 1 and not rng.integers(4):
            options["proj_size"] = int(rng.integers(1, hidden))
        self.front = nn.Linear(sizes["input"], 3, dtype=dtype)
        self.rnn = getattr(nn, kind)(3, hidden, sizes["layers"], batch_first=self.batch_first, dtype=dtype, **options)
        width = options.get("proj_size", hidden) * (2 if options["bidirectional"] else 1)
        self.read = nn.Linear(width, sizes["output"], dtype=dtype)
        self.packing, self.reads_last = str(rng.choice(["packed", "sorted", "unpacked"])), not rng.integers(3)
        self.about = f"torch.{kind} {options} batch_first={self.batch_first} {self.packing} last={self.reads_last}"

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return (seq, time, output)."""
        z = torch.tanh(self.front(x))
        order = torch.arange(len(x))
        if lengths is not None and self.packing == "sorted":
            order = lengths.argsort(descending=True)
            z, lengths = z[order], lengths[order]
        z = z if self.batch_first else z.transpose(0, 1)
        if lengths is None or self.packing == "unpacked":
            states, final = self.rnn(z)
        else:
            in_order = self.packing == "sorted"
            packed = pack_padded_sequence(z, lengths.cpu(), batch_first=self.batch_first, enforce_sorted=in_order)
            states, final = self.rnn(packed)
            states = pad_packed_sequence(states, batch_first=self.batch_first, total_length=x.shape[1])[0]
        output = self.read(states if self.batch_first else states.transpose(0, 1))
        if self.reads_last:
            output = output + (final[0] if isinstance(final, tuple) else final).sum(-1).mean(0)[:, None, None]
        return output[order.argsort()]


def make_model(rng: np.random.Generator, sizes: dict[str, int], dtype: torch.dtype) -> tuple[nn.Module, str]:
    """Draw a model with all weights random."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    if rng.random() < 0.4:
        made: nn.Module = TorchNet(str(rng.choice(["RNN", "GRU", "LSTM"])), rng, sizes, dtype)
        about = str(made.about)
    else:
        cell = str(rng.choice(list(all_cells())))
        norm = cell not in ("diag_elman", "min_gru") and bool(rng.integers(3) == 0)
        made = GatedRNN(
            cell, sizes["input"], sizes["hidden"], sizes["output"], sizes["layers"], layernorm=norm, dtype=dtype
        )
        about = f"{cell}{' layernorm' if norm else ''}"
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            parameter.copy_(0.5 * noise + (1.0 if name.endswith("ln_gain") else 0.0))
    return made.eval(), about


def draw_setting(number: int) -> Setting:
    """Draw everything from a number."""
    rng = np.random.default_rng([20, number])
    generator = torch.Generator().manual_seed(number)
    sizes = {"input": int(rng.integers(1, 4)), "hidden": int(rng.integers(1, 7)), "layers": int(rng.integers(1, 4))}
    sizes["output"] = int(rng.integers(1, 4))
    seq, time = int(rng.integers(1, 6)), int(rng.integers(1, 13)) if rng.integers(8) else int(rng.integers(30, 60))
    dtype = torch.float32 if rng.integers(3) == 0 else torch.float64
    model, about = make_model(rng, sizes, dtype)
    x = torch.randn(seq, time, sizes["input"], generator=generator, dtype=torch.float64).to(dtype)
    lengths = torch.from_numpy(rng.integers(1, time + 1, seq)) if rng.integers(2) else None
    valid = torch.ones(seq, time, dtype=torch.bool)
    if lengths is not None:
        valid = torch.arange(time) < lengths[:, None]
    options: dict[str, Any] = {} if lengths is None else {"lengths": lengths}
    kind = str(rng.choice(["mse", "mse last", "mse steps", "classes", "classes last", "own"]))
    out = sizes["output"]
    last = (valid.sum(1) - 1)[:, None]
    weights = valid.to(dtype)
    if kind in ("mse", "classes", "own") and rng.integers(2):
        mask = torch.rand(seq, time, generator=generator) if rng.integers(2) else torch.ones(seq, time) * 0.5
        mask = mask * (torch.rand(seq, time, generator=generator) < 0.7)
        mask[:, 0] = 1.0
        options["mask"], weights = mask, weights * mask.to(dtype)
    steps = None
    if kind == "mse steps":
        shortest = int(valid.sum(1).min())
        steps = np.sort(rng.choice(shortest, size=int(rng.integers(1, shortest + 1)), replace=False))
        options["steps"] = steps.tolist()
    if kind.startswith("classes") and out < 2:
        kind = "mse"
    if kind.startswith("classes"):
        y = torch.randint(0, out, (seq, time), generator=generator)
        y = y[:, -1] if kind.endswith("last") else y
        loss: Any = "cross_entropy"
    else:
        shape = {"mse last": (seq, out), "mse steps": (seq, 0 if steps is None else len(steps), out)}.get(
            kind, (seq, time, out)
        )
        y = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        loss = own_loss if kind == "own" else "mse"

    def losses(output: Tensor) -> Tensor:
        if kind == "own":
            return own_loss(output, y, weights > 0)
        at = output
        if kind.endswith("last"):
            at = output.gather(1, last[..., None].expand(-1, -1, out))
        elif steps is not None:
            at = output[:, steps.tolist()]
        counts = (
            weights if at.shape[1] == time and not kind.endswith("last") else torch.ones(seq, at.shape[1]).to(dtype)
        )
        if kind.startswith("classes"):
            each = cross_entropy(at.flatten(0, 1), y.reshape(-1), reduction="none").view(seq, -1)
        else:
            each = (at - y.reshape(seq, -1, out)).square().mean(-1)
        return (each * counts).sum(1) / counts.sum(1)

    about = f"{number}: {about}, {sizes}, {seq} x {time}, {kind}, {sorted(options)}, {dtype}"
    return Setting(about, model, x, y, loss, options, losses)


def own_loss(output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mix all steps, so that every step's gradient depends on all of them."""
    weights = torch.softmax(output.sum(-1).masked_fill(~mask, -1e9), dim=1)
    return ((output * weights[..., None]).sum(1) - y[:, 0]).square().sum(-1)


def check_setting(setting: Setting) -> None:
    """Compare with autograd, with the loop, and with other batches; raises AssertionError."""
    model, x, y, options = setting.model, setting.x, setting.y, setting.options
    tolerance = TOLERANCE[x.dtype]
    output = model(x, options["lengths"]) if isinstance(model, TorchNet) and "lengths" in options else model(x)
    total_loss = setting.losses(output).mean()
    grads = torch.autograd.grad(total_loss, list(model.parameters()), allow_unused=True)
    expected = {name: g for (name, _), g in zip(model.named_parameters(), grads, strict=True)}
    views = find_views(model, Batch(x, y, None, options.get("lengths"))) if isinstance(model, TorchNet) else [model]
    for view in views:
        result = lag_gradients(view, x, y, setting.loss, **options)
        _close(result.loss, total_loss.detach(), tolerance, "loss")
        for name, grad in result.total().items():
            reference = expected[name]
            _close(grad, torch.zeros_like(grad) if reference is None else reference, tolerance, f"total of {name}")
        _check_batches(view, setting, result.grads, tolerance)
    if isinstance(model, GatedRNN):
        _check_one_lag(model, setting, result.grads, tolerance)


def _check_batches(view: Any, setting: Setting, whole: dict[str, Tensor], tolerance: float) -> None:
    """Shuffle the sequences, cut them into chunks, and take them one by one: the mean must stay what it is."""
    count = len(setting.x)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    shuffled = lag_gradients(
        view, setting.x[order], setting.y[order], setting.loss, chunk=2, **_rows(setting.options, order)
    )
    mean = {name: torch.zeros_like(value) for name, value in whole.items()}
    for n in range(count):
        row = torch.tensor([n])
        single = lag_gradients(view, setting.x[row], setting.y[row], setting.loss, **_rows(setting.options, row))
        for name, value in single.grads.items():
            mean[name] += value / count
    for name, value in whole.items():
        _close(shuffled.grads[name], value, tolerance, f"shuffled {name}")
        _close(mean[name], value, tolerance, f"one by one {name}")


def _rows(options: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    return {name: value if name == "steps" else value[rows] for name, value in options.items()}


def _check_one_lag(model: GatedRNN, setting: Setting, gradients: dict[str, Tensor], tolerance: float) -> None:
    """Give every step its own copy of the weights, and go back from every step that is the lag away."""
    x, time = setting.x, setting.x.shape[1]
    lag = int(np.random.default_rng(time).integers(time))
    copies = [
        {n: p.detach().clone().requires_grad_() for n, p in model.recurrent_params().items()} for _ in range(time)
    ]
    state, states = model.initial_state(x), []
    for t in range(time):
        state = model.stack.step(x[:, t], state, copies[t])
        states.append(state)
    leaf = torch.stack(states, 1).detach().requires_grad_()
    (delta,) = torch.autograd.grad(setting.losses(model.readout(model.stack.output(leaf))).mean(), leaf)
    expected = {n: torch.zeros_like(p) for n, p in model.recurrent_params().items()}
    for t in range(lag, time):
        weights = copies[t - lag]
        grads = torch.autograd.grad(
            (states[t] * delta[:, t]).sum(), list(weights.values()), retain_graph=True, allow_unused=True
        )
        for name, grad in zip(weights, grads, strict=True):
            expected[name] += torch.zeros_like(weights[name]) if grad is None else grad
    for name, grad in expected.items():
        _close(gradients[name][lag], grad, tolerance, f"lag {lag} of {name}")


def _close(value: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(
        value.detach() / scale, expected.detach() / scale, rtol=0, atol=tolerance, msg=lambda m: f"{what}: {m}"
    )


def spoil(setting: Setting, rng: np.random.Generator) -> tuple[str, Callable[[], object]]:
    """Turn a setting into one that makes no sense."""
    x, y, model, loss, options = setting.x, setting.y, setting.model, setting.loss, dict(setting.options)
    seq, time = x.shape[:2]
    nan = x.clone()
    nan[0, 0] = torch.nan
    bad_weights = {name: p.clone() for name, p in model.state_dict().items()}
    first = next(name for name in bad_weights if "W_h" in name or "weight_ih" in name or "layers" in name)
    bad_weights[first].fill_(torch.nan)
    ways: dict[str, Callable[[], object]] = {
        "NaN in x": lambda: lag_gradients(model, nan, y, loss, **options),
        "lag too long": lambda: lag_gradients(model, x, y, loss, lags=[time], **options),
        "negative lag": lambda: lag_gradients(model, x, y, loss, lags=[-1], **options),
        "no lags": lambda: lag_gradients(model, x, y, loss, lags=[], **options),
        "wide input": lambda: lag_gradients(model, torch.cat((x, x), 2), y, loss, **options),
        "other number of targets": lambda: lag_gradients(model, x, torch.cat((y, y)), loss, **options),
        "length zero": lambda: lag_gradients(model, x, y, loss, **(options | {"lengths": torch.zeros(seq).long()})),
        "length too long": lambda: lag_gradients(model, x, y, loss, **(options | {"lengths": [time + 1] * seq})),
        "no step counts": lambda: lag_gradients(model, x, y, loss, **(options | {"mask": torch.zeros(seq, time)})),
        "NaN in the mask": lambda: lag_gradients(
            model, x, y, loss, **(options | {"mask": torch.full((seq, time), torch.nan)})
        ),
        "unknown loss": lambda: lag_gradients(model, x, y, "mae", **options),
        "loss of the whole batch": lambda: lag_gradients(
            model, x, torch.zeros(seq, 1), lambda o, y, m: o.square().mean()[None, None], **options
        ),
        "no sequences": lambda: lag_gradients(model, x[:0], y[:0], loss),
        "no steps": lambda: lag_gradients(model, x[:, :0], y, loss),
        "NaN in the weights": lambda: (
            model.load_state_dict(bad_weights) and lag_gradients(model, x, y, loss, **options)
        ),
        "unknown transport": lambda: lag_gradients(model, x, y, loss, transport="second", **options),
    }
    name = str(rng.choice(list(ways)))
    return name, ways[name]


def check(size: Size) -> list[Count]:
    """Check random settings, and that diagnoses do not depend on the order of the sequences."""
    wanted = CONFIGURATIONS[size]
    count = Count("random configurations", "all comparisons hold, or what makes no sense is refused", wanted)
    for number in range(wanted):
        rng = np.random.default_rng([21, number])
        setting = draw_setting(number)
        if number % ONE_SENSELESS_IN == 0:
            way, call = spoil(setting, rng)
            problem = _problem(call)
            good = problem is not None and problem.startswith("refused")
            count.add(
                "refused" if good else "failed", None if good else f"{way}, {setting.about}: {problem or 'not refused'}"
            )
        else:
            problem = _problem(lambda setting=setting: check_setting(setting))
            count.add(
                "right" if problem is None else "failed", None if problem is None else f"{setting.about}: {problem}"
            )
    return [count, shuffled_diagnoses(size)]


def _problem(call: Callable[[], object]) -> str | None:
    try:
        with alarm(HANG_SECONDS):
            call()
    except LagreachError as error:
        return f"refused: {error}"
    except Hang:
        return "no answer"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shuffled_diagnoses(size: Size) -> Count:
    """Diagnose random models twice, the second time with the sequences in another order."""
    count = Count("diagnoses of random models with shuffled sequences", "the same numbers", DIAGNOSES[size])
    settings = MeasureSettings(blocks=8, probes=1, flips=99)
    for number in range(DIAGNOSES[size]):
        rng = np.random.default_rng([22, number])
        sizes = {"input": int(rng.integers(1, 4)), "hidden": int(rng.integers(1, 7)), "layers": int(rng.integers(1, 3))}
        model, about = make_model(rng, sizes | {"output": 1}, torch.float64)
        x = torch.from_numpy(rng.standard_normal((24, 10, sizes["input"])))
        y = torch.from_numpy(rng.standard_normal((24, 10, 1)))
        order = torch.from_numpy(rng.permutation(24))

        def problem(model: nn.Module = model, x: Tensor = x, y: Tensor = y, order: Tensor = order) -> None:
            diagnoses = [
                diagnose(model, d, lags=[0, 1, 4], settings=settings, progress=False)
                for d in ((x, y), (x[order], y[order]))
            ]
            for one, other in zip(diagnoses[0].layers, diagnoses[1].layers, strict=True):
                for name in ("sequences", "low", "high"):
                    np.testing.assert_allclose(
                        getattr(one.window.required_if_present(), name),
                        getattr(other.window.required_if_present(), name),
                        rtol=1e-6,
                    )
                np.testing.assert_allclose(one.window.adjusted_p, other.window.adjusted_p, rtol=1e-9)

        outcome = _problem(problem)
        count.add("same" if outcome is None else "failed", None if outcome is None else f"{number}: {about}: {outcome}")
    return count
