"""The paper author's own functions, timed where a user has checked them out (github: lorenzolivi/learnability).

Nothing of them is part of this repository: they are loaded from the folder that ``--author`` names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

VARIABLE = "LAGREACH_AUTHOR"  # how the folder reaches the processes that time
SCRIPT = "run_learnability_DGX.py"
NEEDED = ("build_model", "compute_vseq_jvp", "precompute_prefix_sums", "mu_for_envelope_from_prefix")
NEEDED += ("mu_for_matched_stat_from_prefix",)
CELLS = {"const_gate": "const", "shared_gate": "shared", "diag_gate": "diag"}


def check_folder(folder: Path) -> None:
    """Refuse a folder that does not hold the scripts."""
    if not (folder / SCRIPT).is_file():
        raise SystemExit(
            f"--author {folder}: there is no {SCRIPT}; pass a checkout of github.com/lorenzolivi/learnability"
        )


@cache
def scripts() -> ModuleType | None:
    """Load the scripts, or None if no folder was named."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    check_folder(Path(folder))
    spec = importlib.util.spec_from_file_location("author_scripts", Path(folder) / SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    missing = [name for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise SystemExit(f"{SCRIPT} has no {', '.join(missing)}: a version of the scripts that is not known here")
    return module


def diagnosis(
    cell: str, x: Tensor, y: Tensor, lags: Sequence[int], hidden: int, gate: float
) -> Callable[[], object] | None:
    """Envelope, sums by unit and matched statistic of one batch, by the author's functions; None for other cells."""
    theirs = scripts()
    if theirs is None or cell not in CELLS:
        return None
    model = theirs.build_model(CELLS[cell], x.shape[2], hidden, gate, False)
    time = x.shape[1]

    def run() -> list[tuple[Tensor, Tensor]]:
        with torch.no_grad():
            output, _, inside = model.forward_with_intermediates(x)
        moved = theirs.compute_vseq_jvp(model, x, 0).detach()
        kept, rest = inside["leak"], inside["rdiag"]
        delta = 2 * (output - y) / time @ model.out.weight
        prefix = theirs.precompute_prefix_sums(kept, rest)
        found = []
        for lag in lags:
            size = theirs.mu_for_envelope_from_prefix(*prefix, kept, rest, lag, out_dtype=kept.dtype).abs().double()
            rate = theirs.mu_for_matched_stat_from_prefix(*prefix, lag, out_dtype=kept.dtype)[2]
            evidence = (rate * delta[:, lag:] * moved[:, : time - lag]).sum(2).double()
            found.append((size.mean(1).sum(0), evidence.sum(1)))
        return found

    return run
