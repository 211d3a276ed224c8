"""Code on the pages runs and prints what it says, names and tests that pages speak of exist, generated parts are whole."""

import importlib
import inspect
import re
import sys
import types
from functools import reduce
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import lagreach
from docs.outputs import numbers_and_words

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.S | re.M)

# What readers of a page have at hand before its first block.
NETWORK = """
import torch, lagreach
torch.manual_seed(0)
x = torch.randn(64, 20, 2)
y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
model = lagreach.GatedRNN("lstm", 2, 6, 1)
optimizer = torch.optim.Adam(model.parameters())
criterion, held_out, loader = torch.nn.functional.mse_loss, (x, y), [(x[:2], y[:2])] * 500
"""
LANGUAGE_MODEL = """
import torch, transformers
torch.manual_seed(0)
small = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1}
model = transformers.MambaForCausalLM(transformers.MambaConfig(state_size=4, **small))
tokens = torch.randint(0, 8, (16, 12))
targets = torch.randint(0, 8, (16, 12))
"""
STEP = "(model(x) - y).square().mean().backward(); optimizer.step()\n"
SETUPS = {
    "adapters.md": LANGUAGE_MODEL,
    "callbacks.md": NETWORK + "writer = lambda metrics, step: None\n",
    "convergence.md": "import torch\nx = torch.randn(8, 10, 2, dtype=torch.float64)\n"
    "x, y = x / x.norm(dim=-1, keepdim=True), torch.randn(8, 10, dtype=torch.float64)\n",
    "forecast.md": NETWORK,
    "optimisers.md": NETWORK + STEP,
    "start.md": NETWORK + "d = lagreach.diagnose(model, (x, y), lags=[0, 3])\n",
}
# Trainers of other packages: tests/callbacks runs them.
NOT_RUN = {"callbacks.md": ("lightning.Trainer", "transformers.Trainer")}


def blocks(page):
    return [
        match
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if not any(part in match[1] for part in NOT_RUN.get(page.name, ()))
    ]


def close(printed, shown):
    numbers, words = numbers_and_words(printed)
    expected, other = numbers_and_words(shown)
    assert words == other
    np.testing.assert_allclose(numbers, expected, rtol=0.02)


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(DOCS)))
def test_code_on_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # classes of a page can be pickled, as in a file
    monkeypatch.setitem(sys.modules, "page", module)
    exec(SETUPS.get(page.name, ""), module.__dict__)
    capsys.readouterr()
    for block in blocks(page):
        exec(compile(block[1], page.name, "exec"), module.__dict__)
        printed = capsys.readouterr().out
        if block[2] is not None:
            close(printed, block[2])


def test_code_in_the_readme_prints_what_it_says(capsys):
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 1
    for code, said in blocks:
        assert len([line for line in code.splitlines() if line]) <= 6
        exec(compile(code, "README.md", "exec"), {})
        close(capsys.readouterr().out, said)


def test_how_far_to_trust_it_is_what_the_studies_found():
    from docs.readme import TRUST, trust

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split(TRUST[0])[1].split(TRUST[1])[0].strip()
    assert shown == trust()
    assert len(shown.splitlines()) == 3


def test_what_makes_a_forecast_surer_is_what_the_study_found():
    from docs.readme import FORECAST, marked, surer

    text = FORECAST.read_text(encoding="utf-8")
    assert text == marked(text, surer())


def test_the_page_for_readers_of_the_papers_has_every_equation():
    """Numbers of the first paper without a gap, and commands and tests that exist."""
    first, second = (DOCS / "papers.md").read_text(encoding="utf-8").split("## Cayci")
    rows = [row for row in first.splitlines() if row.startswith("| (")]
    named = []
    for row in rows:
        numbers = [int(n) for n in re.findall(r"\((\d+)\)", row.split("|")[1])]
        named += range(numbers[0], numbers[-1] + 1)
    assert named == list(range(1, 61))
    assert "1, envelopes; 2, windows; 3, scaling; 4, time scales" in first
    for path in re.findall(r"(tests/[\w./]+)", first + second):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(lagreach\.[\w.]+)", first + second):
        resolve(name)


def resolve(name):
    """A module, class, function or method by its full name; modules go before functions of the same name."""
    value, (_, *parts) = lagreach, name.split(".")
    while parts and hasattr(value, "__path__") and find_spec(f"{value.__name__}.{parts[0]}"):
        value = importlib.import_module(f"{value.__name__}.{parts.pop(0)}")
    return reduce(getattr, parts, value)


def documented():
    """Names that the pages describe by autodoc."""
    names = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        names |= set(re.findall(r"auto(?:function|class):: ([\w.]+)", text))
        for owner, members in re.findall(r"autoclass:: ([\w.]+)\n +:members:(.*)", text):
            listed = [one.strip() for one in members.split(",") if one.strip()]
            names |= {f"{owner}.{one}" for one in listed or vars(resolve(owner))}
        for owner, members in re.findall(r"automodule:: ([\w.]+)\n +:members:(.*)", text):
            module = resolve(owner)
            public = getattr(module, "__all__", [one for one in vars(module) if not one.startswith("_")])
            names |= {owner} | {f"{owner}.{one.strip()}" for one in members.split(",") if one.strip()}
            names |= set() if members.strip() else {f"{owner}.{one}" for one in public}
    return names


def test_names_that_pages_link_to_exist_and_are_described():
    links = {name for page in PAGES for name in re.findall(r"\{py:\w+\}`([\w.]+)`", page.read_text(encoding="utf-8"))}
    assert len(links) > 30
    known = documented()
    assert not {name for name in links if name not in known}
    for name in links:
        assert resolve(name) is not None


def test_every_public_name_is_described():
    known = documented()
    for name in lagreach.__all__:
        value = getattr(lagreach, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            described = [resolve(one) for one in known if one.endswith(f".{name}")]
            assert any(value is one for one in described), f"lagreach.{name} is on no page"


def test_tests_that_pages_name_exist():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    written = set(re.findall(r"^def (test_\w+)\(", text, re.M))
    named = {one for page in PAGES for one in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    assert len(named) > 30
    assert named <= written, named - written


def test_files_that_pages_name_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:examples|docs/figures|benchmarks|tests)/[\w/.]+\.\w+)`", text):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
        for path in re.findall(r"\{literalinclude\} (\S+)", text):
            assert (page.parent / path).is_file(), f"{page.name} includes {path}"


def test_every_page_is_in_the_navigation():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    from docs.parts import filled

    listed = set(re.findall(r"^([\w/-]+)$", filled(index), re.M))
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES if page.parent.name != "validation"}
    assert written - {"index"} <= listed
    assert all((DOCS / f"{page}.md").is_file() for page in listed)


def test_the_readme_shows_a_small_picture_and_names_what_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r'<img src="([^"]+)"', text)
    assert pictures == ["docs/images/demo.png"]
    assert (ROOT / pictures[0]).stat().st_size < 300_000
    assert len(text.splitlines()) < 60  # one screen or so
    named = re.findall(r"\]\(([\w./-]+)\)", text)
    assert len(named) > 15
    for path in named:
        assert (ROOT / path).exists(), path
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"make ([\w-]+)", text)) <= set(targets)
