"""A small training of Lightning's; a module of its own, since importing Lightning takes seconds."""

import torch
from lightning import pytorch

from tests.callbacks.training import Net, plain_loader


class Module(pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        return (self(x) - y).square().mean()

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val", (self(x) - y).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Recorder(pytorch.loggers.Logger):
    """A logger of Lightning's own kind."""

    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


def fit(callbacks, folder, logger=False, validate=True, **options):
    torch.manual_seed(0)
    module = Module()
    trainer = pytorch.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=callbacks, logger=logger, default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    train = torch.utils.data.DataLoader(plain_loader(0).dataset, batch_size=8, shuffle=True)
    trainer.fit(module, train, plain_loader() if validate else None)
    return module, {name: value.clone() for name, value in module.state_dict().items()} | {"drawn": torch.rand(3)}
