"""Shapes and types in signatures are checked at run time in the tests (and only there)."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch
from _pytest.doctest import DoctestModule
from jaxtyping import install_import_hook

import tests.typecheck  # noqa: F401 (the hook looks it up by name)

install_import_hook("lagreach", "tests.typecheck.check")

# `make test` draws the same examples every time; HYPOTHESIS_PROFILE=search (`make test-all`) looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


APART = (
    "tests/studies",
    "tests/papers",
    "src/lagreach/papers",
)  # nothing else rests on them: left to make test-thorough
LONG_SET_UP = "tests/kernels/test_triton.py"  # more than a minute, once for all tests of the file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of studies and of the papers' own parts are thorough ones.

    The file with a long set-up comes first: where processes steal tests from the end of each other's lists, nobody then takes
    half of it and makes the set-up once more.
    """
    for item in items:
        if any(item.path.is_relative_to(config.rootpath / folder) for folder in APART):
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: item.path != config.rootpath / LONG_SET_UP)


@pytest.hookimpl(optionalhook=True)  # where xdist is installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Group tests for ``--dist loadfile``."""
    from tests.scheduling import ByFileOrKernel

    return ByFileOrKernel(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Look for examples only where there are some: files without any need not be imported (trainers, Triton, Ray)."""
    collectors = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text():
        return [one for one in collectors if not isinstance(one, DoctestModule)]
    return collectors


@pytest.fixture
def generator() -> torch.Generator:
    """Return a seeded generator, fresh for every test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seed_of_doctests() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the run-time type checks, so that bad input reaches the errors users would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
