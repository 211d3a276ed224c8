"""Real trainings with the Trainer of transformers on the CPU, with and without the callback."""

import importlib
import warnings

import pytest

from lagreach import callbacks
from lagreach.errors import InputError
from tests.callbacks.training import QUICK, assert_same, sequences

pytestmark = pytest.mark.usefixtures("_as_users_run_it")


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own imports
        pytest.importorskip("transformers", reason="needs the extra lagreach[transformers]")
        pytest.importorskip("accelerate", reason="needs the extra lagreach[transformers]")
        return importlib.import_module("tests.callbacks.trainer_training")


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "every", "seen"), [("step", 3, [3, 6]), ("epoch", 1, [1, 2])])
def test_a_training_with_the_callback_is_the_same_training(unit, every, seen, tmp_path, transformers):
    _, plain = transformers.fit([], tmp_path / "plain")
    callback = callbacks.TrainerCallback(
        sequences(seed=5), every=every, unit=unit, optimizer=True, out=tmp_path / "seen",
        call=lambda model, batch: model(inputs=batch.x), **QUICK,
        logger=lambda values, step: callback.trainer.log(values),
    )  # fmt: skip
    trainer, after = transformers.fit([callback], tmp_path / "watched")
    assert_same(after, plain)
    assert [diagnosis.labels[unit] for diagnosis in callback.history] == seen
    assert callback.history[0].settings["optimizer"] == "Adam"
    assert callback.history[0].layers[0].name == "net.lstm"
    logged = [row for row in trainer.state.log_history if "lagreach/n_lag_2" in row]
    assert [row["step"] for row in logged] == ([3, 6] if unit == "step" else [4, 8])
    assert (tmp_path / "seen" / "training.png").exists()
    assert [made.labels["step"] for made in callback.forecasts] == [1]
    assert callback.forecasts[0].settings["steps"] == 7


def test_a_part_of_the_model_and_no_history_before_training(tmp_path, transformers):
    callback = callbacks.TrainerCallback(sequences(seed=5), every=8, find=lambda model: model.net, **QUICK)
    assert callback.history == []
    transformers.fit([callback], tmp_path)
    assert callback.history[0].layers[0].name == "lstm"


@pytest.mark.parametrize(("wrong", "message"), [({"foo": 1}, "unknown options"), ({"lags": [99]}, "must be shorter")])
def test_a_mistake_in_the_arguments_is_an_error_before_training(wrong, message, tmp_path, transformers):
    callback = callbacks.TrainerCallback(
        sequences(seed=5), call=lambda model, batch: model(inputs=batch.x), **QUICK | wrong
    )
    with pytest.raises(InputError, match=message):
        transformers.fit([callback], tmp_path)
