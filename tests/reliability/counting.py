"""What the checks share: sizes, counts, and a call that may succeed or be refused but must do nothing else."""

from __future__ import annotations

import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from lagreach.errors import LagreachError

HANG_SECONDS = 60  # of work; a call that only waits may take ten times as long on a busy machine
SHOWN_FAILURES = 12
Size = str  # "quick" (part of `make test`) or "full" (`make reliability`)


@dataclass
class Count:
    """Something that was tried, how often, and how often it went wrong."""

    what: str
    expected: str  # what counts as going well
    asked: int = 0  # trials that were meant to be made; the page says so if they are fewer
    tried: int = 0
    failed: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    def add(self, outcome: str, failure: str | None = None) -> None:
        """Count one trial; `failure` says what went wrong, if anything did."""
        self.tried += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if failure is not None:
            self.failed += 1
            if len(self.failures) < SHOWN_FAILURES:
                self.failures.append(failure[:600])

    def attempt(self, call: Callable[[], object], about: object = "") -> str:
        """Count a call that must succeed or be refused with a LagreachError, without hanging."""
        outcome, problem = outcome_of(call)
        self.add(outcome, None if problem is None else f"{about!r:.300}: {problem}")
        return outcome


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class Hang(BaseException):
    """A call that did not come back; no `except Exception` on its way can swallow it."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Interrupt what takes too long."""

    def ring(*_: object) -> None:
        raise Hang

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds))
    before = [signal.signal(number, ring) for number, *_ in timers]
    for _, timer, most in timers:
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def outcome_of(call: Callable[[], object], seconds: float = HANG_SECONDS) -> tuple[str, str | None]:
    """Return "succeeded" or "refused" and None, or "failed" and what went wrong."""
    try:
        with warnings.catch_warnings(), alarm(seconds):
            warnings.simplefilter("ignore")
            call()
    except LagreachError:
        return "refused", None
    except Hang:
        return "failed", f"no answer after {seconds:g} s"
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "succeeded", None


def explore(strategy: SearchStrategy[Any], trial: Callable[[Any], None], examples: int, size: Size) -> None:
    """Run a trial on examples of a strategy: the same ones every time in the quick size."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=size == "quick",
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(example: Any) -> None:
        trial(example)

    run()
