"""The geometry an optimiser really moves in: how much it makes of each weight's gradient.

Plain descent moves by ``-lr g``. Adam and RMSprop move by ``-lr D g`` with a diagonal D that hardly changes from one step to
the next, so what one sequence contributes to a step is ``D g_n``. Measured in this geometry, a lag's signal is the mean of
``D g_n^(l)`` and its noise the fluctuation of ``D g_n`` along that mean: weights with loud gradients no longer drown the
others. D divides by the root of the mean squared gradient, so it does not matter in which units a weight is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from lagreach.errors import InputError, UnsupportedError

# settings by which a state dict tells its optimiser: no other one of `torch.optim` has all of them
_GROUP_KEYS = {
    "Adam": {"betas", "amsgrad", "eps"},
    "RMSprop": {"alpha", "centered", "eps"},
    "SGD": {"nesterov", "dampening"},
}
KNOWN = "torch.optim.Adam, AdamW, RMSprop or SGD, or the state_dict() of one"

Held = dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]  # weight name: settings of its group, its own state


def update_scale(optimizer: Any, model: object, names: Sequence[str]) -> Float[np.ndarray, "param"] | None:
    """Diagonal of D for the named weights, one after the other; None where it is one throughout.

    ========  ==================================================================================
    SGD       1 (momentum averages over steps and changes no direction)
    Adam(W)   ``1 / (sqrt(v / (1 - beta2^t)) + eps)``; with ``amsgrad`` the largest v so far
    RMSprop   ``1 / (sqrt(v) + eps)``; centred, ``v`` minus the squared mean gradient
    ========  ==================================================================================

    Learning rates count relative to the largest among these weights. Weight decay is the same for every sequence, so it
    is no part of signal or noise.

    Parameters
    ----------
    optimizer
        An optimiser of `torch.optim` that has taken a step, or its ``state_dict()``.
    model
        The module whose weights it moves.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> adam = torch.optim.Adam(layer.parameters(), eps=0.0)
    >>> layer.weight.grad = torch.tensor([[0.5, -4.0]])
    >>> adam.step()
    >>> update_scale(adam, layer, ["weight"]).round(5).tolist()
    [2.0, 0.25]
    >>> update_scale(torch.optim.SGD(layer.parameters()), layer, ["weight"]) is None
    True
    """
    if not isinstance(model, nn.Module):
        raise InputError("optimizer= needs the torch module whose weights it moves", got=type(model).__name__)
    held = _held(optimizer, model)
    missing = [name for name in names if name not in held]
    if missing:
        raise InputError(
            "the optimiser does not hold all weights that are looked at",
            got=f"no {', '.join(missing)} among {', '.join(held) or 'its weights'}",
            fix="pass the optimiser of this very model, or select its weights with params=",
        )
    kind = optimiser_name(optimizer)
    rates = np.array([float(held[name][0]["lr"]) for name in names])
    shares = rates / rates.max() if rates.max() > 0 else np.ones(len(rates))  # a schedule may have come down to zero
    weights = dict(model.named_parameters(remove_duplicate=False))
    parts = []
    for name, share in zip(names, shares, strict=True):
        size = weights[name].numel()
        divisor = np.ones(size) if kind == "SGD" else _divisor(kind, name, *held[name])
        if divisor.shape != (size,) or not (np.isfinite(divisor).all() and (divisor > 0).all()):
            raise InputError(
                f"the optimiser's state does not fit the weight {name}",
                got=f"{divisor.size} values between {divisor.min():.3g} and {divisor.max():.3g}",
                expected=f"{size} positive values",
                fix="with eps=0, a weight that never had a gradient has no scale; otherwise check the checkpoint",
            )
        parts.append(share / divisor)
    scale = np.concatenate(parts)
    return None if bool((scale == 1.0).all()) else scale


def step_sizes(
    optimizer: Any, model: nn.Module, gradients: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """How far one step moves each weight for a unit gradient that stays the same: ``lr D``, over ``1 - momentum``.

    ========  ================================================================
    SGD       ``lr / (1 - momentum)``
    Adam(W)   ``lr / (sqrt(v) + eps)``, v being the mean squared gradient
    RMSprop   ``lr / (sqrt(v) + eps) / (1 - momentum)``
    ========  ================================================================

    `gradients` are mean squared gradients of a batch, for weights that the optimiser has not met yet. Weights that it does not
    move are left out.

    >>> layer = nn.Linear(1, 1)
    >>> step_sizes(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), layer)["weight"].round(decimals=4)
    tensor([[1.]], dtype=torch.float64)
    """
    kind, sizes = optimiser_name(optimizer), {}
    _refuse_no_descent(optimizer)
    weights = dict(model.named_parameters())
    for name, (group, state) in _held(optimizer, model).items():
        if name not in weights or (gradients is not None and name not in gradients):
            continue  # another name of a weight that is shared, or a frozen weight
        shape, rate = weights[name].shape, float(group["lr"]) / (1 - float(group.get("momentum", 0.0)))
        divisor = np.ones(shape)
        if kind != "SGD" and not state and gradients is not None:
            divisor = gradients[name].double().sqrt().cpu().numpy() + float(group["eps"])
        elif kind != "SGD":
            divisor = _divisor(kind, name, group, state).reshape(shape)
        sizes[name] = torch.from_numpy(rate / np.maximum(divisor, np.finfo(float).tiny))
    return sizes


def optimiser_name(optimizer: Any) -> str:
    """Say which of the known optimisers this is ("Adam" also stands for AdamW), or refuse it."""
    plain = _unwrapped(optimizer)
    if isinstance(plain, torch.optim.Optimizer):
        for name, kind in (("Adam", (torch.optim.Adam, torch.optim.AdamW)), ("RMSprop", torch.optim.RMSprop)):
            if isinstance(plain, kind):
                return name
        if isinstance(plain, torch.optim.SGD):
            return "SGD"
    elif isinstance(plain, Mapping) and {"state", "param_groups"} <= set(plain):
        settings = set(plain["param_groups"][0]) if plain["param_groups"] else set()
        for name, keys in _GROUP_KEYS.items():
            if keys <= settings:
                return name
    raise UnsupportedError(
        "the geometry of this optimiser is not known", got=type(plain).__name__, expected=KNOWN,
        fix="leave optimizer out: windows are then those of plain descent",
    )  # fmt: skip


def _unwrapped(optimizer: Any) -> Any:
    """Trainers wrap optimisers in objects of their own."""
    while not isinstance(optimizer, Mapping) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def groups_of(optimizer: Any) -> list[Mapping[str, Any]]:
    """Settings of each group of weights, of an optimiser or its state dict."""
    optimiser_name(optimizer)
    plain = _unwrapped(optimizer)
    return list(plain["param_groups"] if isinstance(plain, Mapping) else plain.param_groups)


def _refuse_no_descent(optimizer: Any) -> None:
    """Refuse steps that lead upwards, or grow without end."""
    for group in groups_of(optimizer):
        if group.get("maximize"):
            raise UnsupportedError(
                "steps that climb recover nothing", got="maximize=True", expected="an optimiser that makes a loss smaller",
                fix="leave maximize out, and pass the loss itself",
            )  # fmt: skip
        momentum = float(group.get("momentum", 0.0))
        if not 0 <= momentum < 1:
            raise InputError(
                "steps with such a momentum never come to rest",
                got=f"momentum={momentum:g}",
                expected="0 or more, less than 1",
                fix="0.9 is usual",
            )


def _held(optimizer: Any, model: nn.Module) -> Held:
    """Settings and state of each of the model's weights that the optimiser moves."""
    optimiser_name(optimizer)
    plain = _unwrapped(optimizer)
    weights = dict(model.named_parameters(remove_duplicate=False))
    if isinstance(plain, torch.optim.Optimizer):
        groups = {id(p): group for group in plain.param_groups for p in group["params"]}
        return {name: (groups[id(p)], plain.state.get(p, {})) for name, p in weights.items() if id(p) in groups}
    groups = plain["param_groups"]
    in_order = [name for name, _ in model.named_parameters()]
    names = [name for group in groups for name in group.get("param_names", [])]
    if not names:
        held = sum(len(group["params"]) for group in groups)
        if len(groups) > 1 or held != len(in_order):
            raise InputError(
                "the state dict does not say which weights it belongs to",
                got=f"{held} weights in {len(groups)} groups, {len(in_order)} in the model",
                fix="pass the optimiser itself, or build it from model.named_parameters()",
            )
        names = in_order
    numbers = [(number, group) for group in groups for number in group["params"]]
    return {name: (group, plain["state"].get(number, {})) for name, (number, group) in zip(names, numbers, strict=True)}


def _divisor(kind: str, name: str, group: Mapping[str, Any], state: Mapping[str, Any]) -> Float[np.ndarray, "param"]:
    """What the optimiser divides a weight's gradient by."""

    def moment(key: str) -> np.ndarray:
        if key not in state:
            raise InputError(
                f"the optimiser has no state for the weight {name}",
                got=f"no {key!r}",
                fix="diagnose after the first training step, or load the optimiser's checkpoint too",
            )
        return state[key].detach().double().cpu().numpy().ravel()

    if kind == "Adam":
        square = moment("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
        square = square / (1 - float(group["betas"][1]) ** float(state["step"]))
    else:
        square = moment("square_avg")
        if group["centered"]:
            square = np.maximum(square - np.square(moment("grad_avg")), 0.0)  # a variance, but for rounding
    with np.errstate(invalid="ignore"):
        return np.sqrt(square) + float(group["eps"])
