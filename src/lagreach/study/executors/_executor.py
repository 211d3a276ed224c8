"""The interface of executors, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from lagreach._util.progress import Progress
from lagreach.errors import InputError, LagreachError, RunError

RETRIES = 3  # of a piece whose worker died


@dataclass(frozen=True)
class Resources:
    """What one piece of work needs; fractions of a GPU let several pieces share one."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not (self.cpus > 0 and self.gpus >= 0):
            raise InputError(
                "a piece of work needs some of a processor",
                got=f"cpus={self.cpus}, gpus={self.gpus}",
                expected="cpus above 0, gpus 0 or more; fractions are fine",
            )


def counting(progress: Progress | None, stage: str, of: int, done: int = 0) -> Callable[[int, Any], None] | None:
    """Make an `on_result` for `Executor.map` that tells how many pieces are done."""
    if progress is None:
        return None
    progress(stage, done, of)

    def count(_: int, __: Any) -> None:
        nonlocal done
        done += 1
        progress(stage, done, of)

    return count


class Executor(ABC):
    """Maps functions over items, somewhere. Use it as a context manager."""

    workers: int

    @abstractmethod
    def outcomes(
        self, function: Callable[[Any], Any], items: Sequence[Any], finished: Callable[[int, Any], None]
    ) -> None:
        """Call ``finished(index, result or exception)`` for every item, in any order."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the workers."""

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        on_result: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Results of a module-level function, in the order of the items."""
        results: list[Any] = [None] * len(items)
        failed: dict[int, BaseException] = {}

        def finished(index: int, outcome: Any) -> None:
            if isinstance(outcome, BaseException):
                failed[index] = outcome
                return
            results[index] = outcome
            if on_result is not None:
                on_result(index, outcome)

        self.outcomes(function, items, finished)
        if failed:
            first = failed[min(failed)]
            told = {str(error).partition("\n")[0] for error in failed.values() if isinstance(error, LagreachError)}
            if all(isinstance(error, LagreachError) for error in failed.values()) and len(told) == 1:
                raise first  # a full disk, say, stops many pieces: one sentence says it
            raise RunError(
                f"{len(failed)} of {len(items)} pieces of work failed; the others are done",
                got="; ".join(
                    f"{items[i]}: {type(error).__name__}: {error}" for i, error in sorted(failed.items())[:3]
                ),
                fix="see to the cause and resume",
            ) from first
        return results

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
