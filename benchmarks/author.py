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
from typing import Any

import torch
from torch import Tensor, nn

from lagreach import GatedRNN

VARIABLE = "LAGREACH_AUTHOR"  # how the folder reaches the processes that time
SCRIPT = "run_learnability_DGX.py"
OTHER_SCRIPT = "run_learnability_lstm_gru_DGX.py"
NEEDED = {
    SCRIPT: (
        "build_model",
        "compute_vseq_jvp",
        "precompute_prefix_sums",
        "mu_for_envelope_from_prefix",
        "mu_for_matched_stat_from_prefix",
    ),
    OTHER_SCRIPT: ("build_model",),
}
CELLS = {"const_gate": "const", "shared_gate": "shared", "diag_gate": "diag"}  # what the first script calls them
LAYERS = {  # their input and recurrent layers, by the suffix of our weights
    "const_gate": {"h": ("Wx", "Wh")},
    "shared_gate": {"h": ("Wx", "Wh"), "s": ("Ws", "Us")},
    "diag_gate": {"h": ("Wx", "Wh"), "s": ("Ws", "Us")},
    "gru": {k: (f"W{k}", f"U{k}") for k in "zrh"},
    "lstm": {k: (f"W{k}", f"U{k}") for k in "ifog"},
}


def check_folder(folder: Path) -> None:
    """Refuse a folder that does not hold the scripts."""
    if not (folder / SCRIPT).is_file():
        raise SystemExit(
            f"--author {folder}: there is no {SCRIPT}; pass a checkout of github.com/lorenzolivi/learnability"
        )


@cache
def scripts(script: str = SCRIPT) -> ModuleType | None:
    """Load one of the scripts, or None if no folder was named."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    check_folder(Path(folder))
    spec = importlib.util.spec_from_file_location(f"author_{Path(script).stem}", Path(folder) / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    missing = [name for name in NEEDED[script] if not hasattr(module, name)]
    if missing:
        raise SystemExit(f"{script} has no {', '.join(missing)}: a version of the scripts that is not known here")
    return module


def network(ours: GatedRNN, gate: float) -> nn.Module | None:
    """Their network with our weights; None if no folder was named."""
    cell = ours.cell.name
    theirs = scripts(SCRIPT if cell in CELLS else OTHER_SCRIPT)
    if theirs is None:
        return None
    sizes: tuple[Any, ...] = (ours.input_size, ours.hidden_size)
    model: nn.Module = theirs.build_model(*((CELLS[cell], *sizes, gate) if cell in CELLS else (cell, *sizes)), False)
    weights = ours.layers[0]
    with torch.no_grad():
        for kind, (reads, recurs) in LAYERS[cell].items():
            getattr(model, reads).weight.copy_(weights[f"W_{kind}"])
            getattr(model, reads).bias.copy_(weights[f"b_{kind}"])
            getattr(model, recurs).weight.copy_(weights[f"U_{kind}"])
        model.out.load_state_dict(ours.readout.state_dict())
    return model


def training_step(ours: GatedRNN, x: Tensor, y: Tensor, gate: float) -> Callable[[], Tensor] | None:
    """Forward and backward pass as in their training loop, without the optimiser; None if no folder was named."""
    model = network(ours, gate)
    if model is None:
        return None

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        output, _, _ = model.forward_with_intermediates(x, return_intermediates=False)
        loss = nn.functional.mse_loss(output, y)
        loss.backward()
        return loss.detach()

    return step


def diagnosis(ours: GatedRNN, x: Tensor, y: Tensor, lags: Sequence[int], gate: float) -> Callable[[], object] | None:
    """Envelope, sums by unit and matched statistic of one batch, by the author's functions; None for other cells."""
    theirs = scripts()
    if theirs is None or ours.cell.name not in CELLS:
        return None
    model: Any = network(ours, gate)
    time = x.shape[1]

    def run() -> list[tuple[Tensor, Tensor]]:
        with torch.no_grad():
            output, _, inside = model.forward_with_intermediates(x)
        moved = theirs.compute_vseq_jvp(model, x, 0).detach()
        kept, rest = inside["leak"], inside["rdiag"]
        delta = 2 * (output - y) / time @ model.out.weight
        prefix = theirs.precompute_prefix_sums(kept, rest)
        sums = []
        for lag in lags:
            size = theirs.mu_for_envelope_from_prefix(*prefix, kept, rest, lag, out_dtype=kept.dtype).abs().double()
            rate = theirs.mu_for_matched_stat_from_prefix(*prefix, lag, out_dtype=kept.dtype)[2]
            evidence = (rate * delta[:, lag:] * moved[:, : time - lag]).sum(2).double()
            sums.append((size.mean(1).sum(0), evidence.sum(1)))
        return sums

    return run
