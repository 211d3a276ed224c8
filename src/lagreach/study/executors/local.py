"""Processes on this machine, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from lagreach.errors import RunError
from lagreach.study.executors._executor import RETRIES, Executor


def _start() -> None:
    """Give every worker one thread, and end it when the process that started it is gone (even by kill -9)."""
    import torch

    torch.set_num_threads(1)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class LocalExecutor(Executor):
    """A pool of processes; with one worker everything runs in this process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def outcomes(
        self, function: Callable[[Any], Any], items: Sequence[Any], finished: Callable[[int, Any], None]
    ) -> None:
        """Run the items; a pool that loses a worker is replaced, and what was not finished starts again."""
        if self.workers == 1:
            for index, item in enumerate(items):
                try:
                    outcome = function(item)
                except Exception as error:
                    outcome = error
                finished(index, outcome)
            return
        left = dict(enumerate(items))
        for _ in range(RETRIES + 1):
            self._until_broken(function, left, finished)
            if not left:
                return
        for index, item in left.items():
            finished(index, RunError(f"the worker died {RETRIES + 1} times", got=item, fix="is there enough memory?"))

    def _until_broken(
        self, function: Callable[[Any], Any], left: dict[int, Any], finished: Callable[[int, Any], None]
    ) -> None:
        """Work until everything is done or the pool breaks; `left` keeps what is not done."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_start)
        try:
            running: dict[Future[Any], int] = {self._pool.submit(function, item): index for index, item in left.items()}
            for done in as_completed(running):
                error = done.exception()
                if isinstance(error, BrokenProcessPool):
                    raise error
                index = running[done]
                del left[index]
                finished(index, done.result() if error is None else error)
        except BrokenProcessPool:
            self.close()
        except BaseException:  # an interrupt: leave nothing running
            self.close()
            raise

    def close(self) -> None:
        """End the workers, finished or not."""
        if self._pool is not None:
            workers = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            self._pool = None
