"""A watched training is the same training, bit for bit, and what was seen is kept, logged and drawn."""

import errno
import math
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import lagreach
from lagreach.callbacks import Watch, training_untouched, watch
from lagreach.cli.report import files_in, read
from lagreach.errors import InputError, LagreachError
from tests.callbacks.training import QUICK, Jittered, Net, assert_same, plain_loader, run, sequences

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def unwatched():
    return run()[1]


@pytest.mark.usefixtures("_as_users_run_it")  # the checks of types in tests draw from python's random state
@pytest.mark.parametrize(
    ("unit", "every", "seen"), [("step", 3, [3, 6]), pytest.param("epoch", 1, [1, 2], marks=pytest.mark.thorough)]
)
def test_training_is_the_same_with_and_without_a_watch(unit, every, seen, unwatched, tmp_path):
    """Dropout, batch norm, jittered data, a shuffling loader and a generator shared with the held-out loader."""

    def make(model, held_out, optimiser):
        return watch(model, held_out, every=every, unit=unit, out=tmp_path, optimizer=optimiser, **QUICK)

    model, after, watched = run(make)
    assert_same(after, unwatched)
    assert [diagnosis.labels[unit] for diagnosis in watched.history] == seen
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert watched.seconds > 0
    assert str(watched).startswith("2 diagnoses in")
    assert f"{unit} {seen[0]}: With 32 sequences" in str(watched)


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
def test_what_will_be_learned_is_said_early_and_training_stays_the_same(unwatched, tmp_path):
    said, logged = [], []

    def make(model, held_out, optimiser):
        return watch(
            model, held_out, every=100, planned=20, forecast_at=(0.01, 0.25), say=said.append, out=tmp_path,
            optimizer=optimiser, logger=lambda values, step: logged.append((step, values)), **QUICK,
        )  # fmt: skip

    _, after, watched = run(make)
    assert_same(after, unwatched)
    assert watched.failures == []
    assert [made.labels["step"] for made in watched.forecasts] == [1, 5]
    assert said[0].startswith("forecast at step 1 of 20 (5 %): lag")
    assert "unseen" in said[0] or "learned" in said[0] or "blended" in said[0]
    assert said[1] in str(watched)
    assert watched.forecasts[1].settings["steps"] == 15  # those that are left
    assert sorted(file.name for file in (tmp_path / "forecasts").iterdir()) == ["step-00000001.nc", "step-00000005.nc"]
    assert [step for step, _ in logged] == [1, 5]
    assert set(logged[0][1]) <= {"lagreach/forecast_lag_0", "lagreach/forecast_lag_2", "lagreach/forecast_lag_5"}


def test_a_forecast_that_cannot_be_made_is_a_warning():
    model = Net()
    watched = watch(
        model, sequences(), every=5, planned=10, say=None, loss=lambda output, y, mask: output.sum((1, 2)), lags=[0, 2]
    )
    with pytest.warns(RuntimeWarning, match="no forecast at step 1"):
        watched.step(1)
    assert watched.forecasts == []
    assert "curvature of two losses" in watched.failures[0][1]
    with pytest.raises(InputError, match="positive number of steps"):
        watch(model, sequences(), planned=0)
    with pytest.raises(InputError, match="parts of the training"):
        watch(model, sequences(), planned=10, forecast_at=(2.0,))
    with pytest.raises(InputError, match="not known how long"):
        watch(model, sequences()).forecast()


def test_a_different_training_is_told_apart(unwatched):
    """The comparison above can fail: drawing one number more is noticed."""

    class Draws:
        def step(self):
            torch.rand(1)

        def epoch(self):
            pass

        close = epoch

    _, after, _ = run(lambda *_: Draws())
    with pytest.raises(AssertionError):
        assert_same(after, unwatched)


def test_gradients_modes_buffers_and_flags_survive_an_exception():
    model = Net()
    model.drop.eval()  # a mixed state must stay mixed
    model(sequences(4)[0]).sum().backward()
    waiting = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}
    buffer, content = model.norm.running_mean, model.norm.running_mean.clone()
    torch.backends.cudnn.benchmark = True
    loader = torch.utils.data.DataLoader(Jittered(), shuffle=True, generator=torch.Generator().manual_seed(3))
    of_loader, drawn = loader.generator.get_state(), torch.get_rng_state()

    @training_untouched(model, loader)
    def disturb():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not model.training
        torch.rand(1)
        next(iter(loader))
        model.norm.running_mean = torch.ones(5)
        model.norm.num_batches_tracked.add_(7)
        model(sequences(4)[0]).sum().backward()
        torch.backends.cudnn.benchmark = False
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("from the user's code")

    with torch.inference_mode(), torch.autocast("cpu"):
        with pytest.raises(RuntimeError, match="from the user's code"):
            disturb()
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    assert torch.get_default_dtype() is torch.float32
    assert torch.equal(loader.generator.get_state(), of_loader)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training
    assert not model.drop.training
    assert model.norm.running_mean is buffer
    assert torch.equal(buffer, content)
    assert model.norm.num_batches_tracked.item() == 1
    for name, weight in model.named_parameters():
        assert weight.grad is waiting[name][0]
        assert torch.equal(weight.grad, waiting[name][1])


