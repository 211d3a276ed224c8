"""The advice study at a tiny size: it runs, goes on, compares what it says it compares, and its page has its numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lagreach.advice.changes import KINDS, tensor_change
from lagreach.advice.gates import spread_biases
from lagreach.errors import InputError
from lagreach.study.tables import read_rows
from studies.advice import page as pages
from studies.advice.analysis import Case, analyse, nothing_to_do, rate
from studies.advice.changes import ARMS, MOST, multiplied, run_of
from studies.advice.run import BEFORE, KEPT, _open, run_study
from studies.advice.situations import CELLS, SCORED_BY_LOSS, TASKS, situations, tiny
from studies.advice.trainings import GroupTraining, groups, pool, train_groups

EVERY = {one.name: one for one in situations()}
GATES = EVERY["gates-00"]


def advice(kind, factor=1.0, cell=None):
    return {"kind": kind, "factor": factor, "cell": cell}


def test_there_are_enough_situations_of_every_kind():
    assert len(EVERY) == 91 + 14 + 8
    assert {one.cell for one in EVERY.values()} == set(CELLS)
    assert {one.optimiser for one in EVERY.values()} == {"adam", "momentum"}
    assert len({repr(replace(one, name="", group="")) for one in EVERY.values()}) == len(EVERY)  # none is there twice
    assert len(tiny(situations())) == 5


def weights(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def test_training_again_has_other_weights_and_the_same_sequences():
    first, again = (run_of(GATES, arm, 3, advice("gates")) for arm in ("first", "again"))
    assert not torch.equal(weights(first), weights(again))
    assert first.seed == again.seed
    assert first.start_seed != again.start_seed
    assert first.setting == again.setting


def test_a_random_change_of_weights_is_as_large_as_the_advised_one_and_in_the_same_weights():
    first, advised, drawn = (run_of(GATES, arm, 1, advice("gates")) for arm in ("first", "advised", "random"))
    moved = weights(advised) - weights(first)
    other = weights(drawn) - weights(first)
    torch.testing.assert_close(moved.norm(), other.norm())
    assert not torch.allclose(moved, other)
    assert torch.equal(moved != 0, other != 0)
    values = spread_biases(first.model, GATES.lag)
    torch.testing.assert_close(moved.norm(), tensor_change(values, first.model).norm())


@pytest.mark.parametrize("kind", ["units", "sequences", "steps", "rate"])
def test_a_random_number_is_another_one_changed_by_the_same_factor(kind):
    for seed in range(4):
        run = run_of(GATES, "random", seed, advice(kind, 2.0))
        changed = {
            name: getattr(run.setting, name) / getattr(GATES, name)
            for name in ("units", "sequences", "steps", "lr")
            if getattr(run.setting, name) != getattr(GATES, name)
        }
        field = {"rate": "lr"}.get(kind, kind)
        (name,) = changed
        assert name != field
        assert changed[name] in (2.0, 0.5)
        assert changed[name] == 2.0 or name == "lr"


def test_another_cell_is_drawn_from_those_not_advised():
    drawn = {run_of(GATES, "random", seed, advice("cell", 1.0, "elman")).setting.cell for seed in range(12)}
    assert drawn <= set(CELLS) - {"lstm", "elman"}
    assert len(drawn) > 1


def test_numbers_are_cut_where_they_could_not_be_trained():
    assert multiplied(GATES, "units", 1000).units == MOST["units"]
    assert multiplied(EVERY["truncation-00"], "length", 100).piece is None


def test_runs_of_one_shape_train_together_as_they_would_alone():
    small = replace(GATES, units=4, steps=20, sequences=16, task_name="lags_1_4")
    runs = [run_of(small, arm, seed, advice("gates")) for arm in ("first", "advised") for seed in range(2)]
    ((name, members),) = groups(runs).items()
    together = GroupTraining(name, members, "cpu")
    alone = GroupTraining(name, [runs[2]], "cpu")
    train_groups([together, alone])
    assert together.rows()[2]["share"] == pytest.approx(alone.rows()[0]["share"], abs=1e-4)


def test_sequences_are_those_of_the_seed():
    assert torch.equal(pool("lags_1_4", 0, "data", 8)[0], pool("lags_1_4", 0, "data", 8)[0])
    assert not torch.equal(pool("lags_1_4", 0, "data", 8)[0], pool("lags_1_4", 1, "data", 8)[0])
    assert all(task.lags for task in TASKS.values())


def case(kind, missed, advised, random, stuck=True):
    recovered = {"again": 0, "advised": advised, "random": random}
    return Case(kind, "group", kind, "", 0.9, stuck, missed, recovered, dict.fromkeys(recovered, (0.0,) * missed))


def test_rates_are_counts_and_the_interval_is_over_situations():
    counted = rate([case("gates", 5, 5, 0)] * 6 + [case("gates", 5, 0, 0)] * 2)
    assert (counted.situations, counted.cases, counted.advised, counted.random) == (8, 40, 30, 0)
    assert counted.beats_random
    draws = np.random.default_rng(1).binomial(8, 0.75, 20000) / 8  # situations are drawn whole
    np.testing.assert_allclose(counted.share, np.quantile(draws, [0.025, 0.975]), atol=0.126)
    assert not rate([case("gates", 5, 3, 3)] * 8).beats_random
    assert rate([]).cases == 0


def test_nothing_to_do_is_held_against_the_situations_where_it_is_not_said():
    said = {"kind": "nothing", "expected": 0.9}
    silent = {"kind": "nothing", "expected": None}  # no change is known
    advice = {f"a{i}{BEFORE}": said for i in range(10)} | {f"b{i}{BEFORE}": silent for i in range(10)}
    first = {f"a{i}": {0: 1.0, 1: 0.9 if i else 0.2} for i in range(10)}
    first |= {f"b{i}": {0: 0.1, 1: 0.0 if i else 0.7} for i in range(10)}
    counts = nothing_to_do(advice, first)
    assert (counts.situations, counts.recovered, counts.otherwise) == (10, (19, 20), (1, 20))
    assert counts.beats_silence
    assert not nothing_to_do(advice, {name: {0: 1.0} for name in first}).beats_silence
    assert nothing_to_do({}, first) is None


def test_in_much_noise_the_share_is_that_of_the_loss():
    """Half of the best answer explains three quarters of what can be explained; no answer explains nothing."""
    situation = replace(EVERY["noisy-02"], units=4, steps=10)
    assert situation.task_name in SCORED_BY_LOSS
    training = GroupTraining("g", [run_of(situation, "first", 0, {})], "cpu")
    x, y = training._pairs("test", 1024)
    best = 0.4 * torch.nn.functional.pad(x[..., :1], (0, 0, 2, 0))[:, :, :-2]
    for part, share in ((1.0, 1.0), (0.5, 0.75), (0.0, 0.0)):
        loss = (part * best - y).square().mean((1, 2, 3)).double()
        assert float(training._explained(y, loss)[0]) == pytest.approx(share, abs=0.1)  # noise of 12,288 targets


def test_only_what_is_asked_for_is_open():
    assert _open(EVERY["noisy-00"], "") == ["sequences"]
    assert _open(EVERY["gates-00"], BEFORE) == ["nothing"]
    assert set(KINDS) - set(_open(EVERY["gates-00"], KEPT)) == {"cell"}
    assert _open(EVERY["gates-00"], "") == list(KINDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("advice")
    advice_of = {
        "gates-00": "gates",
        "vanilla-00": "cell",
        "sequences-00": "sequences",
        "steps-00": "steps",
        "truncation-00": "length",
    }
    pieces = out / "pieces"
    pieces.mkdir()
    for name, kind in advice_of.items():  # given beforehand: forecasts are tested elsewhere
        made = {
            "kind": kind,
            "factor": 2.0,
            "cell": "lstm" if kind == "cell" else None,
            "expected": 0.9,
            "low": 0.8,
            "high": 1.0,
        }
        made |= {"share": 0.1, "why": "unseen", "says": kind, "code": kind}
        (pieces / f"{name}.json").write_text(json.dumps(made))
        (pieces / f"{name}{KEPT}.json").write_text(json.dumps(made | {"kind": "units"}))
        before = {"kind": "nothing", "expected": 0.8 if name == "steps-00" else None}
        (pieces / f"{name}{BEFORE}.json").write_text(json.dumps(made | before))
    said = []
    run_study(out, seeds=2, workers=1, smoke=True, say=said.append)
    return out, said


@pytest.mark.thorough
def test_a_run_has_every_arm_of_every_situation_and_goes_on_where_it_was(run):
    out, said = run
    rows = read_rows(out / "outcomes.parquet")
    arms = {(row["situation"], row["arm"]) for row in rows}
    assert len(arms) == 5 * 4 + 2  # the cell is advised away in one of them
    assert {arm for _, arm in arms} == set(ARMS)
    assert len(rows) == 2 * len(arms)
    assert any("groups trained" in line for line in said)
    again = []
    (out / "outcomes.parquet").unlink()
    run_study(out, seeds=2, workers=1, smoke=True, say=again.append)
    assert not any("groups trained" in line for line in again)
    assert read_rows(out / "outcomes.parquet") == rows
    elsewhere = out / "later"  # situations of a finished run are taken over
    run_study(elsewhere, seeds=2, workers=1, smoke=True, earlier=out, say=again.append)
    assert not any("groups trained" in line for line in again)
    assert read_rows(elsewhere / "outcomes.parquet") == rows


def test_the_page_and_the_evidence_come_from_the_run(run, tmp_path, monkeypatch):
    out, _ = run
    guide = tmp_path / "index.md"
    guide.write_text(f"# What to do\n{pages.BEGIN}\nold\n{pages.END}\nrest\n")
    monkeypatch.setattr(pages, "GUIDE", guide)
    monkeypatch.setattr(pages, "EVIDENCE", tmp_path / "evidence.json")
    text = pages.summarise(out, tmp_path / "results.md")
    analysis = analyse(out)
    assert f"{analysis.overall.advised} of {analysis.overall.cases} cases" in text
    assert (out / "RESULTS.md").read_text() == text + "\n"
    assert (tmp_path / "worked.png").stat().st_size > 5000
    assert "worked.png" in (tmp_path / "results.md").read_text()
    assert "old" not in guide.read_text()
    assert guide.read_text().endswith("rest\n")
    written = json.loads((tmp_path / "evidence.json").read_text())
    assert written == {k: v for k, v in pages.evidence(analysis).items() if k in KINDS}
    with pytest.raises(InputError, match="no finished run"):
        analyse(tmp_path)


def test_the_published_numbers_are_those_of_the_published_run():
    folder = pages.ROOT / "results" / "advice"
    analysis = analyse(folder)
    assert (folder / "RESULTS.md").read_text() == pages.words(analysis) + "\n"
    assert json.loads(pages.EVIDENCE.read_text()) == json.loads(json.dumps(pages.evidence(analysis)))
    assert analysis.overall.situations >= 60
    assert analysis.overall.again / analysis.overall.cases <= 0.1
