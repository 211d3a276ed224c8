"""`advise_gates`: are the gates set for a wanted lag, and if not, which biases would set them?

A layer carries a lag if some of its units keep a good part of what they hold for that long. Half-lives say so before
any training, and again after it. Spreading the half-lives from one step to twice the wanted lag is the idea of chrono
initialisation: every time scale up to the lag, and some beyond, then has units of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lagreach._util.bounds import is_number
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.adapters.calling import Call
from lagreach.adapters.families import scan_modules
from lagreach.adapters.scan_layer import ScanLayer
from lagreach.advice.retention import LayerRetention, Retention, retention
from lagreach.errors import InputError, UnsupportedError
from lagreach.models.gated_rnn import GatedRNN

SHORT = 2.0  # steps; a layer whose 90 % quantile is below is called collapsed
FELL = 4.0  # a fall of the 90 % quantile over training by this factor is worth a warning
ENDLESS = 10.0  # half-lives beyond this multiple of the sequence length cannot forget
FARTHEST = 10**12  # steps, far beyond any sequence
PLAIN = ("elman", "torch.nn.RNN")  # cells without a gate or a decay
NO_GATES = (
    "no gates to set: a plain recurrence. An orthogonal start (torch.nn.init.orthogonal_ on the recurrent weights) carries old "
    "inputs farther; an LSTM or a GRU has gates"
)
NO_RETENTION = (
    "this cell has no retention to set: nothing of its state is kept by a factor that it names. Describe it by `retention` and "
    "`retention_bias` (CONTRIBUTING.md), and half-lives are told"
)


@dataclass(frozen=True)
class LayerAdvice:
    """One layer: half-lives (median, 90 %, longest) before and after training, biases to set, and warnings.

    `biases` maps names of parameters in the model to values; `holds` is the share of decays whose half-life reaches
    the wanted lag.
    """

    name: str
    before: tuple[float, float, float]
    after: tuple[float, float, float] | None
    holds: float
    biases: dict[str, Tensor]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class GateAdvice:
    """Advice on the gates of every recurrent layer, for a wanted lag."""

    lag: int
    layers: tuple[LayerAdvice, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, with the names of their layers."""
        return tuple(f"{layer.name}: {text}" for layer in self.layers for text in layer.warnings)

    def biases(self) -> dict[str, Tensor]:
        """Suggested values of all layers, by parameter name."""
        return {name: value for layer in self.layers for name, value in layer.biases.items()}

    def apply(self, model: nn.Module) -> None:
        """Write the suggested values into a model, which should be trained from there."""
        weights = dict(model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, value in self.biases().items():
                weights[name].copy_(value.to(weights[name]))

    def __str__(self) -> str:
        lines = [f"half-lives in steps (median / 90 % / longest), for lag {self.lag}"]
        for layer in self.layers:
            numbers = " -> ".join(
                " / ".join(f"{value:.3g}" for value in stage)
                for stage in (layer.before, layer.after)
                if stage is not None
            )
            nothing = [text for text in layer.warnings if text in (NO_GATES, NO_RETENTION)]
            if nothing:
                lines.append(f"{layer.name}: {nothing[0]}")
                continue
            lines.append(f"{layer.name}: {numbers}; {layer.holds:.0%} of the decays hold lag {self.lag}")
            if layer.biases:
                lines.append(f"  set {', '.join(layer.biases)} to spread half-lives from 1 to {2 * self.lag} steps")
            lines += [f"  warning: {text}" for text in layer.warnings]
        return "\n".join(lines)


@leaves_as_it_was
def advise_gates(
    model: nn.Module,
    x: Tensor,
    lag: int,
    *,
    trained: nn.Module | None = None,
    lengths: Tensor | None = None,
    call: Call | None = None,
) -> GateAdvice:
    """Say how long each layer remembers, and which biases would let it remember a wanted lag.

    Parameters
    ----------
    model
        The model, usually as initialised.
    x
        Some inputs (seq, time, ...): decays depend on them.
    lag
        Number of steps back that should be within reach.
    trained
        The same model after training, to see what became of its half-lives.

    Examples
    --------
    >>> layer = nn.LSTM(3, 8, batch_first=True)
    >>> advice = advise_gates(layer, torch.randn(4, 20, 3), lag=50)
    >>> advice.layers[0].holds, sorted(advice.biases())
    (0.0, ['bias_hh_l0', 'bias_ih_l0'])
    >>> advice.apply(layer)
    >>> round(retention(layer, torch.zeros(1, 20, 3)).layers[0].half_lives.max().item()) > 20
    True
    """
    if not (is_number(lag) and 1 <= lag <= FARTHEST):
        raise InputError("the wanted lag must be a positive number of steps", got=lag, expected=f"1 to {FARTHEST:,}")
    first = retention(model, x, lengths=lengths, call=call)
    then = None if trained is None else retention(trained, x, lengths=lengths, call=call)
    biases = _suggestions(model, lag)
    layers = tuple(_advise(layer, then, lag, biases) for layer in first.layers)
    return GateAdvice(lag, layers)


def chrono(longest: int, count: int) -> Tensor:
    """Half-lives from one step to the longest, evenly spaced on a logarithmic scale (float64).

    >>> chrono(16, 5)
    tensor([ 1.,  2.,  4.,  8., 16.], dtype=torch.float64)
    """
    return torch.logspace(0, math.log2(longest), count, base=2, dtype=torch.float64)


def _advise(
    layer: LayerRetention, trained: Retention | None, lag: int, biases: dict[str, dict[str, Tensor]]
) -> LayerAdvice:
    after = None if trained is None else trained[layer.name]
    current = after or layer
    warnings = []
    _, high, longest = quantiles = _three(current)
    silent = bool(torch.isneginf(current.log_decay).all())
    if layer.family in PLAIN or silent:
        said = NO_GATES if layer.family in PLAIN else NO_RETENTION
        return LayerAdvice(layer.name, _three(layer), None if after is None else quantiles, 0.0, {}, (said,))
    if high < SHORT:
        warnings.append(
            f"collapsed: nine in ten decays lose half within {high:.2g} steps; products of decays vanish within a few steps"
        )
    if longest < lag:
        warnings.append(f"the longest half-life is {longest:.3g} steps: lag {lag} is carried by no unit's decay alone")
    time = layer.log_decay.shape[1]
    if min(current.half_lives.flatten().tolist()) > ENDLESS * time:
        warnings.append(f"no decay forgets within {ENDLESS:.0f} times these sequences of {time} steps")
    if after is not None and high < _three(layer)[1] / FELL:
        warnings.append(f"training shortened the 90 % half-life from {_three(layer)[1]:.3g} to {high:.3g} steps")
    holds = (current.half_lives >= lag).double().mean().item()
    return LayerAdvice(
        layer.name,
        _three(layer),
        None if after is None else quantiles,
        holds,
        biases.get(layer.name, {}) if holds == 0 else {},
        tuple(warnings),
    )


def _three(layer: LayerRetention) -> tuple[float, float, float]:
    median, high, longest = layer.quantiles()
    return median, high, longest


def _suggestions(model: nn.Module, lag: int) -> dict[str, dict[str, Tensor]]:
    """Biases by layer name (as in `retention`) and by parameter name."""
    biases: dict[str, dict[str, Tensor]] = {}
    for path, module, adapter in scan_modules(model):
        layer: ScanLayer = adapter(module)
        try:
            values = layer.retaining(chrono(2 * lag, layer.decay_shape[0]))
        except UnsupportedError:  # a layer without biases: there is nothing to set
            continue
        biases[path or type(module).__name__] = {f"{path}.{name}".lstrip("."): v for name, v in values.items()}
    for path, module in model.named_modules():
        if isinstance(module, (nn.LSTM, nn.GRU)) and module.bias:
            for name, suffix in _torch_layers(path or type(module).__name__, module):
                biases[name] = _torch_biases(path, module, suffix, lag)
        if isinstance(module, GatedRNN) and module.cell.retention_bias is not None:
            where = path or "model"
            for k in range(module.num_layers):
                name = where if module.num_layers == 1 else f"{where} layer {k}"
                biases[name] = _gated_biases(f"{path}.layers.{k}".lstrip("."), module, k, lag)
    return biases


def _gated_biases(path: str, module: GatedRNN, k: int, lag: int) -> dict[str, Tensor]:
    """Biases of one layer of a `GatedRNN`; of one gate for all units, the one that holds the lag."""
    assert module.cell.retention_bias is not None
    name, sign = module.cell.retention_bias
    layer = dict(module.layers[k].named_parameters())
    bias = layer[name].detach()
    half_lives = chrono(2 * lag, len(bias)) if len(bias) > 1 else torch.tensor([float(lag)], dtype=torch.float64)
    logits = torch.logit(torch.exp2(-1 / half_lives)).to(bias)
    biases = {f"{path}.{name}": sign * logits}
    if "b_i" in layer:
        biases[f"{path}.b_i"] = -logits
    return biases


def spread_biases(model: nn.Module, lag: int) -> dict[str, Tensor]:
    """Biases, by parameter name, that spread the half-lives of every gated layer from one step to twice the lag.

    >>> sorted(spread_biases(GatedRNN("lstm", 2, 4, 1), 10))
    ['layers.0.b_f', 'layers.0.b_i']
    """
    return {name: value for values in _suggestions(model, lag).values() for name, value in values.items()}


def _torch_layers(where: str, module: nn.RNNBase) -> list[tuple[str, str]]:
    """Names of a module's layers as `retention` gives them, and the suffixes of their weights."""
    if module.bidirectional:
        directions = (("forward", ""), ("backward", "_reverse"))
        return [(f"{where} layer {k} {d}", f"_l{k}{s}") for k in range(module.num_layers) for d, s in directions]
    if module.num_layers == 1:
        return [(where, "_l0")]
    return [(f"{where} layer {k}", f"_l{k}") for k in range(module.num_layers)]


def _torch_biases(path: str, module: nn.RNNBase, suffix: str, lag: int) -> dict[str, Tensor]:
    """Logits of the retaining gate (second block of torch's order in both layers) in one bias, zero in the other.

    An LSTM's input gate gets the opposite sign, as chrono initialisation has it: what is kept is not overwritten.
    """
    hidden = module.hidden_size
    logits = torch.logit(torch.exp2(-1 / chrono(2 * lag, hidden)))
    biases = {}
    for role in ("bias_ih", "bias_hh"):
        bias: Tensor = getattr(module, role + suffix).detach().clone()
        first = role == "bias_ih"
        bias[hidden : 2 * hidden] = logits.to(bias) if first else 0.0
        if isinstance(module, nn.LSTM):
            bias[:hidden] = -logits.to(bias) if first else 0.0
        biases[f"{path}.{role}{suffix}".lstrip(".")] = bias
    return biases
