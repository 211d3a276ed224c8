"""`watch`: diagnose a model every so often while it trains, in a loop of your own."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from lagreach._util.bounds import check_bounds, is_number
from lagreach._util.disk import make_folder
from lagreach.adapters.as_it_was import leaves_as_it_was
from lagreach.callbacks.flat import metrics
from lagreach.callbacks.foretelling import EARLY, Foreteller, forecast_metrics
from lagreach.callbacks.loggers import as_logger
from lagreach.callbacks.untouched import training_untouched
from lagreach.data.sequences import Sequences, as_sequences
from lagreach.diagnosis.check import check_diagnosable
from lagreach.diagnosis.diagnose import diagnose
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError, LagreachError, RunError
from lagreach.forecasting.result import Forecast
from lagreach.report.figures import training
from lagreach.report.gallery import save

UNITS = ("step", "epoch")
_NOT_FOR_WATCHING = ("dry_run", "progress", "measure")


class Watch:
    """Diagnoses a model on held-out data while it trains; see `watch`.

    Attributes
    ----------
    history
        The diagnoses so far, labelled with their step or epoch.
    failures
        What went wrong, whatever it was: (step or epoch, message). Training goes on.
    skipped
        How many diagnoses were left out because the total budget was spent.
    seconds
        Time spent on diagnoses and forecasts so far.
    forecasts
        What was forecast early in the training, labelled with its step.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        every: int = 1,
        unit: str = "step",
        budget: float | None = 30.0,
        total: float | None = None,
        logger: Any = None,
        out: str | Path | None = None,
        labels: Mapping[str, str | int | float] | None = None,
        log_lags: Sequence[int] | None = None,
        planned: int | None = None,
        forecast_at: Sequence[float] = EARLY,
        say: Callable[[str], Any] | None = print,
        **options: Any,
    ) -> None:
        if unit not in UNITS:
            raise InputError("unknown unit", got=repr(unit), expected=" or ".join(UNITS))
        if not (is_number(every) and every >= 1):
            raise InputError(
                "diagnoses come every so many steps or epochs", got=f"every={every!r}", expected="1 or more"
            )
        if not (labels is None or isinstance(labels, Mapping)):
            raise InputError("labels are texts and numbers by name", got=repr(labels), expected='such as {"run": 5}')
        refused = [name for name in _NOT_FOR_WATCHING if name in options]
        if refused:
            raise InputError(
                "these options are not for watching",
                got=", ".join(refused),
                fix="pass them to lagreach.diagnose instead",
            )
        self.history: list[Diagnosis] = []
        self.failures: list[tuple[int, str]] = []
        self.skipped: int = 0
        self.seconds: float = 0.0
        self.unit: str = unit
        self._every = every
        self._model, self._data = _unwrapped(model), data
        self._sequences: Sequences | None = None
        self._budget, self._total = budget, total
        self._logger = None if logger is None else as_logger(logger)
        self._out = None if out is None else Path(out)
        self._written: set[Path] = set()
        self._labels, self._log_lags, self._options = dict(labels or {}), log_lags, options
        self._count = dict.fromkeys(UNITS, 0)
        self._closed, self._checked = False, False
        self.forecasts: list[Forecast] = []
        self._say = say
        self._foreteller = None if planned is None or not forecast_at else Foreteller(planned, forecast_at, options)

    @leaves_as_it_was
    def check(self) -> None:
        """Read the data and try the model on a few sequences: what does not fit is then said before training starts."""
        check_bounds(total=self._total)
        with training_untouched(self._model, self._data):
            check_diagnosable(self._model, self._read(), budget=self._budget, **self._options)
        self._checked = True

    def _check_once(self) -> None:
        """Raise at the first call what `lagreach.diagnose` refuses: a mistake is then known before hours of training."""
        if self._checked:
            return
        try:
            self.check()
        except RunError:  # what the disk refuses is said by every diagnosis
            self._checked = True
        except LagreachError:
            raise
        except Exception:  # no fault of the arguments; a diagnosis will say it
            self._checked = True

    def step(self, count: int | None = None) -> Diagnosis | None:
        """Say that a training step is done; returns a diagnosis if one was due.

        `count` is the number of steps so far, for loops that keep it themselves (after a resume, say).
        """
        return self._advance("step", count)

    def epoch(self, count: int | None = None) -> Diagnosis | None:
        """Say that an epoch is done; returns a diagnosis if one was due."""
        return self._advance("epoch", count)

    def _advance(self, unit: str, count: int | None) -> Diagnosis | None:
        before = self._count[unit]
        self._count[unit] = before + 1 if count is None else count
        self._check_once()
        if unit == "step" and self._foreteller is not None and self._foreteller.due(before, self._count[unit]):
            self.forecast()
        if unit != self.unit or self._count[unit] == before or self._count[unit] % self._every:
            return None
        if self._total is not None and self.seconds + (self._budget or 0.0) > self._total:
            self.skipped += 1
            return None
        return self.diagnose()

    @leaves_as_it_was
    def diagnose(self) -> Diagnosis | None:
        """Diagnose now. What goes wrong is a warning, and training goes on.

        Only the first call of all raises, where `lagreach.diagnose` would refuse the model, the data or the options.
        """
        self._check_once()
        now = self._count[self.unit]
        started = time.perf_counter()
        try:
            with training_untouched(self._model, self._data):
                diagnosis = self._measure(now)
        except Exception as error:  # whatever it is, it is no reason to lose the training
            self._fail(now, f"no diagnosis at {self.unit} {now}: {_said(error)}")
            return None
        finally:
            self.seconds += time.perf_counter() - started
        if diagnosis.partial:  # the interrupt was meant for the training
            raise KeyboardInterrupt
        return diagnosis

    @leaves_as_it_was
    def forecast(self) -> Forecast | None:
        """Forecast now what will be learned, and say it; None where that cannot be done, which is a warning."""
        if self._foreteller is None:
            raise InputError(
                "it is not known how long the training will be", got="planned=None", fix="pass planned=steps in all"
            )
        if self._total is not None and self.seconds + (self._budget or 0.0) > self._total:
            self.skipped += 1
            return None
        now, started = self._count["step"], time.perf_counter()
        try:
            with training_untouched(self._model, self._data):
                made = self._foreteller.forecast(self._model, self._read(), now, self._budget)
        except Exception as error:
            self._fail(now, f"no forecast at step {now}: {_said(error)}")
            return None
        finally:
            self.seconds += time.perf_counter() - started
        made = replace(made, labels={**self._labels, "step": now})
        self.forecasts.append(made)
        for what, keep in (
            ("said", self._say_forecast),
            ("saved", self._save_forecast),
            ("logged", self._log_forecast),
        ):
            try:
                keep(made, now)
            except Exception as error:
                self._fail(now, f"the forecast at step {now} was not {what}: {_said(error)}")
        return made

    def _say_forecast(self, made: Forecast, now: int) -> None:
        if self._say is not None and self._foreteller is not None:
            self._say(self._foreteller.say(made, now))

    def _save_forecast(self, made: Forecast, now: int) -> None:
        if self._out is not None:  # in a folder of its own: those beside it are diagnoses
            make_folder(self._out / "forecasts")
            made.save(self._unused(f"forecasts/step-{now:08d}", ".nc"))

    def _log_forecast(self, made: Forecast, now: int) -> None:
        if self._logger is not None:
            self._logger.log(forecast_metrics(made), now)

    def _measure(self, now: int) -> Diagnosis:
        diagnosis = diagnose(self._model, self._read(), budget=self._budget, progress=False, **self._options)
        diagnosis = diagnosis.labelled(**self._labels, **{self.unit: now})
        self.history.append(diagnosis)
        for what, keep in (("saved", self._save), ("logged", self._log)):
            try:
                keep(diagnosis, now)
            except Exception as error:  # the diagnosis itself is in the history
                self._fail(now, f"the diagnosis at {self.unit} {now} was not {what}: {_said(error)}")
        return diagnosis

    def _save(self, diagnosis: Diagnosis, now: int) -> None:
        if self._out is not None:
            make_folder(self._out)
            diagnosis.save(self._unused(f"{self.unit}-{now:08d}", ".nc"))

    def _log(self, diagnosis: Diagnosis, now: int) -> None:
        if self._logger is not None:
            self._logger.log(metrics(diagnosis, lags=self._log_lags), self._count["step"] or now)

    def _unused(self, name: str, suffix: str) -> Path:
        """Return a path that no earlier training has written to: its files stay."""
        assert self._out is not None
        path = self._out / f"{name}{suffix}"
        for number in itertools.count(2):
            if path in self._written or not os.path.lexists(path):
                break
            path = self._out / f"{name}-{number}{suffix}"
        if path.stem != Path(name).stem and not self._written:
            text = f"{self._out} holds files of an earlier training; they stay, and this one's are called {path.name} and so on"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        self._written.add(path)
        return path

    def _fail(self, now: int, message: str) -> None:
        self.failures.append((now, message))
        warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _read(self) -> Sequences:
        if self._sequences is None:  # read once: all diagnoses see the same sequences
            self._sequences = as_sequences(self._data)
        return self._sequences

    def close(self) -> None:
        """Draw the window over training into the folder; further calls do nothing."""
        if self._closed or self._out is None or not self.history:
            return
        self._closed = True
        try:
            with training_untouched(self._model):
                make_folder(self._out)
                save(training(self.history), self._unused("training", ".png"))
        except Exception as error:
            self._fail(self._count[self.unit], f"the window over training was not drawn: {_said(error)}")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        rows = [f"{self.unit} {diagnosis.labels[self.unit]}: {diagnosis.window()}" for diagnosis in self.history]
        rows += [f"{self.unit} {now}: failed: {message.splitlines()[0]}" for now, message in self.failures]
        rows += [self._foreteller.say(made, int(made.labels["step"])) for made in self.forecasts if self._foreteller]
        left_out = f", {self.skipped} left out" if self.skipped else ""
        return "\n".join([f"{len(self.history)} diagnoses in {self.seconds:.0f} s{left_out}", *rows])


