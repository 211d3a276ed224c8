"""Executors: the same answers in the same order, whatever happens to the workers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import lagreach
from lagreach.errors import InputError, RunError, UnsupportedError
from lagreach.study.executors import Resources, make_executor
from lagreach.study.shards import diagnose_on_ranks, diagnose_sharded
from tests.study import work


@pytest.fixture(scope="module")
def pool():
    with make_executor("local", workers=2) as made:
        yield made


@pytest.fixture(params=["one", "pool"])
def executor(request, pool):
    return pool if request.param == "pool" else make_executor("local", workers=1)


def test_results_come_in_order(executor):
    seen = []
    assert executor.map(work.square, range(7), on_result=lambda i, r: seen.append((i, r))) == [n * n for n in range(7)]
    assert sorted(seen) == [(n, n * n) for n in range(7)]
    assert executor.map(work.square, []) == []


def test_an_error_of_the_work_comes_out_after_the_rest_is_done(executor):
    done = []
    with pytest.raises(InputError, match="three is refused"):
        executor.map(work.picky, [1, 3, 5], on_result=lambda i, r: done.append(r))
    assert sorted(done) == [1, 5]
    with pytest.raises(RunError, match="2 of 4 pieces"):
        executor.map(work.picky, [1, 3, 4, 5])


def test_what_stops_several_pieces_alike_is_said_once(executor):
    with pytest.raises(InputError, match=r"^three is refused\n  got:      3$"):
        executor.map(work.picky, [3, 1, 3])


def test_workers_have_one_thread(pool):
    assert pool.map(work.threads, [0, 1]) == [1, 1]


def test_a_killed_worker_is_replaced(pool, tmp_path):
    items = [(str(tmp_path), n) for n in range(5)]
    assert pool.map(work.die_once, items) == [n * n for n in range(5)]
    assert (tmp_path / "tried-2").exists()


@pytest.mark.thorough
def test_work_that_always_kills_its_worker_gives_up():
    with make_executor("local", workers=2) as fragile, pytest.raises(RunError, match="died 4 times"):
        fragile.map(work.die_always, [0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"name": "slurm"}, "unknown executor"),
        ({"workers": 0}, "positive"),
        ({"address": "auto"}, "only a Ray cluster"),
    ],
)
def test_bad_executors_are_refused(options, match):
    with pytest.raises(InputError, match=match):
        make_executor(**options)


@pytest.mark.parametrize("needs", [{"cpus": 0.0}, {"cpus": -1.0}, {"gpus": -0.5}])
def test_work_that_needs_no_processor_is_refused(needs):
    with pytest.raises(InputError, match="cpus above 0"):
        Resources(**needs)


def same(one, other):
    """The same numbers, up to float32 sums over other groupings of the sequences."""
    xr.testing.assert_allclose(one.to_xarray(), other.to_xarray(), rtol=1e-4)
    assert one.fingerprint == other.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [1, 3, None])
def test_sharded_diagnosis_is_the_diagnosis(pool, shards):
    options = {"lags": [0, 1, 3, 8], "strength": 0.1}
    model, data = work.model_and_data()
    whole = lagreach.diagnose(model, data, **options)
    same(diagnose_sharded(work.model_and_data, pool, shards=shards, **options), whole)
    assert whole.layers[0].window.dependences == (3,)


@pytest.mark.thorough
def test_a_whole_model_in_shards_is_the_whole_model(pool):
    options = {"lags": [0, 1, 3, 8]}
    whole = lagreach.diagnose(*work.whole_model_and_data(), **options)
    assert whole.settings["lags_of"] == "model"
    same(diagnose_sharded(work.whole_model_and_data, pool, shards=3, **options), whole)
    assert whole.layers[0].window.dependences == (3,)


@pytest.fixture
def alone(tmp_path):
    """One rank, in this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("build", [work.model_and_data, work.whole_model_and_data])
def test_one_rank_gives_the_diagnosis(build):
    model, data = build()
    same(diagnose_on_ranks(model, data, lags=[0, 1, 3]), lagreach.diagnose(model, data, lags=[0, 1, 3]))


def test_ranks_that_were_not_brought_together_are_refused():
    with pytest.raises(InputError, match="not been brought together"):
        diagnose_on_ranks(*work.model_and_data())


RANKS = """
import sys, torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from lagreach.errors import InputError
from lagreach.study.shards import diagnose_on_ranks
from tests.study import work

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name, build in (("layers", work.model_and_data), ("model", work.whole_model_and_data)):
        model, data = build()
        wrapped = model if name == "layers" else DistributedDataParallel(model)
        found = diagnose_on_ranks(wrapped, data, lags=[0, 1, 3, 8])
        found.save(f"{sys.argv[1]}/{name}-{dist.get_rank()}.nc")
    x, y = data
    try:
        diagnose_on_ranks(model, (x[dist.get_rank() :], y[dist.get_rank() :]))
    except InputError as error:
        assert "not given the same data" in str(error)
    else:
        raise AssertionError("ranks with data of their own were not refused")
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_ranks_of_torchrun_share_the_work_and_agree_with_one_process(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, tmp_path]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    command = list(map(str, command))
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, build in (("layers", work.model_and_data), ("model", work.whole_model_and_data)):
        whole = lagreach.diagnose(*build(), lags=[0, 1, 3, 8])
        ranks = [lagreach.load(tmp_path / f"{name}-{rank}.nc") for rank in (0, 1)]
        for rank in ranks:
            same(rank, whole)
            assert rank.layers[0].window.dependences == (3,)


def test_shards_refuse_what_they_cannot_do(executor):
    with pytest.raises(InputError, match="not for sharded work"):
        diagnose_sharded(work.model_and_data, executor, budget=3.0)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"lagreach\[ray\]"):
        make_executor("ray")


@pytest.mark.slow
def test_a_real_ray_cluster_gives_the_same_answers_and_survives_a_killed_worker(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    with make_executor("ray", workers=2) as cluster:
        assert cluster.workers == 2
        assert cluster.map(work.die_once, [(str(tmp_path), n) for n in range(5)]) == [n * n for n in range(5)]
        assert (tmp_path / "tried-2").exists()
        with pytest.raises(InputError, match="three is refused"):
            cluster.map(work.picky, [1, 3])
        options = {"lags": [0, 1, 3, 8]}
        whole = lagreach.diagnose(*work.model_and_data(), **options)
        same(diagnose_sharded(work.model_and_data, cluster, shards=2, **options), whole)
        model = lagreach.diagnose(*work.whole_model_and_data(), **options)
        same(diagnose_sharded(work.whole_model_and_data, cluster, shards=2, **options), model)
    np.testing.assert_equal(whole.layers[0].window.dependences, (3,))
