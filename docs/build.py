"""Build the documentation with warnings as errors: pictures, the example report, then the pages.

What it needs is installed on first use.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Build docs/_build/html."""
    if find_spec("sphinx") is None or find_spec("myst_parser") is None:
        root = HERE.parent
        install = [sys.executable, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", ".[docs]"]
        subprocess.run(install, cwd=root, check=True)
    sys.path.insert(0, str(HERE.parent))
    from docs import figures

    figures.draw(HERE / "_build" / "figures")
    report = HERE / "_build" / "extra" / "report.html"
    report.parent.mkdir(parents=True, exist_ok=True)
    figures.windows.example().report(report)
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-E",
        "-q",
        "-b",
        "html",
        str(HERE),
        str(HERE / "_build" / "html"),
    ]
    return subprocess.run(build, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
