"""Every error message, read from the source: plain sentences that say what was got, and what was expected or what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lagreach
from lagreach import errors
from tests.reliability.counting import Count, Size

SOURCE = Path(lagreach.__file__).parent
KINDS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.LagreachError)
}
LONGEST = 120
# names of Python's own world, and of the inside of modules
INTERNAL = re.compile(r"(?<![\w}])(self\.|_[a-z]\w*|__\w+__|kwargs|NoneType|isinstance|assert)\b")


@dataclass(frozen=True)
class Message:
    """One place where an error is raised; `{}` stands for what is put in at run time."""

    place: str
    kind: str
    problem: str
    parts: dict[str, str]

    def faults(self) -> list[str]:
        """Say what is wrong with it."""
        wrong = []
        if not self.problem:
            wrong.append("no sentence")
        if len(self.problem) > LONGEST:
            wrong.append("too long a sentence; details belong into got=, expected= or fix=")
        if self.problem.endswith((".", "!")):
            wrong.append("ends with a full stop")
        if INTERNAL.search(" ".join([self.problem, *self.parts.values()])):
            wrong.append("names something internal")
        if "got" not in self.parts and "{}" not in self.problem and not {"expected", "fix"} & set(self.parts):
            wrong.append("says nothing of what was got, expected or to do")
        if not {"expected", "fix"} & set(self.parts) and not _says_what_is_right(self.problem):
            wrong.append("says neither what was expected nor what to do")
        return wrong

    def __str__(self) -> str:
        return f"{self.place} {self.kind}: {self.problem} | " + " | ".join(f"{k}: {v}" for k, v in self.parts.items())


def _says_what_is_right(problem: str) -> bool:
    """Whether the sentence itself is a rule, such as "one seed for each model"."""
    rules = (
        r"\b(must|needs?|cannot|can only|only|is a|are a|at least|one \w+ for|did you mean|already|does not exist)\b"
    )
    return re.search(rules, problem) is not None


def text_of(node: ast.expr | None) -> str:
    """Text of a literal or a formatted string; what is computed shows as {}."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "{}"


def messages() -> Iterator[Message]:
    """Collect every call that makes one of lagreach's errors."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                yield Message(
                    place=f"{path.relative_to(SOURCE)}:{node.lineno}",
                    kind=node.func.id,
                    problem=text_of(node.args[0]) if node.args else "",
                    parts={word.arg or "": text_of(word.value) for word in node.keywords},
                )


def check(size: Size) -> list[Count]:
    """Read all messages."""
    count = Count("places that raise an error", "a plain sentence, what was got, what was expected or what to do")
    for message in messages():
        faults = message.faults()
        count.add("well said" if not faults else "poor", f"{message}: {'; '.join(faults)}" if faults else None)
    parts = ("got", "expected", "fix")
    every = list(messages())
    count.measured = {f"with {part}= (%)": 100 * sum(part in m.parts for m in every) / len(every) for part in parts}
    return [count]
