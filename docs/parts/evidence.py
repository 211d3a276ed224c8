"""Which pages of evidence there are: some are written by commands that need hours, and appear once they have run."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent
PAGES = ("benchmarks", "results", "validation/index", "reliability", "testing")


def pages() -> list[str]:
    """Pages that exist, and pages of the validation that its own index does not lead to."""
    existing = [page for page in PAGES if (DOCS / f"{page}.md").is_file()]
    index = DOCS / "validation" / "index.md"
    led_to = index.read_text(encoding="utf-8") if index.is_file() else ""
    others = [path.stem for path in sorted((DOCS / "validation").glob("*.md")) if path != index]
    return existing + [f"validation/{name}" for name in others if name not in led_to]


def text() -> str:
    """Navigation to the pages that exist."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", ":caption: Evidence", ":hidden:", "", *pages(), "```"])
