"""What users rely on changes only on purpose, and everything in it says its types."""

import ast
import difflib
import inspect
from pathlib import Path

import lagreach
from tests import public_api

STUB = Path(lagreach.__file__).with_name("__init__.pyi")


def test_the_public_api_is_the_agreed_one():
    agreed, now = public_api.FROZEN.read_text().splitlines(), public_api.as_text().splitlines()
    changed = "\n".join(difflib.unified_diff(agreed, now, "agreed", "now", lineterm="", n=0))
    assert not changed, f"meant? Then put it into CHANGELOG.md and run: python -m tests.public_api\n{changed}"


def test_what_is_compared_covers_what_is_public():
    names = set(public_api.public_objects())
    assert {f"lagreach.{name}" for name in lagreach.__all__} <= names
    text = public_api.as_text()
    for expected in (
        "lagreach.diagnose(model: nn.Module | View, data: Any, loss: Loss='mse',",
        "lagreach.diagnosis.result.Diagnosis.window(self, sequences: float | None=None,",
        "lagreach.diagnosis.result.Diagnosis.required -> xr.DataArray",
        "lagreach.Status.KAPPA_REFUSED",
        "$ lagreach diagnose --require-lag = None",
        "$ lagreach study run",
    ):
        assert expected in text


def functions_of(value):
    """Public functions of a module's source that belong to a public object."""
    node = public_api._definition(value.__module__, value.__qualname__)
    if isinstance(node, ast.FunctionDef):
        return [node]
    parts = node.body if isinstance(node, ast.ClassDef) else []
    return [f for f in parts if isinstance(f, ast.FunctionDef) and (f.name == "__init__" or f.name[0] != "_")]


def test_every_parameter_and_result_of_the_public_api_has_a_type():
    untyped, seen = [], 0
    for name, value in public_api.public_objects().items():
        if not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        for function in functions_of(value):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            arguments += [extra for extra in (function.args.vararg, function.args.kwarg) if extra is not None]
            bare = [arg.arg for arg in arguments if arg.annotation is None and arg.arg not in ("self", "cls")]
            bare += ["return"] if function.returns is None else []
            untyped += [f"{name}.{function.name}: {arg}" for arg in bare]
            seen += 1
    assert seen > 200
    assert not untyped


def test_type_checkers_see_the_names_that_load_lazily():
    """The package loads names on first use, which type checkers cannot follow: the stub says where they are."""
    stubbed, private = {}, {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            stubbed |= {alias.asname: node.module for alias in node.names if alias.asname == alias.name}
            private |= {alias.asname: node.module for alias in node.names if alias.asname == f"_{alias.name}"}
        elif isinstance(node, ast.Assign):  # a module under another name
            stubbed[node.targets[0].id] = private[node.value.id]
    assert STUB.with_name("py.typed").exists()
    modules = {name for name, home in lagreach._MODULES.items() if home == f"lagreach.{name}"}
    expected = lagreach._HOME | dict.fromkeys(modules, "lagreach") | {"__version__": "lagreach._version"}
    expected |= {name: home.rsplit(".", 1)[0] for name, home in lagreach._MODULES.items() if name not in modules}
    assert stubbed == expected