@pytest.mark.thorough
def test_every_diagnosis_sees_the_same_sequences(tmp_path):
    watched = watch(Net(), torch.utils.data.DataLoader(Jittered(), batch_size=8, shuffle=True), out=tmp_path, **QUICK)
    first, second = watched.step(), watched.step()
    assert first.fingerprint == second.fingerprint
    assert first.required_if_present.equals(second.required_if_present)  # the model did not change either


@pytest.mark.thorough
def test_files_figure_and_labels(tmp_path):
    folder = tmp_path / "run"
    with watch(Net(), sequences(), every=2, out=folder, labels={"cell": "lstm"}, **QUICK) as watched:
        for _ in range(4):
            watched.step()
            watched.epoch()
    assert sorted(file.name for file in folder.iterdir()) == ["step-00000002.nc", "step-00000004.nc", "training.png"]
    diagnoses, names = read(files_in([folder]))
    assert [dict(one.labels) for one in diagnoses] == [{"cell": "lstm", "step": 2}, {"cell": "lstm", "step": 4}]
    assert names == ["lstm, step 2", "lstm, step 4"]
    assert (folder / "training.png").read_bytes()[:4] == b"\x89PNG"
    (folder / "training.png").unlink()
    watched.close()
    assert not (folder / "training.png").exists()  # drawn once


@pytest.mark.thorough
def test_counts_of_the_loop_itself_and_counts_that_stand_still():
    watched = watch(Net(), sequences(), every=50, **QUICK)
    assert watched.step(150) is not None
    assert watched.step(150) is None  # the same step, told twice
    assert watched.step(151) is None
    assert watched.step(200).labels["step"] == 200


def test_a_total_budget_is_kept():
    watched = watch(Net(), sequences(), total=0.0, **(QUICK | {"budget": 1.0}))
    assert watched.step() is None
    assert watched.step() is None
    assert (watched.skipped, watched.history) == (2, [])
    assert "2 left out" in str(watched)


@pytest.mark.thorough
def test_a_budget_makes_a_subsample():
    watched = watch(Net(), sequences(256), **(QUICK | {"budget": 1e-6}))
    assert watched.step().settings["used"] == 16


def test_the_first_error_is_raised_and_later_ones_are_kept():
    model = Net()
    weight = model.lstm.weight_hh_l0.data[0, 0].item()
    model.lstm.weight_hh_l0.data[0, 0] = math.nan
    watched = watch(model, sequences(), **QUICK)
    with pytest.raises(LagreachError, match="nan"):
        watched.step()
    model.lstm.weight_hh_l0.data[0, 0] = weight
    assert watched.step() is not None
    model.lstm.weight_hh_l0.data[0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="no diagnosis at step 3"):
        assert watched.step() is None
    assert watched.failures[0][0] == 3
    assert "step 3: failed" in str(watched)
    assert model.training


def broken(*_, **__):
    raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("what", ["diagnose", "Foreteller.forecast", "logger", "say", "training"])
def test_no_error_of_any_kind_ends_a_training(what, monkeypatch, tmp_path):
    """Errors that nobody foresaw, from the first diagnosis on; once they went through to the training."""
    if what in ("diagnose", "Foreteller.forecast", "training"):
        monkeypatch.setattr(f"lagreach.callbacks.watching.{what}", broken)
    planned = 2 if what in ("Foreteller.forecast", "say") else None
    options = {"logger": broken} if what == "logger" else {"say": broken if what == "say" else None}
    watched = watch(Net(), sequences(), every=2, out=tmp_path, planned=planned, forecast_at=(0.5,), **options, **QUICK)

    def train():
        for step in (1, 2):
            watched.step(step)
        watched.close()

    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: a fault of ours"):
        train()
    assert len(watched.failures) == 1
    assert len(watched.history) == (0 if what == "diagnose" else 1)
    assert len(watched.forecasts) == (1 if what == "say" else 0)


def test_what_is_refused_is_raised_at_the_first_step_and_never_later(monkeypatch):
    watched = watch(Net(), sequences(), every=2, lags_of="nobody", **QUICK)
    with pytest.raises(InputError, match="unknown choice of lags"):
        watched.step()  # though no diagnosis is due
    watched = watch(Net(), sequences(), every=2, **QUICK)
    watched.step()
    monkeypatch.setattr("lagreach.callbacks.watching.diagnose", refusing)
    with pytest.warns(RuntimeWarning, match="no diagnosis at step 2: not this one"):
        assert watched.step() is None


WRONG = [
    ({"lags": [99]}, "lags must be shorter"),
    ({"require": [99]}, "lags must be shorter"),
    ({"foo": 1}, "unknown options"),
    ({"budget": 0}, "budget is out of range"),
    ({"total": -1}, "total is out of range"),
    ({"sequences": 0}, "sequences is out of range"),
    ({"strength": 2}, "strength is out of range"),
    ({"error": 0.7}, "error is out of range"),
    ({"transport": "none"}, "unknown transport"),
    ({"params": "none"}, "unknown selection|do not have this choice"),
    ({"optimizer": 3}, "geometry of this optimiser"),
]


