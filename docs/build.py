"""Build the documentation with warnings as errors; installs what that needs on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent


def example_report(path: Path) -> None:
    """Write the report that the documentation links to: a small LSTM on three planted lags, before training."""
    import torch

    import lagreach

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(600, 64, 2, generator=generator)
    y = 0.3 * torch.randn(600, 64, 1, generator=generator)
    for lag, weight in ((3, 0.8), (12, 0.5), (40, 0.4)):
        y[:, lag:, 0] += weight * x[:, :-lag, 0]
    model = lagreach.GatedRNN("lstm", 2, 16, 1, generator=generator)
    lags = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48]
    found = lagreach.diagnose(model, (x, y), lags=lags, sequences=8000)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.labelled(cell="lstm").report(path)


def main() -> int:
    """Build docs/_build/html."""
    if find_spec("sphinx") is None or find_spec("myst_parser") is None:
        root = HERE.parent
        install = [sys.executable, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", ".[docs]"]
        subprocess.run(install, cwd=root, check=True)
    example_report(HERE / "_build" / "extra" / "report.html")
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
