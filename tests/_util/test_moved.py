"""Old places of modules still import, warn, and hand out the same objects."""

import importlib
import sys

import pytest

import lagreach
from lagreach._moved import ALIASES, MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_place_warns_and_is_the_same_module(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__spec__.name == MOVED[old]


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_an_alias_is_the_same_module_and_nobody_is_warned(old):
    sys.modules.pop(old, None)
    assert importlib.import_module(old) is importlib.import_module(ALIASES[old])


def test_modules_below_an_alias_are_the_same_too():
    from lagreach.convergence import bounds, ntk

    from lagreach.papers.cayci import bounds as same_bounds

    assert bounds is same_bounds
    assert ntk is lagreach.convergence.ntk


def test_names_that_never_were_are_still_errors():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lagreach.windows")