@pytest.mark.parametrize("of", ["layers", "model"])
@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_mistakes_in_the_arguments_are_errors_at_the_first_step(wrong, message, of):
    watched = watch(Net(), sequences(), every=100, **QUICK | {"lags_of": of} | wrong)
    with pytest.raises(LagreachError, match=message):
        watched.step()


def refusing(*_, **__):
    raise InputError("not this one")


@pytest.mark.parametrize("wanted", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_to_end_a_training_does(wanted, monkeypatch):
    def ending(*_, **__):
        raise wanted

    watched = watch(Net(), sequences(), **QUICK)
    monkeypatch.setattr("lagreach.callbacks.watching.diagnose", ending)
    with pytest.raises(wanted):
        watched.step()


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.thorough
@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("refused", ["os.fsync", "os.pwrite"])
def test_a_full_disk_is_a_warning_and_the_training_stays_the_same(unwatched, tmp_path, monkeypatch, refused):
    """Where diagnoses are saved, and where the sequences of a loader are kept: from the first diagnosis on."""

    def make(model, held_out, optimiser):
        return watch(model, held_out, every=3, out=tmp_path, logger=lambda values, _: full_disk(), **QUICK)

    monkeypatch.setattr(refused, full_disk)
    with pytest.warns(RuntimeWarning) as warned:
        _, after, watched = run(make)
    assert_same(after, unwatched)
    assert list(tmp_path.iterdir()) == []
    messages = [str(one.message) for one in warned]
    if refused == "os.fsync":
        assert [diagnosis.labels["step"] for diagnosis in watched.history] == [3, 6]
        assert [words in message for message, words in zip(messages, 2 * ["saved", "logged"], strict=False)] == 4 * [
            True
        ]
        assert "the window over training was not drawn: the disk is full" in messages[-1]
    else:
        assert watched.history == []
        assert all("cannot be kept in the temporary folder" in message for message in messages)
    assert len(watched.failures) == len(messages)


def two_steps(folder, number):
    with watch(Net(), sequences(), every=2, out=folder, labels={"run": number}, **QUICK) as watched:
        watched.step(2)
        watched.step(4)


@pytest.mark.thorough
def test_files_of_an_earlier_training_stay(tmp_path):
    two_steps(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.warns(RuntimeWarning, match=r"earlier training.*step-00000002-2\.nc") as warned:
        two_steps(tmp_path, 2)
    assert len(warned) == 1
    names = {path.name for path in tmp_path.iterdir()}
    assert names == set(before) | {"step-00000002-2.nc", "step-00000004-2.nc", "training-2.png"}
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert lagreach.load(tmp_path / "step-00000002-2.nc").labels["run"] == 2


@pytest.mark.thorough
def test_an_interrupt_is_for_the_training():
    """A diagnosis that is cut short is kept, and the interrupt goes on to the loop."""
    calls = 0

    def interrupting(output, y, mask):
        nonlocal calls
        calls += 1
        if calls == limit:
            raise KeyboardInterrupt
        return (output - y).square().mean((1, 2))

    model, limit = Net(), -1
    settings = lagreach.diagnosis.measure.MeasureSettings(blocks=32, probes=1, flips=99)
    options = {"lags": [0, 2, 5], "settings": settings, "budget": None, "memory": 1}  # one pair of sequences at a time
    watch(model, sequences(64), loss=interrupting, **options).step()
    calls, limit = 0, calls // 4
    watched = watch(model, sequences(64), loss=interrupting, **options)
    with pytest.raises(KeyboardInterrupt):
        watched.step()
    assert model.training
    assert [diagnosis.partial for diagnosis in watched.history] == [True]


@pytest.mark.usefixtures("_as_users_run_it")
def test_bad_arguments_are_refused_before_training_starts():
    for bad, message in (
        ({"unit": "batch"}, "step or epoch"),
        ({"every": 0}, "1 or more"),
        ({"dry_run": True}, "dry_run"),
        ({"logger": 3}, "cannot take metrics"),
    ):
        with pytest.raises(InputError, match=message):
            watch(Net(), sequences(), **bad)


@pytest.mark.thorough
def test_compiled_and_parallel_wrappers_are_looked_through():
    model = Net()
    watched = Watch(nn.DataParallel(model), sequences(), **QUICK)
    assert watched.step().layers[0].name == "lstm"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile may warn about the platform; nothing is compiled here
        compiled = torch.compile(model)
    assert Watch(compiled, plain_loader(), **QUICK).step().layers[0].name == "lstm"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_states_of_devices_are_put_back():
    model = Net().cuda()
    torch.cuda.manual_seed(3)
    watched = watch(model, sequences(), **QUICK)
    before = torch.cuda.get_rng_state_all()
    watched.step()
    with training_untouched(model):
        torch.rand(5, device="cuda")
    for now, then in zip(torch.cuda.get_rng_state_all(), before, strict=True):
        assert torch.equal(now, then)
