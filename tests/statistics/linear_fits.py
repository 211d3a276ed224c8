"""Linear reservoirs whose shares are known, and actual ridge fits to hold closed forms against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lagreach.statistics.linear_share import ANCHORS, Observed, ShareCurves, ShareMoments, share_curves
from lagreach.statistics.readable import readable_rows, start

BLOCKS = 16


def transition(kind: str, size: int) -> tuple[Tensor, Tensor]:
    """Matrices (A, b) of ``s_t = A s_{t-1} + b x_t``."""
    b = torch.zeros(size, dtype=torch.float64)
    b[0] = 1.0
    if kind == "delay":
        return torch.diag(torch.ones(size - 1, dtype=torch.float64), -1), b
    if kind == "leaky":
        return 0.9 * torch.eye(size, dtype=torch.float64), b
    generator = torch.Generator().manual_seed(1)
    A = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    return 0.9 * A, torch.randn(size, generator=generator, dtype=torch.float64)


def reservoir(kind: str, sequences: int, time: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (seq, time, 1) and states (seq, time, unit)."""
    A, b = transition(kind, size)
    x = torch.randn(sequences, time, 1, generator=generator, dtype=torch.float64)
    s, states = torch.zeros(sequences, size, dtype=torch.float64), []
    for t in range(time):
        s = s @ A.T + x[:, t] * b
        states.append(s)
    return x, torch.stack(states, dim=1)


def observe(x: Tensor, y: Tensor, *, last: bool = False, block: Tensor | None = None, seed: int = 0) -> Observed:
    """What a pass shows of a scalar regression with a target at every step, or at the last one."""
    n, time = x.shape[:2]
    times = torch.full((n, 1), time - 1) if last else torch.arange(time).expand(n, time)
    shares = torch.full(times.shape, 1 / times.shape[1], dtype=torch.float64)
    target = y[:, -1:] if last else y
    generator = torch.Generator().manual_seed(seed)
    return Observed(
        block=torch.arange(n) * BLOCKS // n if block is None else block,
        times=times,
        shares=shares,
        planted=x,
        residual=target,
        towards=torch.ones(*times.shape, 1, 1, dtype=torch.float64),
        along_residual=target,
        along_output=torch.zeros_like(target),
        along=(0,),
        chance=torch.rand(n, ANCHORS, generator=generator, dtype=torch.float64),
    )


def moments(observed: Observed, states: Tensor, lags: list[int], last: bool = False) -> ShareMoments:
    """Sums of a readout on states (seq, time, unit)."""
    sums = start(BLOCKS, states.shape[2], lags, torch.ones(1, 1))
    sums.add(readable_rows(observed, states[:, -1:] if last else states, lags))
    return sums


def curves(
    kind: str, lags: list[int], *, sequences: int, time: int, size: int = 12, last: bool = False, seed: int = 0
) -> ShareCurves:
    """Shares of a reservoir with targets of pure noise."""
    generator = torch.Generator().manual_seed(seed)
    x, states = reservoir(kind, sequences, time, size, generator)
    y = torch.randn(sequences, time, 1, generator=generator, dtype=torch.float64)
    return share_curves(moments(observe(x, y, last=last, seed=seed), states, lags, last))


def ridge_fits(
    kind: str, lag: int, strength: float, sequences: int, *, time: int, size: int, last: bool, fits: int
) -> np.ndarray:
    """Slopes on the planted dependency of ridge fits from so many sequences, shrunk as fresh data like best."""
    generator = torch.Generator().manual_seed(99)

    def rows(n: int) -> tuple[Tensor, Tensor]:
        x, states = reservoir(kind, n, time, size, generator)
        z = torch.nn.functional.pad(x, (0, 0, lag, 0))[:, :time]
        return (states[:, -1], z[:, -1]) if last else (states.flatten(0, 1), z.flatten(0, 1))

    phi, z = rows(4000)
    S, c, power = phi.T @ phi / len(phi), phi.T @ z / len(phi), z.square().mean()
    slopes = []
    for _ in range(fits):
        phi, z = rows(sequences)
        noise = torch.randn(z.shape, generator=generator, dtype=torch.float64)
        y = strength**0.5 * z + (1 - strength) ** 0.5 * noise
        phi, y = phi - phi.mean(0), y - y.mean(0)
        values, vectors = torch.linalg.eigh(phi.T @ phi / len(phi))
        shrinkage = values[-1] * torch.logspace(-10, 4, 120, dtype=torch.float64)
        beta = vectors @ ((vectors.T @ (phi.T @ y / len(phi))) / (values[:, None].clamp(min=0) + shrinkage))
        loss = (beta * (S @ beta)).sum(0) - 2 * strength**0.5 * (beta * c).sum(0)
        best = beta[:, loss.argmin()]
        slopes.append(float(best @ c[:, 0] / power / strength**0.5))
    return np.array(slopes)
