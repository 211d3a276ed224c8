"""Where independent pieces of work run: in this process, in several, or on a Ray cluster. One interface, one answer.

An executor maps a function over items and gives back the results in order. A worker that dies is replaced and its piece
done again; an error that the work itself raises is not retried, and comes out after the other pieces are finished.
"""

from __future__ import annotations

from lagreach.errors import InputError
from lagreach.study.executors._executor import Executor, Resources, counting
from lagreach.study.executors.local import LocalExecutor

EXECUTORS = ("local", "ray")

__all__ = ["EXECUTORS", "Executor", "LocalExecutor", "Resources", "counting", "make_executor"]


def make_executor(
    name: str = "local", *, workers: int | None = None, address: str | None = None, resources: Resources | None = None
) -> Executor:
    """Make an executor by name.

    Parameters
    ----------
    workers
        Local processes (or processors of a local Ray cluster); 1 works in this process.
    address
        Of an existing Ray cluster; a local one is started if None.
    resources
        What one piece of work needs.
    """
    if name not in EXECUTORS:
        raise InputError("unknown executor", got=repr(name), expected=" or ".join(EXECUTORS))
    if workers is not None and workers < 1:
        raise InputError("workers must be a positive number", got=workers)
    if name == "ray":
        from lagreach.study.executors.ray import RayExecutor

        return RayExecutor(workers=workers, address=address, resources=resources or Resources())
    if address is not None:
        raise InputError("only a Ray cluster has an address", got=address, fix="--executor ray")
    return LocalExecutor(workers or 1)
