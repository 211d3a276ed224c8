"""`lagreach demo`: a minute's story. What a small LSTM will learn, what stands in the way, what mends it, what came of it."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lagreach._util.disk import make_folder, refuse_others
from lagreach._util.extras import require_extra
from lagreach._util.seeds import check_seed
from lagreach._util.threads import one_thread
from lagreach.advice.advise import Advice, advise
from lagreach.forecasting.forecast import forecast
from lagreach.forecasting.limits import BLENDED, FEW_SEQUENCES, FEW_STEPS, UNSEEN
from lagreach.report.demo_page import PAGE, PICTURE, Panel, percent, write_page
from lagreach.tasks._task import slopes

LAGS = (2, 40, 60)
LENGTH, UNITS, SEQUENCES, HELD_OUT = 68, 32, 1000, 512
NOISE, RATE, BATCH, STEPS = 0.3, 3e-3, 32, 600
SEED = 0
PLAIN = {  # what stands in the way, for someone who meets it for the first time
    UNSEEN: "forgotten by then: it does not arrive",
    BLENDED: "arrives mixed up with what came before and after it",
    FEW_SEQUENCES: "more sequences than these are needed",
    FEW_STEPS: "more training is needed",
}
LEARNED = 0.5  # share from which a lag counts as learned


class SmallLSTM(nn.Module):
    """An LSTM with a linear readout of its last state, as torch starts it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Answer at the end of a sequence."""
        answer: Tensor = self.readout(self.lstm(x)[0][:, -1])
        return answer


def flagged(sequences: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Readings with a flag at three of them; the answer is the sum of the flagged ones, and some noise."""
    x = torch.zeros(sequences, LENGTH, 2)
    x[..., 0] = torch.randn(sequences, LENGTH, generator=generator)
    x[:, [LENGTH - 1 - lag for lag in LAGS], 1] = 1.0
    y = (x[..., 0] * x[..., 1]).sum(1, keepdim=True)
    return x, y + NOISE * torch.randn(y.shape, generator=generator)


def recovered(model: nn.Module, data: tuple[Tensor, Tensor]) -> list[float]:
    """Share of each flagged reading in the model's answers, on fresh sequences."""
    x, _ = data
    with torch.no_grad():
        answers = model(x)[:, 0].double()
    readings = torch.stack([x[:, LENGTH - 1 - lag, 0] for lag in LAGS], dim=1).double()
    return [float(share) for share in slopes(readings, answers)]


def train(model: nn.Module, data: tuple[Tensor, Tensor], seed: int = SEED) -> None:
    """An ordinary training: Adam on the squared error."""
    x, y = data
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(STEPS):
        if len(order) < BATCH:
            order = torch.randperm(len(x), generator=generator)
        batch, order = order[:BATCH], order[BATCH:]
        loss = (model(x[batch]) - y[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@dataclass(frozen=True)
class Story:
    """What the demo found."""

    usual: Panel
    mended: Panel
    advice: Advice
    seconds: float

    @property
    def question(self) -> str:
        """What is to be learned."""
        return (
            f"An LSTM of {UNITS} units at its usual start is to learn from {SEQUENCES:,} sequences. The answer depends on three "
            f"readings: {LAGS[0]}, {LAGS[1]} and {LAGS[2]} steps back."
        )

    @property
    def says(self) -> str:
        """The advice in a line, without the entries of weights that it changes."""
        return self.advice.first.says.partition(" (")[0].rstrip(".")

    def lines(self) -> list[str]:
        """The answer in a dozen lines."""
        return [
            self.question,
            "",
            "steps back   forecast   after training   what stands in the way",
            *_rows(self.usual),
            "",
            f"What to do: {self.says[:1].lower()}{self.says[1:]}:",
            f"    {self.advice.first.code.partition('   #')[0]}",
            "",
            "the same, as advised:",
            *_rows(self.mended),
        ]


def _rows(panel: Panel) -> list[str]:
    rows = zip(LAGS, panel.forecast, panel.outcome, panel.why, strict=True)
    return [f"{lag:>10}   {percent(said):>8}   {percent(came):>14}   {why}" for lag, said, came, why in rows]


@one_thread()
def tell(seed: int = SEED) -> Story:
    """Forecast, advise, forecast the advised network, train both."""
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    training, held_out, fresh = (flagged(count, generator) for count in (SEQUENCES, HELD_OUT, HELD_OUT))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        usual = SmallLSTM()
    before = panel_of(usual, held_out)
    missed = [lag for lag, share in zip(LAGS, before.forecast, strict=True) if share < LEARNED] or [max(LAGS)]
    adam = torch.optim.Adam(usual.parameters(), lr=RATE)
    advice = advise(usual, held_out, max(missed), sequences=SEQUENCES, target_steps="last", optimiser=adam, steps=STEPS)
    mended = copy.deepcopy(usual)
    advice.apply(mended)
    after = panel_of(mended, held_out)
    for model in (usual, mended):
        train(model, training, seed)
    return Story(
        before.with_outcome(recovered(usual, fresh)),
        after.with_outcome(recovered(mended, fresh)),
        advice,
        time.perf_counter() - started,
    )


def panel_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Panel:
    """What will be recovered of each lag, and why not."""
    made = forecast(model, data, (SEQUENCES,), LAGS, target_steps="last", directions=64)
    share = np.nan_to_num(made.in_data.values[:, 0])
    why = [
        "-" if value >= LEARNED else PLAIN.get(str(word), str(word))
        for value, word in zip(share, made.limits.values, strict=True)
    ]
    return Panel(LAGS, tuple(float(value) for value in share), tuple(why))


def run_demo(out: Path, seed: int = SEED) -> list[str]:
    """Tell the story, draw it, write its page; return what is to be printed."""
    require_extra("report")  # before the work: what is missing, and what cannot be written, is said at once
    check_seed(seed)
    make_folder(out)
    refuse_others([out / PAGE, out / PICTURE])
    story = tell(seed)
    titles = ("as torch starts it", "as advised")
    page = write_page(out, (story.usual, story.mended), titles, story.question, story.says, story.advice)
    return [*story.lines(), "", f"{page} opens with the picture ({story.seconds:.0f} s)."]
