"""Small diagnoses for the tests of reports: measured ones, and ones with everything that can be missing."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import nn

import lagreach
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.window import Requirement
from lagreach.types import Status

HOSTILE = '<b onclick="alert(1)">x</b></script><!--[red]'


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.read = nn.LSTM(2, 6, num_layers=2, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.lstm(x)[0])


def data(sequences=96, time=24):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sequences, time, 2, generator=generator)
    y = 0.3 * torch.randn(sequences, time, 1, generator=generator)
    y[:, 3:, 0] += x[:, :-3, 0]
    y[:, 9:, 0] += 0.5 * x[:, :-9, 0]
    return x, y


@cache
def gated(cell="diag_gate", gate_init=0.1):
    generator = torch.Generator().manual_seed(0)
    model = lagreach.GatedRNN(cell, 2, 6, 1, gate_init=gate_init, generator=generator)
    return lagreach.diagnose(model, data(), lags=[0, 1, 3, 6, 9, 16], sequences=2000)


@cache
def layered():
    torch.manual_seed(0)
    return lagreach.diagnose(Net(), data(), lags=[0, 1, 3, 9])


@cache
def whole():
    """Lags of a whole model: a convolution over time."""

    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inward, self.read = nn.Conv1d(2, 8, 3), nn.Linear(8, 1)

        def forward(self, x):
            return self.read(torch.tanh(self.inward(nn.functional.pad(x.mT, (2, 0))).mT))

    return lagreach.diagnose(Convolved(), data(), lags=[0, 1, 3, 9])


def with_window(diagnosis, **changes):
    """Change the window of the first layer."""
    head = diagnosis.layers[0]
    window = with_curves(replace(head.window, **changes), head.fidelity, head.rates)
    return replace(diagnosis, layers=(replace(head, window=window), *diagnosis.layers[1:]))


def heavy(kappa=2.9, interval=(2.4, 3.6)):
    """A diagnosis whose kappa was measured and lies above 2, with its interval and block size."""
    window = gated().layers[0].window
    rate = replace(
        window.concentration, kappa=kappa, interval=interval, kappa_pessimistic=interval[1], status=Status.OK,
        sizes=(1, 2, 4, 8), spreads=(4.0, 3.0, 2.2, 1.6), n=1000,
    )  # fmt: skip
    return with_window(gated(), concentration=rate)


def refused():
    """A diagnosis whose kappa was refused: N is unknown, clipping is the way out."""
    window = gated().layers[0].window
    nan = np.full(len(window.lags), np.nan)
    status = Status.KAPPA_REFUSED

    def unknown(needed: Requirement) -> Requirement:
        lost = np.where(np.isinf(needed.sequences), np.inf, np.nan)
        return replace(
            needed, sequences=lost, low=np.where(np.isinf(lost), needed.low, nan), high=lost, pessimistic=lost,
            status=tuple(status if np.isnan(n) else s for n, s in zip(lost, needed.status, strict=True)),
        )  # fmt: skip

    rate = replace(window.concentration, kappa=np.inf, interval=(9.0, np.inf), kappa_pessimistic=np.inf, status=status)
    return with_window(gated(), concentration=rate, required=unknown(window.required), probe=unknown(window.probe))


def unreachable():
    """A diagnosis with lags that no number of sequences reaches."""
    window = gated().layers[0].window
    lost = np.arange(len(window.lags)) >= 3

    def cut(needed: Requirement) -> Requirement:
        names = ("sequences", "high", "pessimistic", "robust")
        return replace(needed, **{name: np.where(lost, np.inf, getattr(needed, name)) for name in names})

    return with_window(gated(), probe=cut(window.probe))


def bare():
    """A diagnosis without first order, noise sample and tail fit, with a hostile name."""
    head = gated().layers[0]
    fidelity = replace(
        head.fidelity,
        log10_first_order=torch.full_like(head.fidelity.log10_first_order, torch.nan),
        status=Status.FIRST_ORDER_UNAVAILABLE,
        status_by_lag=(Status.FIRST_ORDER_UNAVAILABLE,) * len(head.fidelity.lags),
    )
    nan = float("nan")
    tail = replace(
        head.tail, alpha=nan, scale=nan, location=nan, interval=(nan, nan), status=Status.TOO_FEW_SAMPLES,
        stable_supported=None, checks=(),
    )  # fmt: skip
    layer = replace(head, name=HOSTILE, fidelity=fidelity, rates=None, noise=None, tail=tail)
    return replace(gated(), layers=(layer,), warnings=(HOSTILE,), labels={"cell": HOSTILE})


CASES = {
    "gated": gated,
    "layered": layered,
    "heavy": heavy,
    "refused": refused,
    "unreachable": unreachable,
    "bare": bare,
    "diagonal": lambda: gated("diag_elman"),  # with its standing to the theory of convergence
}
