"""Determinism: the same numbers in every process, whatever the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.reliability.counting import Count, Size

PROGRAM = """
import hashlib, sys
import torch
torch.set_num_threads(int(sys.argv[1]))
import lagreach
from tests.reliability.soak import numbers
from tests.reliability.determinism import problem
torch.manual_seed(int(sys.argv[3]))
torch.rand(int(sys.argv[3]))
model, data = problem(sys.argv[2])
found = lagreach.diagnose(model, data, lags=[0, 1, 3, 8], progress=False)
trained = []
if isinstance(model, lagreach.GatedRNN):
    done = lagreach.train(model, data, epochs=2, batch=16)
    trained = [value.tolist() for value in done.models[0].state_dict().values()]
print(hashlib.blake2b((numbers(found) + repr(trained)).encode()).hexdigest())
"""
MODELS = {"quick": ["gru"], "full": ["lstm", "diag_gate", "torch.GRU bidirectional"]}
THREADS = {"quick": [1, 2, 4], "full": [1, 2, 4]}
PROCESSES = {"quick": 1, "full": 2}


def problem(name):
    """Return a model and data, from fixed seeds; torch's global generator has no say."""
    import torch
    from torch import nn

    import lagreach

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 24, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    if not name.startswith("torch."):
        return lagreach.GatedRNN(name, 2, 16, 1, generator=generator), (x, y)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            kind, _, word = name.removeprefix("torch.").partition(" ")
            self.rnn = getattr(nn, kind)(2, 16, batch_first=True, bidirectional=bool(word))
            self.read = nn.Linear(32 if word else 16, 1)
            with torch.no_grad():
                for p in self.parameters():
                    p.uniform_(-0.3, 0.3, generator=generator)

        def forward(self, x):
            return self.read(self.rnn(x)[0])

    return Net(), (x, y)


def check(size: Size) -> list[Count]:
    """Diagnose and train in fresh processes and compare to the last digit."""
    count = Count(
        "diagnoses and trainings in fresh processes with 1, 2 and 4 threads", "the same numbers to the last digit"
    )
    for model in MODELS[size]:
        seen: set[str] = set()
        for threads in THREADS[size]:
            for process in range(PROCESSES[size]):
                environment = os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
                environment["PYTHONHASHSEED"] = str(17 * process + threads)
                command = [sys.executable, "-c", PROGRAM, str(threads), model, str(process)]
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
                seen.add(done.stdout)
                good = done.returncode == 0 and len(seen) == 1
                count.add(
                    "same numbers" if good else "other numbers",
                    None if good else f"{model}, {threads} threads, process {process}: {done.stderr[-300:]}",
                )
    return [count]
