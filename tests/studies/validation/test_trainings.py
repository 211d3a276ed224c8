"""Trainings that differ in the number of sequences only, and go on to the same result."""

import pytest
import torch

from lagreach.study.checkpoints import load_tensors
from lagreach.study.config import find_study
from lagreach.study.data import TrainingData
from lagreach.study.store import RunDirectory
from lagreach.study.tables import read_rows
from lagreach.study.trainer import run_epoch
from studies.validation import trainings
from studies.validation.design import conditions, validation_plan
from studies.validation.trainings import BEST, ConditionTraining, PooledData, pools, replicas_of, stream

SMOKE = find_study("validation").at_scale("smoke")
PLAN = validation_plan(SMOKE)
CONDITION = conditions(PLAN, SMOKE.seed)[1]


def pooled(**changes):
    x = torch.arange(40.0).reshape(2, 20, 1, 1)
    options = {"sequences": (5, 5, 20, 20), "pool": (0, 1, 0, 1), "start": (0,) * 4, "batch": 4, "steps_per_epoch": 3}
    return PooledData(x=x, y=-x, mask=None, seeds=(3, 4), **(options | changes))


def test_a_replica_sees_the_first_sequences_of_its_own_pool():
    data = pooled()
    assert isinstance(data, TrainingData)
    seen = [set() for _ in range(4)]
    for number in range(10):
        for x, y in data.epoch(number):
            assert torch.equal(x, -y)
            for r in range(4):
                seen[r] |= set(x[r].flatten().tolist())
    assert seen == [set(range(5)), set(range(20, 25)), set(range(20)), set(range(20, 40))]


def test_a_replica_may_have_sequences_of_its_own():
    whole = pooled(start=(15, 15, 0, 0)).indices(0)
    assert set(whole[0].flatten().tolist()) == set(range(15, 20))
    assert torch.equal(whole[:2] - 15, pooled().indices(0)[:2])


def test_no_sequence_comes_again_before_all_have_come():
    data = pooled()
    whole = torch.cat([data.indices(number) for number in range(5)], dim=1).flatten(1)  # 60 a replica
    for r, count in enumerate(data.sequences):
        for start in range(0, 60 - count + 1, count):
            assert sorted(whole[r, start : start + count].tolist()) == list(range(count))


def test_the_stream_can_be_entered_anywhere():
    whole = stream((1, "order"), 7, 0, 100)
    for start in (0, 6, 7, 20):
        assert torch.equal(stream((1, "order"), 7, start, 30), whole[start : start + 30])
    assert not torch.equal(whole[:7], whole[7:14])


def test_pools_are_nested_and_differ_between_seeds_and_uses():
    """A network with few sequences sees a part of what one with many does, because both use one pool."""
    task, name = CONDITION.task, CONDITION.plan.name
    x, _ = pools(task, name, "data", 30, (0, 1))
    assert not torch.equal(x[0], x[1])
    assert torch.equal(x[1], pools(task, name, "data", 30, (1,))[0][0])
    assert not torch.equal(x[0], pools(task, name, "test", 30, (0,))[0][0])


def test_networks_start_alike_for_every_number_of_sequences(tmp_path):
    training = ConditionTraining(RunDirectory(tmp_path), SMOKE, CONDITION, "cpu", "auto")
    flat = training.trainer.replicas.flat
    seeds = [seed for _, seed in replicas_of(PLAN, SMOKE.seed_list())]
    assert torch.equal(flat[0], flat[seeds.index(seeds[0], 1)])
    assert not torch.equal(flat[0], flat[1])


def finished(path, stop_at=None):
    """Train to the end; with `stop_at`, a process dies after that epoch and another one goes on."""
    run = RunDirectory(path)
    training = ConditionTraining(run, SMOKE.model_copy(update={"validation": SAVING}), CONDITION, "cpu", "auto")
    while training.unfinished:
        if training.trainer.epoch == stop_at:
            return finished(path)
        run_epoch([training.trainer])
        training.after_epoch()
    training.finish()
    return (
        load_tensors(trainings.weights_path(run, CONDITION)),
        read_rows(trainings.outcomes_path(run, CONDITION)),
        sorted(p.name for p in training.folder.iterdir()),
    )


SAVING = SMOKE.validation | {"save_every": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stop_at", [1, 4, 19])
def test_an_interrupted_training_ends_the_same(tmp_path, whole, stop_at):
    weights, outcomes, files = finished(tmp_path, stop_at)
    assert files == whole[2] == ["outcomes.parquet", "weights.safetensors"]
    assert outcomes == whole[1]
    for stage, flat in whole[0].items():
        assert torch.equal(weights[stage], flat), stage


def test_stages_hold_different_weights(whole):
    weights = whole[0]
    assert set(weights) == {"early_1", "early_5", "early_20", "end", BEST}
    assert not torch.equal(weights["early_5"], weights["end"])


def test_outcomes_are_the_scores_of_the_stored_weights(whole):
    weights, outcomes, _ = whole
    seed, task = SMOKE.seed_list()[1], CONDITION.task
    x, y = (
        part[1] for part in pools(task, CONDITION.plan.name, "test", SMOKE.test_sequences, tuple(SMOKE.seed_list()))
    )
    model = CONDITION.model(seed)
    torch.nn.utils.vector_to_parameters(weights["end"][3], model.parameters())  # 200 sequences, the second seed
    with torch.no_grad():
        output = model(x)
    scores = task.recovered(x, y, output)
    mine = [row for row in outcomes if (row["sequences"], row["seed"]) == (200, seed)]
    assert [row["lag"] for row in mine] == list(task.lags)
    assert [row["score"] for row in mine] == pytest.approx(scores.tolist(), rel=1e-4)
    assert mine[0]["loss"] == pytest.approx(float((output - y).square().mean()), rel=1e-4)
    assert all(row["loss_best"] > 0 for row in outcomes)
