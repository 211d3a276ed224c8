"""Threads: small recurrent steps are slower on several threads than on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch

_OUTSIDE: list[int] = []  # threads that torch had before each block that is being run on one


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on a single thread inside the block, and put its setting back afterwards."""
    before = torch.get_num_threads()
    _OUTSIDE.append(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _OUTSIDE.pop()
        torch.set_num_threads(before)


@contextmanager
def threads_of_user() -> Iterator[None]:
    """Run torch on as many threads as it had outside of all `one_thread` blocks, for large products."""
    before = torch.get_num_threads()
    torch.set_num_threads(_OUTSIDE[0] if _OUTSIDE else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers:
    """Threads for functions that let go of the interpreter: as many as torch has. They end with this object."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs, and wait for them."""
        if len(jobs) == 1 or torch.get_num_threads() == 1:
            for job in jobs:
                job()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads())  # which starts them as they are needed
        running = [self._pool.submit(job) for job in jobs]
        wait(running)
        for done in running:
            done.result()  # which raises what the job raised
