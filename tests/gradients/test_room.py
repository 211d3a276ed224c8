"""What a diagnosis takes of the memory: sequences are run together as far as they fit, by what each of them takes."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lagreach import GatedRNN
from lagreach.diagnosis.measure import MeasureSettings, plan_measurement
from lagreach.gradients.measurement_plan import ROOM

MIB = 2**20


def plan_of(hidden=8, length=64, inputs=2, out=1, params="input", sequences=64, dtype=torch.float32, **settings):
    x, y = torch.randn(sequences, length, inputs, dtype=dtype), torch.randn(sequences, length, out, dtype=dtype)
    model = GatedRNN("gru", inputs, hidden, out).to(dtype)
    chosen = MeasureSettings(blocks=8, **settings)
    return plan_measurement(model, (x, y), "mse", [0, 3], params=params, settings=chosen)


def most_together(plan, memory):
    limited = dataclasses.replace(plan, memory=memory)
    return max(len(piece.pair) for piece in limited.pieces(range(limited.block_plan.count)))


def pairs_in(room, plan):
    """Pairs that fit; groups that exchange targets stay together if one of them fits."""
    pairs, group = room // plan.pair_bytes, plan.block_plan.members // 2
    return pairs // group * group if pairs >= group else pairs


@pytest.mark.parametrize(
    "wider",
    [
        {"hidden": 32},
        {"length": 200},
        {"inputs": 40},
        {"out": 50},
        {"dtype": torch.float64},
        {"transport": "first-order"},
    ],
    ids=", ".join,
)
def test_sequences_that_take_more_are_run_in_smaller_pieces(wider):
    narrow, wide = plan_of(), plan_of(**wider)
    room = 20 * narrow.pair_bytes
    assert most_together(narrow, room) == 20
    assert most_together(wide, room) == pairs_in(room, wide) < 20


def test_gradients_of_many_weights_by_sequence_take_room():
    few, many = (plan_of(length=6, hidden=32, params=params) for params in ("input", "all"))
    room = 20 * few.pair_bytes
    assert most_together(many, room) == pairs_in(room, many) < most_together(few, room) == 20


def test_one_pair_is_always_run():
    assert most_together(plan_of(), memory=1) == 1


def test_without_a_limit_a_piece_takes_a_fixed_part_of_a_processor():
    plan = plan_of(hidden=64, length=512, sequences=64)
    assert plan.room == ROOM
    assert most_together(plan, None) == pairs_in(ROOM, plan)


PEAK = """
import sys, torch
from lagreach import GatedRNN, diagnose
torch.set_num_threads(1)
x, y = torch.randn(160, 256, 4), torch.randn(160, 256, 1)
model = GatedRNN("diag_gate", 4, 64, 1)

def run(sequences, memory):
    data = (x[:sequences], y[:sequences])
    diagnose(model, data, lags=[0, 1, 4], transport=sys.argv[1], noise="lag", memory=memory, progress=False)

def status(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

run(32, 2**26)  # compiles, and takes what every diagnosis takes
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
before = status("VmRSS")
run(160, int(sys.argv[2]))
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's record of the peak")
@pytest.mark.parametrize("transport", ["exact", "first-order"])
def test_more_room_is_not_overdrawn(transport):
    """Of two limits, so that what does not depend on them (compiled code, freed memory that is kept) cancels."""
    small, large = 150 * MIB, 500 * MIB
    peaks = []
    for memory in (small, large):
        command = [sys.executable, "-W", "ignore", "-c", PEAK, transport, str(memory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert 0.2 * (large - small) < peaks[1] - peaks[0] <= large - small
