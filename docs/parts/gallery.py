"""The examples: the question each answers, its script, and what it printed."""

from __future__ import annotations

import ast
from pathlib import Path

DOCS = Path(__file__).parent.parent
EXAMPLES = DOCS.parent / "examples"


def question(script: Path) -> str:
    """First line of the script's text."""
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").splitlines()[0]


def scripts() -> list[Path]:
    """All examples, by name."""
    return sorted(EXAMPLES.glob("*.py"))


def entry(script: Path) -> str:
    """One example, the script folded away."""
    name = script.stem
    return f"""## {name.replace("_", " ")}

{question(script)}

```{{literalinclude}} output/{name}.txt
:language: text
```

<details>
<summary>examples/{script.name}</summary>

```{{literalinclude}} ../examples/{script.name}
:language: python
```

</details>
"""


def text() -> str:
    """A table of questions, then every example with its output."""
    rows = [f"| [{s.stem.replace('_', ' ')}](#{s.stem.replace('_', '-')}) | {question(s)} |" for s in scripts()]
    return "\n".join(["| example | question |", "|---|---|", *rows, "", *map(entry, scripts())])
