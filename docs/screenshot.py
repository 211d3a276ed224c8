"""The picture of the README: ``make screenshot`` makes it from what ``make demo`` found, with fewer colours."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
DEMO = DOCS.parent / "runs" / "demo" / "demo.png"
PICTURE = DOCS / "images" / "demo.png"
COLOURS = 64  # enough for bars and text, at a third of the bytes


def main() -> int:
    """Copy the demo's picture."""
    if not DEMO.is_file():
        print(f"there is no {DEMO.relative_to(DOCS.parent)}: run make demo first", file=sys.stderr)
        return 2
    with Image.open(DEMO) as picture:
        PICTURE.parent.mkdir(exist_ok=True)
        picture.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(DOCS.parent)}, {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
