"""What the data are like is said of whole models as it is of recurrent layers: series, copies, interrupts, no gradient."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import lagreach
from lagreach.data.sequences import as_sequences
from lagreach.errors import InputError
from lagreach.types import Status
from lagreach.whole_model.measure import measure_model
from lagreach.whole_model.measurement_plan import plan_model_measurement
from lagreach.whole_model.spread import FEWEST, groups
from tests.whole_model import cases
from tests.whole_model.cases import made

LAG = 3


def data(count=96, time=12, inputs=cases.INPUT, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, time, inputs, generator=generator)
    y = 0.5 * torch.randn(count, time, 1, generator=generator)
    y[:, LAG:] += x[:, :-LAG, :1]
    return x, y


def small(**options):
    return made(cases.CausalTransformer, **options).float()


class Recurrent(nn.Module):
    def __init__(self, inputs=cases.INPUT):
        super().__init__()
        self.layer, self.readout = nn.GRU(inputs, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0])


@pytest.mark.thorough
def test_copies_count_once_and_are_said():
    x, y = data(48)
    both = torch.cat((x, x[:24])), torch.cat((y, y[:24]))
    diagnosis = lagreach.diagnose(small(), both, lags=[0, LAG])
    of_layers = lagreach.diagnose(Recurrent(), both, lags=[0, LAG])
    assert diagnosis.available == of_layers.available == 48
    (note,) = [note for note in diagnosis.warnings if "copies of others" in note]
    assert note in of_layers.warnings
    assert diagnosis.layers[0].window.sequences == 48


@pytest.mark.thorough
@pytest.mark.parametrize("cut", ["cut_series", "windows"])
def test_windows_of_a_series_are_told_as_of_recurrent_layers(cut):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1200, 1, generator=generator), torch.randn(1200, 1, generator=generator)
    if cut == "cut_series":
        series = lagreach.cut_series(x, y, length=16)
    else:
        series = tuple(torch.stack([v[i : i + 16] for i in range(0, 1184, 4)]) for v in (x, y))
    diagnosis = lagreach.diagnose(small(inputs=1), series, lags=[0, 1, LAG])
    of_layers = lagreach.diagnose(Recurrent(1), series, lags=[0, 1, LAG])
    # the number of stretches may differ: recurrent layers compare more windows with each other
    said, expected = (sorted(note.partition(";")[0] for note in some.warnings) for some in (diagnosis, of_layers))
    assert said == expected
    assert any("windows of one series are not independent" in note for note in said)
    assert diagnosis.layers[0].window.dependences == ()


@pytest.mark.thorough
def test_a_series_too_short_to_tell_says_so_instead_of_a_p_value():
    generator = torch.Generator().manual_seed(0)
    walk = torch.randn(260, 1, generator=generator).cumsum(0)
    series = lagreach.cut_series(walk, walk.roll(-1, 0), length=16, stride=8)
    diagnosis, of_layers = (lagreach.diagnose(one, series, lags=[0, 1]) for one in (small(inputs=1), Recurrent(1)))
    window, known = diagnosis.layers[0].window, of_layers.layers[0].window
    assert np.isnan(known.adjusted_p).all()
    assert np.isnan(window.adjusted_p).all()
    assert np.isnan(window.required.sequences).all()
    assert set(window.required.status) == {Status.LIMIT_CANNOT_BE_TOLD}
    assert window.dependences == ()
    assert (
        [note for note in known.warnings if "stretch" in note] == [n for n in window.warnings if "stretch" in n] != []
    )


def test_lags_that_all_sequences_share_have_no_number():
    x, y = data(48)
    calendar = x[:1].expand(len(x), -1, -1).clone()
    window = lagreach.diagnose(small(), (calendar, y), lags=[0, LAG]).layers[0].window
    assert set(window.required.status) == {Status.LIMIT_SHARED_INPUT}
    assert np.isnan(window.required.sequences).all()


def test_targets_that_are_all_the_same_are_refused():
    x, y = data(32)
    with pytest.raises(InputError, match="the targets are the same in every sequence"):
        lagreach.diagnose(small(), (x, torch.zeros_like(y)), lags=[0])


def test_a_dead_model_is_said():
    class Dead(cases.Flat):
        def forward(self, x):
            return self.readout(self.read(x).sub(1e3).relu())

    diagnosis = lagreach.diagnose(made(Dead).float(), data(32), lags=[0, 1])
    assert any("no gradient reaches the weights of read" in note for note in diagnosis.layers[0].window.warnings)


@cache
def interrupted(stop, count=64, pairs=4):
    model = made(cases.Interrupting).float()
    plan = plan_model_measurement(model, as_sequences(data(count)), "mse", [0, LAG], blocks=32, probes=1, seed=0)
    plan = replace(plan, memory=pairs * plan.pair_bytes)
    model.runs, model.stop = 0, stop
    try:
        return plan, measure_model(plan, flips=199, error=0.05), model.runs
    finally:
        assert not any(p.requires_grad is False for p in model.parameters())


@pytest.mark.thorough
def test_groups_of_blocks_fill_the_memory_there_is():
    plan, _, _ = interrupted(None)
    made_of = groups(plan)
    assert list(itertools.chain(*made_of)) == list(range(plan.block_plan.count))
    assert len(made_of[0]) == FEWEST
    of_block = np.bincount(plan.block_plan.blocks)
    assert all(of_block[list(blocks)].sum() == plan.pairs_together for blocks in made_of[1:])
    assert len(made_of) > 2
    assert len(groups(replace(plan, memory=2**30))) == 1


@pytest.mark.thorough
def test_an_interrupt_keeps_the_blocks_that_are_finished():
    plan, whole, _ = interrupted(None)
    first, second, *_ = groups(plan)
    pairs = np.isin(plan.block_plan.blocks, (*first, *second)).sum()
    with pytest.raises(KeyboardInterrupt):
        interrupted(1)
    _, part, _ = interrupted(pairs // plan.pairs_together + 1)  # in the third group of the first pass
    assert part.cut_short
    assert not whole.cut_short
    kept = part.plan.block_plan
    assert kept.count == len(first) + len(second)
    alone = measure_model(replace(plan, block_plan=kept), flips=199, error=0.05)
    np.testing.assert_allclose(part.noise.data, alone.noise.data, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(part.means.data, alone.means.data, rtol=1e-4, atol=1e-7)


@pytest.mark.thorough
def test_an_interrupted_exchange_leaves_what_swapped_targets_say():
    plan, whole, _ = interrupted(None)
    first = len(plan.block_plan.pairs) // 4
    _, part, _ = interrupted(first + 3)
    assert part.cut_short
    assert part.plan.block_plan.count == plan.block_plan.count
    assert any("interrupted before single inputs were exchanged" in note for note in part.located.notes)
    np.testing.assert_array_equal(part.located.test.adjusted, whole.located.marginal)


@pytest.mark.thorough
def test_an_interrupted_noise_pass_keeps_its_finished_blocks():
    _, whole, runs = interrupted(None)
    _, part, _ = interrupted(runs - 10)  # the gain takes the last eight
    assert part.cut_short
    assert len(part.noise.data) < len(whole.noise.data)


def test_an_interrupt_at_the_start_of_the_noise_pass_keeps_the_lags():
    plan, whole, runs = interrupted(None)
    noise = -(-len(plan.block_plan.pairs) // plan.pairs_together)
    _, part, _ = interrupted(runs - 8 - noise + 2)  # the gain takes the last eight
    assert part.cut_short
    assert not part.noise.measured
    assert np.isnan(part.log10_gain).all()
    assert part.located.named == whole.located.named == (LAG,)
    np.testing.assert_array_equal(part.test.adjusted, whole.test.adjusted)


@pytest.mark.thorough
def test_an_interrupt_at_the_very_end_loses_the_gain_alone():
    _, whole, runs = interrupted(None)
    _, part, _ = interrupted(runs - 1)
    assert part.cut_short
    assert np.isnan(part.log10_gain).all()
    np.testing.assert_array_equal(part.noise.data, whole.noise.data)


@pytest.mark.thorough
def test_a_diagnosis_says_that_it_was_interrupted(monkeypatch):
    model = made(cases.Interrupting).float()
    monkeypatch.setattr("lagreach.whole_model.measurement_plan.ROOM", 1)  # one pair at a time
    x, y = data(64)
    model.stop = 30 + 14  # setting up takes some runs; well within the first pass
    seen = []
    diagnosis = lagreach.diagnose(model, (x, y), lags=[0, LAG], progress=lambda *told: seen.append(told))
    assert diagnosis.partial
    assert any("interrupted: only the blocks" in note for note in diagnosis.warnings)
    assert "partial" in str(diagnosis)
    assert diagnosis.settings["partial"] is True
    assert diagnosis.settings["used"] < 64
    assert ("whole model: lags", 2, 64) in seen


class Chunked(nn.Module):
    """A layer that is run in chunks of four steps, between which its state, or its c alone, is cut from the graph."""

    def __init__(self, cut):
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.layer, self.readout = cut, nn.LSTM(cases.INPUT, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        state, outputs = None, []
        for start in range(0, x.shape[1], 4):
            output, (h, c) = self.layer(x[:, start : start + 4], state)
            outputs.append(output)
            state = (h.detach() if self.cut == "state" else h, c if self.cut == "nothing" else c.detach())
        return self.readout(torch.cat(outputs, dim=1))


@pytest.mark.parametrize(
    ("cut", "lags"), [("state", [0, 2, 8]), ("state", [0, 3, 4]), ("c", [0, 2, 8]), ("nothing", [8])]
)
def test_lags_that_training_never_gets_are_said(cut, lags):
    """N was infinite without a word; and where h goes past a cut of c, nothing of the kind may be said."""
    window = lagreach.diagnose(Chunked(cut), data(), lags=lags).layers[0].window
    said = [warning for warning in window.warnings if warning.startswith("training gets lags 0 to 3 only")]
    assert len(said) == (cut == "state")
    assert np.isinf(window.probe.sequences[-1]) == (cut == "state")
