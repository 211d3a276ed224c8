"""Are time, memory and the estimate of both what was promised? Every case in a process of its own, on one thread.

Times are those of the process: what else the machine does takes nothing from them. The estimate reads the same clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from tests.reliability.counting import Count, Size

FACTOR = 1.5  # how far an estimate or a limit may be off
OWN_SHARE, OWN_SECONDS = 0.02, 0.25  # of the work, or in all, that estimating it may take
SHORT = 1.0  # seconds below which set-up hides everything else,
SHORT_BUDGET = 3.0  # and below which half of them are not enough for the fewest sequences
SMALL = 150  # MiB below which the allocator hides everything else

EXPECTED = (
    f"time, memory and budget within a factor of {FACTOR}; estimated in {OWN_SHARE:.0%} of the time or {OWN_SECONDS} s"
)

# name: (what makes the model, sequences, steps, inputs, options of diagnose)
LAYERS = {
    "a GRU of 64 units, many sequences": ("Reads(nn.GRU(8, 64, batch_first=True))", 1500, 64, 8, {}),
    "a GRU of 64 units, four lags": ("Reads(nn.GRU(8, 64, batch_first=True))", 4000, 64, 8, {"lags": [0, 1, 3, 8]}),
    "an LSTM of 128 units, 128 steps": ("Reads(nn.LSTM(8, 128, batch_first=True))", 96, 128, 8, {}),
    "an LSTM of 256 units, 256 steps": ("Reads(nn.LSTM(1, 256, batch_first=True))", 32, 256, 1, {}),
    "two LSTM layers of 64 units": ("Reads(nn.LSTM(8, 64, 2, batch_first=True))", 128, 96, 8, {}),
    "four LSTM layers of 32 units": ("Reads(nn.LSTM(8, 32, 4, batch_first=True))", 96, 64, 8, {}),
    "a loop over a GRU cell": ("Loop()", 500, 64, 8, {}),
    "a GatedRNN of 256 units": ("lagreach.GatedRNN('diag_gate', 8, 256, 1)", 96, 96, 8, {}),
    "a Mamba layer of transformers": ("mamba(1)", 64, 48, 0, {"loss": "cross_entropy"}),
    "two Mamba layers of transformers, as a whole": ("mamba(2)", 64, 48, 0, {"loss": "cross_entropy"}),
    "a Transformer of two layers": ("Encoder()", 1000, 64, 8, {}),
    "a small GPT-2 of transformers": ("gpt2()", 512, 64, 0, {"loss": "cross_entropy"}),
    "a Transformer, ten dependences": ("Small()", 1200, 40, 1, {"lags_of": "model"}),
    "a Transformer, nothing to find": ("Small()", 1200, 40, 1, {"lags_of": "model"}),
    "two LSTM layers of 16 units, both ways": (
        "Reads(nn.LSTM(1, 16, 2, batch_first=True, bidirectional=True))",
        400,
        40,
        1,
        {"outputs": "per step"},
    ),
    "two LSTM layers of 24 units, short": ("Reads(nn.LSTM(2, 24, 2, batch_first=True))", 128, 32, 2, {}),
    "an LSTM of 128 units, 128 steps, long": ("Reads(nn.LSTM(8, 128, batch_first=True))", 400, 128, 8, {}),
}
# (lag, strength) of what targets depend on; on the input three steps before where nothing stands here
PLANTED = {
    "a Transformer, ten dependences": [(lag, 1.2) for lag in range(0, 30, 3)],
    "a Transformer, nothing to find": [],
    "two LSTM layers of 16 units, both ways": [(lag, 1.2) for lag in range(0, 30, 3)],
}
TINY = {"a small GRU": ("Reads(nn.GRU(2, 6, batch_first=True))", 64, 16, 2, {"lags": [0, 1, 4]})}
PROGRAM = """
import json, resource, sys, time
import torch
from torch import nn
import lagreach
from lagreach.diagnosis import pacing
from tests.reliability.attack import Reads

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, 64), nn.Linear(64, 1)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.where = nn.Parameter(0.02 * torch.randn(64, 64))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layers(self.into(x) + self.where[: x.shape[1]], mask=mask, is_causal=True))

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(1, 16), nn.Linear(16, 1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.where = nn.Parameter(0.5 * torch.randn(40, 16))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layers(self.into(x) + self.where, mask=mask, is_causal=True))

