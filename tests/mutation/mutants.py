"""Small wrong versions of a source file: one operator, number, condition or statement changed in each."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TABLE = 12  # numbers that make an assignment a table


@dataclass(frozen=True)
class Mutant:
    """One change: the text of the file with it, where it is, and what was done."""

    line: int
    change: str
    text: str

    def diff(self, original: str) -> str:
        """Lines that were taken out and put in."""
        lines = difflib.unified_diff(original.splitlines(), self.text.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def mutants(text: str) -> Iterator[Mutant]:
    """All mutants of a source text, in the order of the text.

    >>> [m.text for m in mutants("def f(a):\\n    return a + 2\\n")]
    ['def f(a):\\n    return None\\n', 'def f(a):\\n    return (a - 2)\\n', 'def f(a):\\n    return a + 3\\n']
    """
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, replacement in _changes(ast.parse(text)):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        source = text.encode()
        changed = (source[:begin] + replacement.encode() + source[end:]).decode()
        yield Mutant(node.lineno, f"{ast.unparse(node)} -> {replacement}"[:120], changed)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes with the text that takes their place.

    Annotations, decorators, messages and docstrings stay as they are, and so do assertions, also that of ``zip(strict=True)``.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
                continue
            if _does_nothing_at_run_time(node) or _is_a_table(node) or getattr(node, "arg", "") == "strict":
                continue
            yield from _own_changes(node)
            yield from _changes(node)


def _is_a_table(node: ast.AST) -> bool:
    """Stored results of a calibration: data, which other tests compare with what they were computed from."""
    numbers = sum(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in ast.walk(node))
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and numbers >= TABLE


def _does_nothing_at_run_time(node: ast.AST) -> bool:
    """A union of types (``int | str``), a type alias or what stands under TYPE_CHECKING does nothing at run time."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.BinOp, ast.Subscript)):
        return ast.unparse(node.targets[0])[:1].isupper() and "[" in ast.unparse(node.value)
    return False


def _own_changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        if type(node.op) in SWAPPED:
            yield node, f"({ast.unparse(_with(node, op=SWAPPED[type(node.op)]()))})"
    elif isinstance(node, ast.Compare):
        ops = [SWAPPED[type(node.ops[0])](), *node.ops[1:]]
        yield node, f"({ast.unparse(_with(node, ops=ops))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, repr(node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPPED:
        yield node, ast.unparse(_with(node, op=SWAPPED[type(node.op)]()))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"  # a call for what it does, left out
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield node, "return None"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
