"""What every task promises: shapes, masks, seeds, scores of the target itself, and errors that help."""

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lagreach
from lagreach.errors import InputError
from lagreach.tasks import Task, all_tasks, make_task
from lagreach.tasks._real import MissingDataError

SMALL = {
    "multi_lag": {"lags": (2, 5), "coefficients": (0.6, 0.3), "length": 20, "input_size": 3, "noise": 0.0},
    "linear_teacher": {"noise": 0.0, "retention": (0.9,), "weights": (1.0,), "lags": (0, 3), "length": 40},
    "mackey_glass": {"length": 40},
    "flip_flop": {"length": 40, "lags": (1, 4, 16), "channels": 2},
}
TASKS = [make_task(name, **SMALL.get(name, {})) for name in all_tasks()]
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_all_promised_tasks_are_found():
    promised = "multi_lag adding copy xor flip_flop recall linear_teacher mackey_glass digits series"
    assert set(all_tasks()) == set(promised.split())
    assert all(getattr(lagreach.tasks, cls.__name__) is cls for cls in all_tasks().values())
    assert "MultiLag" in dir(lagreach.tasks)


@every_task
def test_data_have_the_stated_shapes(task, generator):
    x, y = task.sample(7, generator)
    assert x.shape == (7, task.length, task.input_size)
    assert x.dtype == torch.float32
    if task.loss == "cross_entropy":
        assert y.shape == (7, task.length)
        assert y.dtype == torch.int64
        assert y.min() >= 0
        assert y.max() < task.output_size
    else:
        assert y.shape == (7, task.length, task.output_size)
        assert y.dtype == torch.float32
    assert torch.isfinite(x).all()
    assert torch.isfinite(y).all()


@every_task
def test_lags_ascend_and_fit(task):
    assert isinstance(task.lags, tuple)
    assert list(task.lags) == sorted(set(task.lags))
    assert task.lags[0] >= 0
    assert task.lags[-1] < task.length
    assert task.noise_floor is None or task.noise_floor >= 0.0


@every_task
def test_a_batch_carries_the_mask_of_every_sequence(task, generator):
    batch = task.batch(5, generator)
    mask = task.mask()
    if mask is None:
        assert batch.mask is None
    else:
        assert mask.shape == (task.length,)
        assert set(mask.tolist()) <= {0.0, 1.0}
        assert mask.sum() > 0
        assert torch.equal(batch.mask, mask.expand(5, -1))
    assert torch.equal(batch.x, task.sample(5, seeded())[0])


@every_task
def test_the_same_seed_gives_the_same_data_and_another_one_does_not(task):
    first, again, other = (task.sample(4, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0]) or not torch.equal(first[1], other[1])


@every_task
def test_global_randomness_is_left_alone(task):
    state = torch.get_rng_state()
    task.sample(3, seeded())
    assert torch.equal(state, torch.get_rng_state())


@every_task
def test_tasks_are_values(task):
    twin = make_task(task.name, **SMALL.get(task.name, {}))
    assert twin == task
    assert hash(twin) == hash(task)
    assert str(task).startswith(type(task).__name__)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.length = 3


def perfect(task, x, y):
    """What the best predictor says: the targets, or their classes with certainty."""
    if task.loss == "mse":
        return y
    return torch.nn.functional.one_hot(y, task.output_size).float()


@every_task
def test_the_target_itself_has_recovered_everything(task, generator):
    x, y = task.sample(1000, generator)
    scores = task.recovered(x, y, perfect(task, x, y))
    assert scores.dtype == torch.float64
    # linear_teacher: the lags that are not in the regression act as noise; recall: the bit is not its posterior mean
    sampled = {"linear_teacher": 0.06, "recall": 0.1}.get(task.name, 1e-4)
    torch.testing.assert_close(scores, torch.ones(len(task.lags), dtype=torch.float64), rtol=0, atol=sampled)


@every_task
def test_an_output_that_knows_nothing_has_recovered_nothing(task, generator):
    x, y = task.sample(4000, generator)
    output = torch.randn(4000, task.length, task.output_size, generator=generator)
    scores = task.recovered(x, y, output)
    torch.testing.assert_close(scores, torch.zeros_like(scores), rtol=0, atol=NOTHING.get(task.name, 0.05))


# Four standard errors where one is more than 0.05 / 4: mostly those scored at one step of a sequence.
NOTHING = {"adding": 0.35, "recall": 0.08, "mackey_glass": 0.12}


