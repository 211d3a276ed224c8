"""Soak: many small diagnoses in one process. Memory must not grow, and the numbers must stay the same."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import torch

import lagreach
from lagreach.diagnosis.files import encode
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.diagnosis.result import Diagnosis
from tests.reliability.counting import Count, Size

DIAGNOSES = {"quick": 60, "full": 10_000}
WARM_UP = 0.1  # share of the diagnoses before memory is first read
ALLOWED_GROWTH = 0.05


def small_problem() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return a model and data whose diagnosis takes some ten milliseconds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 8, 1, generator=generator)
    y = torch.nn.functional.pad(x[:, :-2, :1], (0, 0, 2, 0))
    return lagreach.GatedRNN("diag_gate", 1, 2, 1, gate_init=0.2, generator=generator), (x, y)


def diagnose_once() -> Diagnosis:
    """Diagnose the small problem from scratch."""
    model, data = small_problem()
    diagnosis = lagreach.diagnose(
        model, data, lags=[0, 2, 4], settings=MeasureSettings(blocks=8, probes=1, flips=99), progress=False
    )
    assert isinstance(diagnosis, Diagnosis)
    return diagnosis


def numbers(diagnosis: Diagnosis) -> str:
    """Everything a diagnosis says, to the last digit, but for the time it took."""
    record = encode(diagnosis)
    record["fields"].pop("seconds")
    return json.dumps(record, sort_keys=True)


def resident_bytes() -> int:
    """Memory that this process holds."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def check(size: Size) -> list[Count]:
    """Diagnose again and again."""
    wanted = DIAGNOSES[size]
    count = Count("small diagnoses in one process", "the same numbers every time, memory growth under 5 %", wanted)
    first, start, peak = numbers(diagnose_once()), 0, 0
    for k in range(wanted):
        same = numbers(diagnose_once()) == first
        count.add("same numbers" if same else "other numbers", None if same else f"diagnosis {k} gave other numbers")
        if k + 1 == max(1, round(WARM_UP * wanted)):
            start = resident_bytes()
        elif start and (k + 1) % max(1, wanted // 50) == 0:
            peak = max(peak, resident_bytes())
    growth = peak / start - 1
    count.measured = {"memory after warm-up (MiB)": start / 2**20, "largest growth after it (%)": 100 * growth}
    if growth > ALLOWED_GROWTH:
        count.failed += 1
        count.failures.append(f"memory grew by {100 * growth:.1f} %")
    return [count]
