"""Small models with gated linear layers, and what every adapter is tested for."""

import torch
from torch import nn

from lagreach import lag_gradients
from lagreach.adapters import find_views
from lagreach.data.batch import Batch

SEQ, TIME, WIDTH = 3, 9, 6


class Wrapped(nn.Module):
    """A layer between two linear maps; `options` go to every call of the layer."""

    def __init__(self, layer, width=WIDTH, inputs=2, outputs=2, **options):
        super().__init__()
        self.front = nn.Linear(inputs, width)
        self.layer, self.options = layer, options
        self.read = nn.Linear(width, outputs)

    def forward(self, x):
        returned = self.layer(self.front(x), **self.options)
        return self.read(returned[0] if isinstance(returned, tuple) else returned)


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tokens(*shape, below=11, seed=0):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def randomise(model, scale=0.3, seed=0):
    """Move the weights away from their initial values, where too many things are zero or small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model.eval()


def scan_view(model, x, call=None):
    (view,) = find_views(model, Batch(x, torch.zeros(len(x))), call)
    return view


def own_gradients(model, loss):
    """Autograd's gradient of every weight; complex ones as pairs of real numbers."""
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return {n: torch.view_as_real(g) if g.is_complex() else g for n, g in zip(named, grads, strict=True)}


def mse(model, x, y):
    return (model(x) - y).square().mean()


def lag_totals(model, x, y):
    return lag_gradients(model, x, y).total()


def loop(log_decay, value):
    """The recurrence itself, step by step, from zero."""
    state, states = torch.zeros_like(value[:, 0]), []
    for t in range(value.shape[1]):
        state = torch.exp(log_decay[:, t]) * state + value[:, t]
        states.append(state)
    return torch.stack(states, dim=1)
