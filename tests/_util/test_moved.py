"""Old places of modules still import, warn, and hand out the same objects."""

import importlib
import re
import subprocess
import sys

import pytest

import lagreach
from lagreach._moved import ALIASES, LEFT, MOVED
from lagreach.statistics import all_statistics


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


def test_what_moved_to_another_module_than_the_rest_is_said():
    module, diagnose_step = importlib.import_module(MOVED["lagreach.pipeline"]), lagreach.diagnose_step
    with pytest.warns(DeprecationWarning, match=r"is now lagreach\.diagnosis\.bare_step\.diagnose_step"):
        assert module.diagnose_step is diagnose_step


@pytest.mark.parametrize("old", sorted(LEFT))
def test_what_no_longer_exists_as_it_was_says_where_its_work_is_done(old):
    for name in (old, f"{old}.page"):
        with pytest.raises(ModuleNotFoundError, match=re.escape(f"{old} is now in {LEFT[old]}")):
            importlib.import_module(name)


@pytest.mark.parametrize("curve", ["memory", "reliance"])
def test_what_left_the_gradients_is_where_it_is_said_to_be(curve):
    assert f"curve('{curve}')" in LEFT[f"lagreach.gradients.{curve}"]
    assert all_statistics()[curve].__module__ == f"lagreach.statistics.{curve}"


def test_the_old_command_of_the_validation_study_says_the_new_one():
    command = [sys.executable, "-m", "lagreach.study.validation", "results/validation"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python -m studies.validation" in done.stderr


def test_names_that_never_were_are_still_errors():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lagreach.windows")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("lagreach.adapters", "Bound", "BoundRecurrence"),
        ("lagreach.adapters", "Given", "ScanInputs"),
        ("lagreach.adapters", "Written", "AffineStep"),
        ("lagreach.diagnosis.diagnose", "DiagnosisPlan", "DiagnosisCost"),
        ("lagreach.gradients.blocks", "directions", "block_means"),
        ("lagreach.gradients.measurement_plan", "Subject", "MeasurementPlan"),
        ("lagreach.gradients.noise", "statistics", "noise_values"),
    ],
)
def test_an_old_name_warns_and_is_the_same_thing(module, old, new):
    place = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is now {module}\.{new}"):
        value = getattr(place, old)
    assert value is getattr(place, new)
    with pytest.raises(AttributeError, match="has no attribute 'never_was'"):
        place.never_was  # noqa: B018


def test_adapters_with_the_old_names_of_methods_still_work():
    from lagreach.adapters import ScanLayer

    with pytest.warns(DeprecationWarning, match="ScanLayer") as caught:

        class Old(ScanLayer):
            def open(self, *args, **kwargs):
                return "inputs"

            def close(self, scan_inputs, states):
                return "output"

            def answer(self, output, states, args, kwargs):
                return "returned"

    assert [str(one.message).split(";")[0] for one in caught] == [
        "ScanLayer.open is now ScanLayer.read_call",
        "ScanLayer.close is now ScanLayer.output",
        "ScanLayer.answer is now ScanLayer.returned",
    ]
    assert not {"read_call", "output", "returned"} & Old.__abstractmethods__
    assert (Old.read_call(None), Old.output(None, 0, 0)) == ("inputs", "output")
    assert Old.returned(None, 0, 0, (), {}) == "returned"