class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        state, outputs = x.new_zeros(len(x), 32), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            outputs.append(self.out(state))
        return torch.stack(outputs, 1)

def mamba(layers):
    import transformers
    sizes = {"vocab_size": 64, "hidden_size": 48, "state_size": 8, "num_hidden_layers": layers}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))

def gpt2():
    import transformers
    sizes = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def timed(call):
    started = time.process_time()
    result = call()
    return time.process_time() - started, result

pacing.clock = time.process_time

case = json.loads(sys.argv[1])
torch.manual_seed(0)
model = eval(case["model"])
if case["input"]:
    x = torch.randn(case["sequences"], case["time"], case["input"])
    y = torch.randn(case["sequences"], case["time"], 1)
    for lag, strength in case["planted"]:
        y[:, lag:] += strength * x[:, : case["time"] - lag, :1]
else:
    x = torch.randint(0, 64, (case["sequences"], case["time"]))
    y = x.roll(3, 1)
options = case["options"]
lagreach.diagnose(model, (x[:16], y[:16]), progress=False, **options)  # what is compiled is compiled now
estimate = lambda: timed(lambda: lagreach.cost(model, (x, y), **options))
trials = [estimate()]
before = peak()
seconds, _ = timed(lambda: lagreach.diagnose(model, (x, y), progress=False, **options))
used = peak() - before
trials.append(estimate())
allowed, _ = timed(lambda: lagreach.diagnose(model, (x, y), progress=False, budget=seconds / 2, **options))
trials.append(estimate())  # between the works, since a machine is not always equally fast
share = sorted(seconds for seconds, _ in trials)[1]
plan = sorted((plan for _, plan in trials), key=lambda plan: plan.seconds)[1]
expected = (plan.seconds_if_nothing, plan.seconds, plan.seconds_if_many)[min(len(case["planted"]), 2)]
print(json.dumps({"estimated": expected, "seconds": seconds, "estimating": share, "used": used,
                  "planned": plan.memory / 2**20, "budget": seconds / 2, "within": allowed}))
"""


def measure(name: str, size: Size) -> dict[str, float]:
    """Run one case in a fresh process."""
    model, sequences, time, width, options = (TINY if size == "quick" else LAYERS)[name]
    case = {"model": model, "sequences": sequences, "time": time, "input": width, "options": options}
    case["planted"] = PLANTED.get(name, [(3, 1.0)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(case)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return json.loads(done.stdout.splitlines()[-1])


def check(size: Size) -> Iterator[Count]:
    """Measure every case; judge the times in the full size alone."""
    cases = TINY if size == "quick" else LAYERS
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:  # threads only wait for their processes
        measured = {name: pool.submit(measure, name, size) for name in cases}
        yield from (judged(name, measured[name], size) for name in cases)


def judged(name: str, measured: Future[dict[str, float]], size: Size) -> Count:
    """Compare what was promised with what was measured."""
    count = Count(name, EXPECTED)
    try:
        numbers = measured.result()
    except RuntimeError as error:
        count.add("failed", str(error))
        return count
    time_off, budget_off = numbers["seconds"] / numbers["estimated"], numbers["within"] / numbers["budget"]
    memory_off, share = numbers["used"] / numbers["planned"], numbers["estimating"] / numbers["seconds"]
    long = size == "full" and numbers["seconds"] > SHORT
    wrong = [
        words
        for words, bad in (
            (f"takes {time_off:.2f} times the time estimated", long and not 1 / FACTOR <= time_off <= FACTOR),
            (
                f"estimating takes {share:.1%} of it",
                long and share > OWN_SHARE and numbers["estimating"] > OWN_SECONDS,
            ),
            (
                f"takes {budget_off:.2f} times its budget",
                size == "full" and numbers["seconds"] > SHORT_BUDGET and budget_off > FACTOR,
            ),
            (
                f"takes {memory_off:.2f} times the memory estimated",
                size == "full" and numbers["used"] > SMALL and memory_off > FACTOR,
            ),
        )
        if bad
    ]
    count.add("kept" if not wrong else "not kept", "; ".join(wrong) or None)
    if size == "full":
        count.measured = {
            "seconds": numbers["seconds"],
            "of those estimated": time_off,
            "estimating (s)": numbers["estimating"],
            "estimating in %": 100 * share,
            "of the budget": budget_off,
            "MiB": numbers["used"],
            "of those estimated ": memory_off,
        }
    return count