# The score of flip_flop is a mean of products, where a constant averages out over signs only.
@pytest.mark.parametrize("task", [t for t in TASKS if t.name != "flip_flop"], ids=lambda task: task.name)
def test_a_constant_added_to_the_output_changes_nothing(task, generator):
    x, y = task.sample(500, generator)
    output = perfect(task, x, y) + torch.randn(500, task.length, task.output_size, generator=generator)
    torch.testing.assert_close(task.recovered(x, y, output + 3.0), task.recovered(x, y, output), rtol=0, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("task", [t for t in TASKS if t.length <= 100], ids=lambda task: task.name)
def test_diagnose_takes_every_task(task, generator):
    model = lagreach.GatedRNN("diag_gate", task.input_size, 3, task.output_size, gate_init=0.3, generator=generator)
    diagnosis = lagreach.diagnose(model, task.batch(32, generator), loss=task.loss, lags=task.lags, progress=False)
    assert len(diagnosis.layers) == 1


@every_task
def test_scores_need_the_shapes_of_the_task(task, generator):
    x, y = task.sample(3, generator)
    output = torch.zeros(3, task.length, task.output_size)
    for bad in ((x[:, 1:], y, output), (x, y[:2], output), (x, y, output[..., None])):
        with pytest.raises(InputError, match=f"{task.name} task cannot score"):
            task.recovered(*bad)


@every_task
def test_a_number_of_sequences_is_a_count(task, generator):
    with pytest.raises(InputError, match="sequences must be a whole number"):
        task.sample(0, generator)


def test_data_that_cannot_tell_lags_apart_are_refused(generator):
    task = make_task("multi_lag", **SMALL["multi_lag"])
    x, y = task.sample(1, generator)
    with pytest.raises(InputError, match="more sequences"):
        task.recovered(torch.zeros_like(x), y, y)


def test_an_output_that_is_not_finite_is_scored_as_nan(generator):
    task = make_task("multi_lag", **SMALL["multi_lag"])
    x, y = task.sample(10, generator)
    assert task.recovered(x, y, y * math.nan).isnan().all()


def test_make_task():
    task = make_task("multi_lag", lags=[1, 3], coefficients=[1.0, 2.0], length=10)
    assert task.lags == (1, 3)
    assert task.coefficients == (1.0, 2.0)
    assert isinstance(hash(task), int)
    assert make_task(task) is task
    with pytest.raises(InputError, match="already made"):
        make_task(task, length=12)
    with pytest.raises(InputError, match="did you mean 'flip_flop'"):
        make_task("flipflop")
    with pytest.raises(InputError, match="option of the adding task 'lenght'; did you mean 'length'"):
        make_task("adding", lenght=10)
    with pytest.raises(AttributeError, match="Multilag"):
        lagreach.tasks.Multilag  # noqa: B018


def test_a_task_of_ones_own_needs_only_its_data_and_its_score():
    @dataclasses.dataclass(frozen=True)
    class Echo(Task):
        name = "echo"
        length: int = 5
        input_size: int = 1
        lags: tuple[int, ...] = (0,)

        def draw(self, sequences, generator):
            x = torch.randn(sequences, self.length, 1, generator=generator)
            return x, x

        def score(self, x, y, output):
            return (x * output).sum()[None] / x.square().sum()

    x, y = make_task(Echo()).sample(3, seeded())
    assert Echo().recovered(x, y, 0.5 * y).item() == pytest.approx(0.5)


@pytest.mark.thorough
def test_missing_packages_are_named():
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.datasets'] = None\n"
        "import torch, lagreach\n"
        "lagreach.tasks.make_task('digits').sample(1, torch.Generator())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "scikit-learn, which is not installed" in done.stderr
    assert "pip install 'lagreach[data]'" in done.stderr


@pytest.mark.thorough
def test_generated_tasks_load_torch_alone():
    heavy = ["scipy", "pandas", "sklearn", "pmdarima", "xarray"]
    code = (
        "import lagreach, sys, torch\n"
        "[lagreach.tasks.make_task(n) for n in lagreach.tasks.all_tasks()]\n"
        f"print(*[n for n in {heavy!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_task
def test_data_are_made_where_the_generator_lives(task):
    generator = torch.Generator("cuda").manual_seed(0)
    try:
        batch = task.batch(200, generator)
    except MissingDataError as missing:
        pytest.skip(str(missing))
    assert batch.x.is_cuda
    assert batch.y.is_cuda
    assert batch.mask is None or batch.mask.is_cuda
    scores = task.recovered(batch.x, batch.y, perfect(task, batch.x, batch.y))
    torch.testing.assert_close(scores, torch.ones_like(scores), rtol=0, atol=0.3)


@pytest.mark.thorough
def test_every_task_is_in_the_documentation_and_its_example_runs():
    text = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    for name, cls in all_tasks().items():
        assert f"| `{name}` | `{cls.__name__}` |" in text
        assert f".. autoclass:: {cls.__module__}.{cls.__name__}\n" in text
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(example, "tasks.md", "exec"), {})
