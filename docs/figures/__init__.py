"""Pictures of the documentation, all made by lagreach: ``python -m docs.figures FOLDER`` draws them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from docs.figures import flow, theory, windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[], Figure]] = {
    "fading": windows.fading,
    "drowning": windows.drowning,
    "needed": windows.needed,
    "training": windows.training,
    "expansion": theory.expansion,
    "densities": theory.densities,
    "averages": theory.averages,
    "growth": theory.growth,
    "echo": theory.echo,
    "cutoff": theory.cutoff,
}


def draw(folder: Path) -> None:
    """Write every picture as SVG; the same inputs give the same bytes."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "lagreach"}):
        for name, make in FIGURES.items():
            make().savefig(folder / f"{name}.svg", metadata={"Date": None})
    (folder / "flow.svg").write_text(flow.svg(), encoding="utf-8")


def main() -> None:
    """Draw into the folder that the command names."""
    parser = argparse.ArgumentParser(description=draw.__doc__)
    parser.add_argument("folder", type=Path)
    draw(parser.parse_args().folder)
