"""Keywords that other functions of the package, or other people, spell otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from lagreach.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
TRAINS = "optimiser= and steps=, what will train the model and for how long"
MEASURES = "optimizer=, the one that has trained the model, in whose steps signal and noise are measured"


def refuse_spelling(wrong: str, expected: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function refuse a keyword that it spells otherwise in a sentence.

    >>> refuse_spelling("optimizer", TRAINS)(print)(optimizer=1)
    Traceback (most recent call last):
    lagreach.errors.InputError: this is spelt otherwise here, where it means something else than elsewhere
      got:      optimizer=
      expected: optimiser= and steps=, what will train the model and for how long
    """

    def guarded(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def whole(*args: P.args, **kwargs: P.kwargs) -> T:
            if wrong in kwargs:
                raise InputError(
                    "this is spelt otherwise here, where it means something else than elsewhere",
                    got=f"{wrong}=",
                    expected=expected,
                )
            return function(*args, **kwargs)

        return whole

    return guarded


def also_called(other: str, name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take one of its keywords by another name as well: the one that functions beside it have for it.

    >>> also_called("separator", "sep")(print)("target", "steps", separator="_")
    target_steps
    """

    def guarded(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def whole(*args: P.args, **kwargs: P.kwargs) -> T:
            given: dict[str, Any] = dict(kwargs)
            if other in given:
                if name in given:
                    raise InputError("these are two names of one argument", got=f"{other}= and {name}=", fix="pass one")
                given[name] = given.pop(other)
            return function(*args, **given)

        return whole

    return guarded