def watch(model: nn.Module, data: Any, *, every: int = 1, unit: str = "step", **options: Any) -> Watch:
    """Watch the window of a model while it trains; the training itself stays the same, bit for bit.

    Parameters
    ----------
    model
        The model that is being trained; wrappers of torch (compile, DataParallel) are looked through.
    data
        Held-out data, in any form that `lagreach.diagnose` takes; a loader is read once.
    every, unit
        Diagnose after every so many calls of `step` ("step") or of `epoch` ("epoch").
    budget
        Seconds that one diagnosis may take (30): a fair subsample of the data is measured. None measures all.
    total
        Seconds for all diagnoses together; what would exceed them is left out.
    logger
        Where the numbers go: a TensorBoard writer, wandb, MLflow, a function of (metrics, step), or several in a list.
        The names are those of `lagreach.callbacks.metrics`.
    out
        Folder for one file per diagnosis, and for ``training.png`` at the end; ``lagreach report FOLDER`` makes a page. What
        lies there already stays.
    labels
        Names of this run, such as ``{"cell": "lstm"}``, kept in the files.
    log_lags
        Lags whose numbers are logged.
    planned
        Steps that the training will take. Then it is forecast what will be learned after 1 % and 5 % of them, within
        `budget` seconds, and said in one sentence.
    forecast_at
        Parts of the planned steps after which a forecast is made; none if empty.
    say
        What takes that sentence: `print`, a function of your own, or None.
    options
        As for `lagreach.diagnose`: loss, lags, sequences, strength, optimizer, call, ...

    Examples
    --------
    >>> import torch, lagreach
    >>> x = torch.randn(64, 16, 1)
    >>> model = lagreach.GatedRNN("diag_gate", 1, 4, 1, gate_init=0.3)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> with lagreach.watch(model, (x, x.roll(2, 1)), every=5, lags=[0, 2, 4], budget=None) as watched:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         (model(x) - x.roll(2, 1)).square().mean().backward()
    ...         optimizer.step()
    ...         _ = watched.step()
    >>> [diagnosis.labels["step"] for diagnosis in watched.history]
    [5, 10]
    """
    return Watch(model, data, every=every, unit=unit, **options)


def _said(error: Exception) -> str:
    """The text of an error, with its kind where it is not one of ours, which say what is wrong."""
    return str(error) if isinstance(error, (LagreachError, OSError)) else f"{type(error).__name__}: {error}"


def _unwrapped(model: nn.Module) -> nn.Module:
    """Look through torch.compile and DataParallel, which hide the model's own modules."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return _unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model
