"""Losses as users write them: words, modules of torch, functions of their own, and what is none of these."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.errors import InputError
from lagreach.transport.losses import as_loss

pytestmark = pytest.mark.usefixtures("_as_users_run_it")

ASKS = {
    "diagnose": lagreach.diagnose,
    "cost": lagreach.cost,
    "forecast": lagreach.forecast,
    "advise": lambda model, data, lags, **options: lagreach.advise(model, data, lags[0], **options),
    "watch": lambda model, data, **options: lagreach.watch(model, data, **options).diagnose(),
    "lag_gradients": lambda model, data, **options: lagreach.lag_gradients(model, *data, **options),
}
every = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)


def case():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(32, 8, n, generator=generator) for n in (2, 1))
    return lagreach.GatedRNN("diag_gate", 2, 4, 1, generator=generator), (x, y)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.MSELoss, nn.functional.mse_loss])
def test_torchs_mean_squares_are_mse(loss):
    """They were called with one argument too many."""
    model, data = case()
    as_word, given = (lagreach.diagnose(model, data, name, lags=[0, 1]) for name in ("mse", loss))
    assert given.settings["loss"] == "mse"
    torch.testing.assert_close(*(torch.tensor(one.required.values) for one in (as_word, given)), equal_nan=True)
    torch.testing.assert_close(*(lagreach.lag_gradients(model, *data, name).loss for name in ("mse", loss)))
    assert lagreach.forecast(model, data, lags=[0, 1], loss=loss, weights="readout").settings["loss"] == "mse"


def test_torchs_cross_entropy_ignores_what_it_ignores_here():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 6, 2, generator=generator), torch.randint(3, (16, 6), generator=generator)
    y[3, 2:] = -100
    model = lagreach.GatedRNN("diag_gate", 2, 4, 3, generator=generator)
    word, given = (lagreach.lag_gradients(model, x, y, loss).loss for loss in ("cross_entropy", nn.CrossEntropyLoss()))
    torch.testing.assert_close(word, given)


@every
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.MSELoss(reduction="sum"), r"an option of MSELoss would be lost\n.*reduction=sum"),
        (nn.CrossEntropyLoss(torch.ones(3)), r"an option of CrossEntropyLoss would be lost\n.*weight=a tensor"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), r"would be lost\n.*label_smoothing=0.1"),
        (nn.CrossEntropyLoss(ignore_index=0), r"would be lost\n.*ignore_index=0\n.*\n.*y.masked_fill\(y == 0, -100\)"),
        (nn.L1Loss(), r"this loss of torch gives one value.*\n.*L1Loss\(\)\n.*\n.*def loss\(output, y, mask\)"),
        (
            nn.BCEWithLogitsLoss(),
            r"BCEWithLogitsLoss\(\)\n.*\n.*two outputs and pass loss=\"cross_entropy\" with y.long",
        ),
        (None, r"unknown loss\n.*None"),
        ("mae", r"unknown loss\n.*'mae'"),
    ],
)
def test_other_losses_of_torch_and_none_are_refused(ask, loss, said):
    model, data = case()
    with pytest.raises(InputError, match=said):
        ask(model, data, loss=loss, lags=[0, 1])


@pytest.mark.parametrize("ask", [ASKS[name] for name in ("diagnose", "cost", "lag_gradients")])
@pytest.mark.parametrize(
    ("loss", "error"),
    [(lambda output, y: ((output - y) ** 2).mean((1, 2)), TypeError), (lambda *_: 1 / 0, ZeroDivisionError)],
)
def test_what_a_loss_function_raises_is_said_of_it(ask, loss, error):
    model, data = case()
    with pytest.raises(
        InputError, match=rf"the loss function does not run.*\n.*{error.__name__}.*\n.*\(output, y, mask\)"
    ) as said:
        ask(model, data, loss=loss, lags=[0, 1])
    assert isinstance(said.value.__cause__, error)


def test_a_module_of_ones_own_is_a_function():
    class Mine(nn.MSELoss):
        def forward(self, output, y, mask):
            return ((output - y).square().mean(-1) * mask).sum(1) / mask.sum(1)

    model, data = case()
    mine = Mine()
    assert as_loss(mine) is mine
    torch.testing.assert_close(*(lagreach.lag_gradients(model, *data, loss).loss for loss in ("mse", mine)))
