"""Real trainings with the Trainer of transformers on the CPU, with and without the callback."""

import warnings

import pytest
import torch
from torch import nn

from lagreach.callbacks import TrainerCallback
from tests.callbacks.training import QUICK, Net, assert_same, sequences

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own imports
    transformers = pytest.importorskip("transformers", reason="needs the extra lagreach[transformers]")
    pytest.importorskip("accelerate", reason="needs the extra lagreach[transformers]")

pytestmark = pytest.mark.usefixtures("_as_users_run_it")


class Model(nn.Module):
    """As models of transformers do: named arguments in, a dict out."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, inputs, labels=None):
        logits = self.net(inputs)
        if labels is None:
            return {"logits": logits}
        return {"loss": (logits - labels).square().mean(), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = sequences()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"inputs": self.x[i], "labels": self.y[i]}


def fit(callbacks, folder):
    torch.manual_seed(0)
    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=8, learning_rate=0.01, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=callbacks)
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return trainer, weights | {"drawn": torch.rand(3)}


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "every", "seen"), [("step", 3, [3, 6]), ("epoch", 1, [1, 2])])
def test_a_training_with_the_callback_is_the_same_training(unit, every, seen, tmp_path):
    _, plain = fit([], tmp_path / "plain")
    callback = TrainerCallback(
        sequences(seed=5), every=every, unit=unit, optimizer=True, out=tmp_path / "seen",
        call=lambda model, batch: model(inputs=batch.x), **QUICK,
        logger=lambda values, step: callback.trainer.log(values),
    )  # fmt: skip
    trainer, after = fit([callback], tmp_path / "watched")
    assert_same(after, plain)
    assert [diagnosis.labels[unit] for diagnosis in callback.history] == seen
    assert callback.history[0].settings["optimizer"] == "Adam"
    assert callback.history[0].layers[0].name == "net.lstm"
    logged = [row for row in trainer.state.log_history if "lagreach/n_lag_2" in row]
    assert [row["step"] for row in logged] == ([3, 6] if unit == "step" else [4, 8])
    assert (tmp_path / "seen" / "training.png").exists()
    assert [made.labels["step"] for made in callback.forecasts] == [1]
    assert callback.forecasts[0].settings["steps"] == 7


def test_a_part_of_the_model_and_no_history_before_training(tmp_path):
    callback = TrainerCallback(sequences(seed=5), every=8, find=lambda model: model.net, **QUICK)
    assert callback.history == []
    fit([callback], tmp_path)
    assert callback.history[0].layers[0].name == "lstm"
