"""Outcomes of the studies that were run at full size: whatever lies in ``results/``."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parent.parent
RESULTS = DOCS.parent / "results"
NOTHING = "No study has been stored yet: `lagreach study run livi-v1 --scale paper --out results/livi-v1` makes one."


def shifted(markdown: str) -> str:
    """The same text with its headings one level lower; code blocks are left alone."""
    blocks = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    return "".join(one if one.startswith("```") else re.sub(r"^(#+ )", r"#\1", one, flags=re.M) for one in blocks)


def linked(markdown: str, folder: Path) -> str:
    """The same text with pictures and files found from the documentation; links to files that are not stored become words."""

    def one(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path = folder / target
        if not path.is_file():
            return words
        return f"{mark}[{words}]({Path(os.path.relpath(path, DOCS)).as_posix()})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", one, markdown)


def study(path: Path) -> str:
    """One study: its text, and the pictures that the text does not show itself."""
    markdown = path.read_text(encoding="utf-8")
    pictures = sorted((path.parent / "figures").glob("*.png"))
    not_shown = [picture for picture in pictures if f"figures/{picture.name}" not in markdown]
    shown = [f"![{picture.stem.replace('_', ' ').replace('-', ', ')}](figures/{picture.name})" for picture in not_shown]
    return shifted(linked("\n\n".join([markdown.rstrip(), *shown]), path.parent)) + "\n"


def text() -> str:
    """All studies, by name."""
    texts = sorted(RESULTS.glob("*/RESULTS.md"))
    return "\n".join(map(study, texts)) if texts else NOTHING
