"""The worked example of CONTRIBUTING.md passes what it says it passes."""

import importlib
import re
import textwrap
from pathlib import Path

import pytest
import torch

import lagreach
from lagreach.testing import check_cell

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
CELL, CHECK, MORE = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.fixture(name="make")
def _make(tmp_path, monkeypatch):
    """Import a source text as a module of its own, so that its classes can be pickled."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        return importlib.import_module(name)

    return make


def test_shapes_and_a_step_are_enough(capsys, make):
    make("least_ugrnn", CELL + CHECK)
    assert capsys.readouterr().out.startswith("ugrnn: passed 9 checks")


def test_with_its_retention_the_cell_has_a_first_order_and_a_bias(generator, make):
    in_the_class = textwrap.indent(textwrap.dedent(MORE), "    ")  # formatters move such blocks to the margin
    cell = make("whole_ugrnn", f"{CELL}\n{in_the_class}").UGRNN
    check_cell(cell)
    model = lagreach.GatedRNN(cell, 2, 8, 1, chrono=20, generator=generator)
    assert (model.layers[0]["b_g"] >= 0).all()
    x = torch.randn(4, 12, 2, generator=generator)
    rates = lagreach.effective_rates(model, x, [0, 2, 8])
    kept = model.stack.cells[0].gates(x, torch.zeros(4, 12, 8), dict(model.layers[0]))["g"]
    assert 0.5 < kept.mean() < 1
    assert (rates.envelope[1:] < rates.envelope[:-1]).all()


def test_every_make_target_is_explained():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()) - {"clean"}
    assert targets == set(re.findall(r"^\| `make ([\w-]+)` \|", TEXT, re.M))
