"""All figures by name, and files of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lagreach._util.disk import PICTURES, make_folder, refuse_others, save_figure
from lagreach._util.progress import Progress
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError
from lagreach.papers.livi import figures as paper_figures
from lagreach.report import curve_figures, figures

FIGURES: dict[str, Callable[..., Any]] = {
    "bars": curve_figures.bars,
    "window": figures.window,
    "reach": figures.reach,
    "gain": figures.gain,
    "fidelity": figures.fidelity,
    "dependence": figures.dependence,
    "scales": figures.scales,
    "noise": figures.noise,
    "tail": figures.tail,
    "comparison": figures.comparison,
    "training": figures.training,
    "curves": curve_figures.curves,
    "figure-1": paper_figures.figure_1,
    "figure-2": paper_figures.figure_2,
    "figure-3": paper_figures.figure_3,
    "figure-4": paper_figures.figure_4,
}
SINGLE = ("bars", "curves", "dependence", "noise", "tail")  # show one diagnosis; of several, one file each


def export(
    diagnoses: Sequence[Diagnosis],
    out: str | Path,
    *,
    names: Sequence[str] = (),
    kind: str = "png",
    progress: Progress | None = None,
) -> tuple[list[Path], dict[str, str]]:
    """Write figures into a folder; returns the files and, for figures that cannot be drawn, why not.

    `names` are keys of `FIGURES`; all of them by default.
    """
    if kind not in PICTURES:
        raise InputError("unknown format", got=repr(kind), expected=", ".join(PICTURES))
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise InputError("unknown figure", got=", ".join(unknown), expected=", ".join(FIGURES))
    folder = Path(out)
    planned: dict[str, list[tuple[Path, tuple[Diagnosis, ...]]]] = {}
    for name in names or FIGURES:
        parts = [(diagnosis,) for diagnosis in diagnoses] if name in SINGLE else [tuple(diagnoses)]
        stems = [name] if len(parts) == 1 else [f"{name}-{i + 1}" for i in range(len(parts))]
        planned[name] = [(folder / f"{stem}.{kind}", part) for stem, part in zip(stems, parts, strict=True)]
    refuse_others(file for pictures in planned.values() for file, _ in pictures)
    make_folder(folder)
    files, missing = [], {}
    for done, (name, pictures) in enumerate(planned.items(), 1):
        for file, part in pictures:
            try:
                drawn = FIGURES[name](part)
            except InputError as error:
                if names:  # asked for by name: say so
                    raise
                missing[file.stem] = str(error)
                continue
            save(drawn, file)
            files.append(file)
        if progress is not None:
            progress("figures", done, len(planned))
    return files, missing


def save(drawn: Any, file: Path) -> None:
    """Write the figure that some axes belong to."""
    axes = drawn[0] if isinstance(drawn, tuple) else drawn
    save_figure(axes.figure, file, dpi=200, bbox_inches="tight")
