"""A small training of transformers' Trainer; a module of its own, since importing it takes seconds."""

import torch
import transformers
from torch import nn

from tests.callbacks.training import Net, sequences


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
