"""Threads: small recurrent steps are slower on several threads than on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on a single thread inside the block, and put its setting back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers:
    """Threads for functions that let go of the interpreter; as many as there are jobs, and they end with this object."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs at once, and wait for them."""
        if len(jobs) == 1:
            jobs[0]()
            return
        if self._pool is None or self._threads < len(jobs):
            self._pool, self._threads = ThreadPoolExecutor(len(jobs)), len(jobs)
        for running in [self._pool.submit(job) for job in jobs]:
            running.result()
