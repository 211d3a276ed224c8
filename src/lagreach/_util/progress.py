"""A progress bar with the time left, where there is a terminal to show it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
Tick = Callable[[int], None] | None


def ticks(progress: Progress | None, stage: str, of: int) -> Tick:
    """Turn counts of newly finished sequences into calls of `progress` with how many are done."""
    if progress is None:
        return None
    done = 0

    def tick(new: int) -> None:
        nonlocal done
        done += new
        progress(stage, done, of)

    return tick


@contextmanager
def progress_bar(show: bool | None = None) -> Iterator[Progress]:
    """Give a function (stage, done, of) that draws a bar per stage on the terminal; silent without one."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    visible = console.is_terminal if show is None else show
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not visible, transient=True) as bars:
        tasks = {}

        def report(stage: str, done: int, of: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=of)
            bars.update(tasks[stage], completed=done)

        yield report


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a line with a spinner while something takes its time; silent without a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
