"""Real Lightning trainings on the CPU, with and without the callback."""

import importlib
import warnings

import pytest

from lagreach import callbacks
from lagreach.diagnosis.files import load
from lagreach.errors import InputError
from tests.callbacks.training import QUICK, assert_same, plain_loader

pytestmark = [
    pytest.mark.usefixtures("_as_users_run_it"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # torch, about how Lightning uses it
]


@pytest.fixture(scope="module")
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own imports
        pytest.importorskip("lightning.pytorch", reason="needs the extra lagreach[lightning]")
        return importlib.import_module("tests.callbacks.lightning_training")


@pytest.mark.thorough
def test_a_training_with_the_callback_is_the_same_training(lightning, tmp_path, capsys):
    _, plain = lightning.fit([], tmp_path)
    logger = lightning.Recorder()
    callback = callbacks.LightningCallback(optimizer=True, out=tmp_path / "seen", **QUICK)
    module, after = lightning.fit([callback], tmp_path, logger=logger)
    assert_same(after, plain)
    assert [diagnosis.labels["epoch"] for diagnosis in callback.history] == [1, 2]
    assert callback.history[0].settings["optimizer"] == "Adam"
    ours = [(step, values) for step, values in logger.seen if "lagreach/n_lag_2" in values]
    assert [step for step, _ in ours] == [4, 8]  # optimiser steps, so that they stand beside the loss
    assert sorted(file.name for file in (tmp_path / "seen").iterdir()) == [
        "epoch-00000001.nc", "epoch-00000002.nc", "forecasts", "training.png",
    ]  # fmt: skip
    assert [made.labels["step"] for made in callback.forecasts] == [1]  # 1 % and 5 % of 8 steps
    assert "forecast at step 1 of 8 (12 %): lag" in capsys.readouterr().out
    assert load(tmp_path / "seen" / "epoch-00000002.nc").labels["epoch"] == 2
    assert not any(one._forward_hooks for one in module.modules())


def test_optimiser_steps_are_counted_not_batches(lightning, tmp_path):
    _, plain = lightning.fit([], tmp_path, accumulate_grad_batches=2)
    callback = callbacks.LightningCallback(
        plain_loader(9), every=2, unit="step", find=lambda module: module.net, logger=lambda *_: None, **QUICK
    )
    _, after = lightning.fit([callback], tmp_path, accumulate_grad_batches=2)
    assert [diagnosis.labels["step"] for diagnosis in callback.history] == [2, 4]
    assert callback.history[0].layers[0].name == "lstm"
    assert_same(after, plain)


def test_a_mistake_in_the_arguments_is_an_error_before_training(lightning, tmp_path):
    with pytest.raises(InputError, match="unknown options"):
        lightning.fit([callbacks.LightningCallback(foo=1, **QUICK)], tmp_path)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_without_held_out_data_it_says_so(lightning, tmp_path):
    with pytest.raises(InputError, match="no held-out data"):
        lightning.fit([callbacks.LightningCallback(**QUICK)], tmp_path, validate=False)


@pytest.mark.thorough
def test_what_was_seen_before_an_exception_is_drawn(lightning, tmp_path):
    class Fails(lightning.pytorch.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise RuntimeError("half way")

    callback = callbacks.LightningCallback(out=tmp_path / "seen", **QUICK)
    with pytest.raises(RuntimeError, match="half way"):
        lightning.fit([callback, Fails()], tmp_path)
    assert (tmp_path / "seen" / "training.png").exists()
