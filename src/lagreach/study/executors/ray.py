"""Ray: a cluster by its address, or a local one that is started and stopped here.

Pieces of work write into the run's folder, so it must lie on a file system that all nodes see.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lagreach.errors import RunError, UnsupportedError
from lagreach.study.executors._executor import RETRIES, Executor, Resources


def _run(function: Callable[[Any], Any], item: Any) -> Any:
    """Do one piece; errors of the work itself come back as values, so that Ray retries lost workers only."""
    import torch

    torch.set_num_threads(1)
    try:
        return function(item)
    except Exception as error:
        return error


class RayExecutor(Executor):
    """Tasks on a Ray cluster."""

    def __init__(self, workers: int | None, address: str | None, resources: Resources) -> None:
        try:
            import ray
        except ImportError as error:
            raise UnsupportedError(
                "Ray is not installed", got=str(error), fix='pip install "lagreach[ray]", or --executor local'
            ) from error
        self._ray = ray
        self._resources = resources
        self._started = not ray.is_initialized()
        if self._started:
            cluster: dict[str, Any] = (
                {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
            )
            try:
                ray.init(**cluster, log_to_driver=False, logging_level=logging.WARNING, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise RunError(
                    "the Ray cluster cannot be reached",
                    got=f"{address or 'local'}: {error}",
                    fix="start one with `ray start --head` and pass its --address, or use --executor local",
                ) from error
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1) / resources.cpus))

    def outcomes(
        self, function: Callable[[Any], Any], items: Sequence[Any], finished: Callable[[int, Any], None]
    ) -> None:
        """Submit everything, and hand on results as they come."""
        ray = self._ray
        task = ray.remote(_run).options(
            num_cpus=self._resources.cpus, num_gpus=self._resources.gpus, max_retries=RETRIES, retry_exceptions=False
        )
        held = ray.put(function)
        running = {task.remote(held, item): index for index, item in enumerate(items)}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(ready)
            try:
                outcome = ray.get(ready)
            except ray.exceptions.RayError as error:
                outcome = RunError(
                    f"the worker was lost {RETRIES + 1} times",
                    got=f"{items[index]}: {error}",
                    fix="see the log of the cluster; is there enough memory?",
                )
            finished(index, outcome)

    def close(self) -> None:
        """Stop the cluster if it was started here."""
        if self._started:
            self._ray.shutdown()
