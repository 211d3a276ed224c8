"""The demo: train a small gated network on planted lags, and watch its learnability window open."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lagreach.diagnosis import Diagnosis
from lagreach.errors import LagreachError
from lagreach.model import GatedRNN
from lagreach.pipeline import diagnose
from lagreach.report.text import count
from lagreach.tasks.multi_lag import MultiLag
from lagreach.threads import one_thread


@dataclass(frozen=True)
class DemoSettings:
    """The planted-lag task of the paper, scaled down to minutes on a laptop."""

    cell: str = "diag_gate"
    hidden_size: int = 32
    gate_init: float = 0.2
    batch: int = 64
    steps: int = 1500
    lr: float = 5e-3
    weight_decay: float = 1e-4
    clip: float = 1.0
    diagnostic_sequences: int = 512
    seed: int = 0


BUDGET = 500  # sequences
TASK = MultiLag(lags=(4, 8, 16, 32, 64), input_size=4, length=128)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found, by task lag."""

    settings: DemoSettings
    loss: float
    recovered: tuple[float, ...]
    before: Diagnosis
    after: Diagnosis

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for ``--json``."""

        def state(found: Diagnosis) -> dict[str, object]:
            layer = found.layers[0]
            return {
                "exact_gain": layer.fidelity.exact.tolist(),
                "first_order_gain": layer.fidelity.first_order.tolist(),
                "verdict": layer.fidelity.verdict,
                "sequences_needed": layer.window.required_if_present().sequences.tolist(),
                "window": found.window(BUDGET).lag,
            }

        return {
            "settings": asdict(self.settings),
            "lags": list(TASK.lags),
            "planted": list(TASK.coefficients),
            "recovered": list(self.recovered),
            "loss": self.loss,
            "noise_floor": TASK.noise**2,
            "untrained": state(self.before),
            "trained": state(self.after),
        }


def run_demo(settings: DemoSettings, console: Console) -> DemoResult:
    """Diagnose, train, diagnose again; compare with the coefficients the network recovered."""
    generator = torch.Generator().manual_seed(settings.seed)
    model = GatedRNN(
        settings.cell,
        TASK.input_size,
        settings.hidden_size,
        output_size=1,
        gate_init=settings.gate_init,
        generator=generator,
    )
    x, y = TASK.sample(settings.diagnostic_sequences, generator)
    before = _diagnose(model, x, y, settings, "before training", console)
    with one_thread():
        loss = _train(model, settings, generator, console)
    after = _diagnose(model, x, y, settings, "after training", console)
    with torch.no_grad():
        shares = TASK.recovered(x, y, model(x)).tolist()
    recovered = tuple(share * c for share, c in zip(shares, TASK.coefficients, strict=True))
    return DemoResult(settings, loss, recovered, before, after)


def _diagnose(
    model: GatedRNN, x: torch.Tensor, y: torch.Tensor, settings: DemoSettings, when: str, console: Console
) -> Diagnosis:
    with console.status(f"measuring the window {when} ..."):
        found = diagnose(model, (x, y), lags=TASK.lags, seed=settings.seed)
    assert isinstance(found, Diagnosis)
    return found


def _train(model: GatedRNN, settings: DemoSettings, generator: torch.Generator, console: Console) -> float:
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    loss = torch.tensor(float("nan"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        task = progress.add_task(f"training {settings.cell}", total=settings.steps)
        for step in range(settings.steps):
            x, y = TASK.sample(settings.batch, generator)
            loss = (model(x) - y).square().mean()
            if not torch.isfinite(loss):
                raise LagreachError("training diverged", got=f"loss {loss.item()} at step {step}", fix="lower --lr")
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimiser.step()
            schedule.step()
            progress.update(task, advance=1, description=f"training {settings.cell}, loss {loss.item():.3f}")
    return loss.item()


def show(result: DemoResult, console: Console) -> None:
    """Print the result as a table, with words."""
    before, after = result.before.layers[0], result.after.layers[0]
    table = Table(title=f"{result.settings.cell}: what is left of the loss gradient, and what each lag needs")
    headers = ("lag", "planted", "recovered", "exact gain", "first order", "N before", "N after")
    for header in headers:
        table.add_column(header, justify="right")
    needed = (layer.window.required_if_present().sequences for layer in (before, after))
    gains = (after.fidelity.exact.tolist(), after.fidelity.first_order.tolist())
    rows = zip(TASK.lags, TASK.coefficients, result.recovered, *gains, *needed, strict=True)
    for lag, planted, recovered, exact, first, n_before, n_after in rows:
        share = f"{recovered:.2f} ({100 * recovered / planted:3.0f} %)"
        table.add_row(
            str(lag), f"{planted:.2f}", share, f"{exact:.1e}", f"{first:.1e}", count(n_before), count(n_after)
        )
    console.print(table)
    console.print(
        "N: sequences at which a dependency explaining 5 % of the target would be noticed, before and after training."
    )
    for when, found in (("Before", result.before), ("After", result.after)):
        at = found.window(BUDGET)
        reach = "no planted lag" if at.lag is None else f"lag {at.lag}"
        console.print(f"{when} training, {BUDGET:,} sequences reach {reach} of those examined.")
    console.print(f"Loss {result.loss:.3f}; the noise alone is {TASK.noise**2:.3f}.")
    console.print(f"First order against exact: {after.fidelity.verdict}.")
