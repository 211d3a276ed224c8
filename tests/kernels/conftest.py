"""Kernels are compiled once for each type of number: tests of one type stay in one process (``--dist loadgroup``)."""

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            params = item.callspec.params if hasattr(item, "callspec") else {}
            item.add_marker(pytest.mark.xdist_group(str(params.get("dtype", torch.float64))))
