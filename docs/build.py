"""Build the documentation with warnings as errors; installs what that needs on first use."""

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
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(HERE),
        str(HERE / "_build" / "html"),
    ]
    return subprocess.run(build, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
