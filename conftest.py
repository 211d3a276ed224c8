"""Shapes and types in signatures are checked at run time in the tests (and only there)."""

import os

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

import tests.typecheck  # noqa: F401 (the hook looks it up by name)

install_import_hook("lagreach", "tests.typecheck.check")

# `make test` draws the same examples every time; HYPOTHESIS_PROFILE=search (`make test-all`) looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


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
