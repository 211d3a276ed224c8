"""`lagreach report` and `lagreach figures`: pages and pictures from files of diagnoses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from lagreach._util.disk import is_folder, refuse_others
from lagreach._util.progress import progress_bar
from lagreach.diagnosis.files import load, load_diagnosis
from lagreach.diagnosis.result import Diagnosis
from lagreach.errors import InputError
from lagreach.forecasting.result import Forecast
from lagreach.report.forecast_page import write_forecast
from lagreach.report.gallery import export
from lagreach.report.html import TITLE, write_report
from lagreach.report.words import named

PLACES = ("*.nc", "diagnoses/*.nc", "forecasts/*.nc")


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Files, and those in folders (also in a run's ``diagnoses``, and in ``forecasts`` of a training that was watched)."""
    files: list[Path] = []
    for path in paths:
        if not is_folder(path):
            files.append(path)
            continue
        inside = next(filter(None, (sorted(path.glob(place)) for place in PLACES)), [])
        if not inside:
            raise InputError("there is no diagnosis in this folder", got=str(path), expected="files *.nc")
        files += inside
    return files


def read(files: Sequence[Path]) -> tuple[list[Diagnosis], list[str]]:
    """Load diagnoses, with a name for each."""
    diagnoses = [load_diagnosis(file) for file in files]
    labels = [", ".join(map(str, diagnosis.labels.values())) for diagnosis in diagnoses]
    informative = len(set(labels)) == len(diagnoses) and all(labels)
    return diagnoses, named(diagnoses) if informative else names_of(files)


def names_of(files: Sequence[Path]) -> list[str]:
    """Name files by what tells them apart: the file alone, or its folder where all files are called the same.

    >>> names_of([Path("runs/a/diagnosis.nc"), Path("runs/b/diagnosis.nc")])
    ['a', 'b']
    >>> names_of([Path("runs/lstm.nc"), Path("runs/gru.nc")])
    ['lstm', 'gru']
    """
    for names in ([file.stem for file in files], [file.resolve().parent.name for file in files]):
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def run_report(paths: Sequence[Path], out: Path, *, title: str) -> None:
    """Write one page for one diagnosis, or for several side by side."""
    refuse_others([out])
    files = files_in(paths)
    if len(files) == 1 and isinstance(alone := load(files[0]), Forecast):
        written = write_forecast(alone, out, **({} if title == TITLE else {"title": title}))
        typer.echo(f"{written} ({written.stat().st_size / 1e6:.1f} MB, a forecast)")
        return
    diagnoses, names = read(files)
    written = write_report(diagnoses, out, names=names, title=title)
    typer.echo(f"{written} ({written.stat().st_size / 1e6:.1f} MB, {len(diagnoses)} diagnoses)")


def run_figures(paths: Sequence[Path], out: Path, *, kind: str, figures: Sequence[str], as_json: bool) -> None:
    """Write figures of diagnoses into a folder."""
    diagnoses, names = read(files_in(paths))
    diagnoses = [
        diagnosis.labelled(name=name) if not diagnosis.labels else diagnosis
        for diagnosis, name in zip(diagnoses, names, strict=True)
    ]
    with progress_bar() as bar:
        files, missing = export(diagnoses, out, names=figures, kind=kind, progress=bar)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files], "missing": missing}, indent=2))
        return
    for file in files:
        typer.echo(str(file))
    for name, why in missing.items():
        typer.echo(f"{name}: not drawn, {why}", err=True)
