"""The picture of a report in the README: ``make screenshot`` makes it from a diagnosis of ``make demo``.

Needs Chromium (the package of the system) and writes docs/images/report.png.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from lagreach import load

DOCS = Path(__file__).parent
DIAGNOSIS = DOCS.parent / "runs" / "demo" / "diagnoses" / "diag_adamw-0-000060-exact.nc"
PICTURE = DOCS / "images" / "report.png"
SIZE = (1200, 1450)
COLOURS = 160  # enough for a page of text and lines, at half the bytes


def photograph(page: Path, picture: Path) -> None:
    """Take a picture of a page."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--screenshot={picture}", f"--window-size={SIZE[0]},{SIZE[1]}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def main() -> int:
    """Draw the report of one trained network of the demo."""
    if not DIAGNOSIS.is_file():
        print(f"there is no {DIAGNOSIS.relative_to(DOCS.parent)}: run make demo first", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page, raw = Path(folder) / "report.html", Path(folder) / "report.png"
        load(DIAGNOSIS).report(page)
        photograph(page, raw)
        with Image.open(raw) as picture:
            PICTURE.parent.mkdir(exist_ok=True)
            picture.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(DOCS.parent)}, {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
