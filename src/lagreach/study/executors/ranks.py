"""The ranks of `torchrun`: every one does its share, and every one gets all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from lagreach.errors import InputError, LagreachError
from lagreach.study.executors._executor import Executor


class RanksExecutor(Executor):
    """Every rank maps the same function over the same items: each does its share, and all get all results.

    Ranks talk through gloo, since results lie in the processors' memory. Nothing is sent but results.
    """

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "the ranks have not been brought together",
                got="torch.distributed is not initialised",
                expected="a script that runs under torchrun",
                fix="call torch.distributed.init_process_group() first, on every rank",
            )
        self._group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self.rank, self.workers = dist.get_rank(), dist.get_world_size()

    def outcomes(
        self, function: Callable[[Any], Any], items: Sequence[Any], finished: Callable[[int, Any], None]
    ) -> None:
        """Do every so many of the items, and hand results round."""
        mine: dict[int, Any] = {}
        for index in range(self.rank, len(items), self.workers):
            try:
                mine[index] = function(items[index])
            except Exception as error:  # every rank must hear of it, or the others would wait for ever
                mine[index] = error if isinstance(error, LagreachError) else RuntimeError(repr(error))
        for part in self.gathered(mine):
            for index, outcome in part.items():
                finished(index, outcome)

    def gathered(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        values: list[Any] = [None] * self.workers
        dist.all_gather_object(values, value, group=self._group)
        return values

    def check_same(self, what: str, value: str) -> None:
        """Refuse ranks that are given different things."""
        values = self.gathered(value)
        if len(set(values)) > 1:
            raise InputError(
                f"the ranks were not given the same {what}",
                got=", ".join(f"rank {rank}: {told}" for rank, told in enumerate(values[:4])),
                expected=f"the same {what} on every rank",
                fix="give every rank all of the data (no DistributedSampler) and the same model: the ranks share the work",
            )

    def close(self) -> None:
        """Let go of the group; the ranks themselves are the caller's."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
