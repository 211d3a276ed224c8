"""Which files a run writes: what may be removed of a run that was made before runs had a list of their files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lagreach._util.disk import disk_errors, is_temporary
from lagreach.study.config import RECIPES, StudyConfig

FOLDERS = ("trainings", "diagnoses", "figures", "experiments", "predictors")
FILES = (
    *("config.yaml", "versions.json", "summary.parquet", "claims.json", "RESULTS.md", "report.html"),
    *("outcomes.parquet", "predictors.parquet"),  # of a validation study
)
FIGURES_OF_BEFORE = ("envelopes", "windows", "scaling", "spectra", "learning", "tails", "noise_floor", "over_training")


def written_by(config: StudyConfig) -> re.Pattern[str]:
    """Names of the files that a run of this study writes."""

    def any_of(names: list[str]) -> str:
        return f"(?:{'|'.join(map(re.escape, names))})" if names else "(?!)"

    variants = any_of([variant.name for variant in config.variants])
    if config.kind == "validation":
        variants = "[A-Za-z0-9_.+-]+"  # conditions, whose names are made from the plan
    groups = any_of(
        [f"{figure}-{variant.group or 'all'}" for figure in FIGURES_OF_BEFORE for variant in config.variants]
    )
    experiments, recipes = any_of(list(config.experiments)), any_of(list(RECIPES))
    return re.compile(
        "|".join(
            [
                any_of(list(FILES)),
                rf"trainings/{variants}/(?:(?:state|model)-\d{{6,}}|weights)\.safetensors",
                rf"trainings/{variants}/(?:metrics|recovered|outcomes)\.parquet",
                rf"diagnoses/{variants}-\d+-\d{{6,}}-{recipes}\.(?:nc|parquet)",
                rf"predictors/{variants}(?:-\w+-s\d+)?\.parquet",
                rf"experiments/{experiments}\.json",
                rf"figures/(?:{groups}|{experiments})\.(?:png|svg)",
            ]
        )
    )


def files_in(folder: Path) -> list[str]:
    """Names of everything in a folder that is not a folder, sorted; links are not followed, and count as files."""
    names = []

    def refuse(error: OSError) -> None:
        raise error

    with disk_errors(folder):
        for place, folders, files in os.walk(folder, onerror=refuse):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            names += [Path(place, name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(names)


def without_temporary(names: list[str]) -> list[str]:
    """Names but for those of files that were being written when a process ended."""
    return [name for name in names if not is_temporary(Path(name).name)]
