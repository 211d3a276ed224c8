"""Training: optimisers as in torch, replicas that do not see each other, failures that stay where they are."""

import numpy as np
import pytest
import torch

from lagreach.errors import InputError, TooLargeError
from lagreach.kernels.gpu import current_precision
from lagreach.models.gated_rnn import GatedRNN
from lagreach.study import replicas
from lagreach.study.data import FreshData, generator_for, hold
from lagreach.study.losses import replica_losses
from lagreach.study.optimisers import Optimiser, OptimiserSettings, clip_rows
from lagreach.study.replicas import Replicas
from lagreach.study.train import train
from lagreach.study.trainer import Trainer, run_epoch
from lagreach.tasks import make_task
from lagreach.types import Status

TASK = make_task("multi_lag", lags=(2, 5), coefficients=(0.8, 0.5), noise=0.1, input_size=2, length=16)


def model(seed, cell="diag_gate", **options):
    options = {"gate_init": 0.2} | options
    return GatedRNN(cell, 2, 6, 1, generator=torch.Generator().manual_seed(seed), **options)


TORCH = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.01),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8, weight_decay=0.01),
    "adam": lambda p, lr: torch.optim.Adam(p, lr, betas=(0.8, 0.95), weight_decay=0.01),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr, betas=(0.8, 0.95), weight_decay=0.01),
}


@pytest.mark.parametrize("name", TORCH)
def test_optimisers_follow_torch_for_every_row(name, generator):
    rates = [0.1, 0.03]
    start = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    flat = start.clone()
    settings = OptimiserSettings(optimiser=name, momentum=0.8, betas=(0.8, 0.95), weight_decay=0.01, clip=0.7)
    ours = Optimiser(settings, flat, torch.tensor(rates, dtype=torch.float64))
    rows = [start[r].clone().requires_grad_() for r in range(2)]
    theirs = [TORCH[name]([row], rates[r]) for r, row in enumerate(rows)]
    for _ in range(6):
        gradient = torch.randn(2, 5, generator=generator, dtype=torch.float64)
        ours.advance(1.0)
        ours.step(flat, clip_rows(gradient, 0.7)[0], torch.tensor([True, True]))
        for r, row in enumerate(rows):
            row.grad = gradient[r].clone()
            torch.nn.utils.clip_grad_norm_([row], 0.7)
            theirs[r].step()
    torch.testing.assert_close(flat, torch.stack([row.detach() for row in rows]), rtol=1e-12, atol=1e-12)


def test_a_row_that_is_not_alive_is_left_alone(generator):
    flat = torch.randn(2, 3, generator=generator)
    before = flat.clone()
    for name in TORCH:
        optimiser = Optimiser(OptimiserSettings(optimiser=name, weight_decay=0.1), flat, torch.tensor([0.1, 0.1]))
        optimiser.advance(1.0)
        optimiser.step(flat, torch.full((2, 3), torch.nan), torch.tensor([False, False]))
        torch.testing.assert_close(flat, before, rtol=0, atol=0)
        assert all(torch.isfinite(buffer).all() for buffer in optimiser.buffers.values())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine"}, [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        ({"schedule": "step", "step_at": (0.5, 0.75), "step_factor": 0.1}, [1, 1, 0.1, 0.01]),
        ({"schedule": "linear", "warmup": 2}, [0.5, 1, 1, 0.5]),
    ],
)
def test_schedules(options, expected):
    settings = OptimiserSettings(**options)
    np.testing.assert_allclose([settings.factor(step, 4) for step in range(4)], expected, rtol=1e-12)


def test_training_matches_a_plain_torch_loop():
    done = train(
        model(3), TASK, sequences=24, epochs=3, batch=8, seeds=[7], settings=OptimiserSettings(lr=0.01, clip=1.0)
    )
    plain, data = model(3), hold(TASK, 24, [7], 8, "cpu", torch.float32)
    optimiser = torch.optim.AdamW(plain.parameters(), 0.01, weight_decay=0.0)
    for epoch in range(3):
        for x, y in data.epoch(epoch):
            optimiser.zero_grad()
            (plain(x[0]) - y[0]).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimiser.step()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(dict(done.models[0].named_parameters())[name], weight, rtol=2e-4, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("cell", ["const_gate", "lstm"])
def test_what_a_replica_learns_does_not_depend_on_the_others(cell):
    settings = OptimiserSettings(optimiser="adamw", clip=0.5, weight_decay=1e-3)
    options = {"sequences": 32, "epochs": 25, "batch": 8, "settings": settings}
    together = train([model(s, cell) for s in range(3)], TASK, lr=[0.01, 0.003, 0.02], **options)
    alone = train(model(1, cell), TASK, lr=[0.003], seeds=[1], **options)  # 100 steps
    for name, weight in alone.models[0].named_parameters():
        torch.testing.assert_close(dict(together.models[1].named_parameters())[name], weight, rtol=1e-4, atol=1e-5)
    assert not np.allclose(together.loss[:, 0], together.loss[:, 1])


def test_a_model_that_diverges_keeps_its_last_good_weights_and_harms_nobody():
    settings = OptimiserSettings(optimiser="sgd")
    options = {"sequences": 32, "epochs": 6, "batch": 8, "settings": settings}
    wild = train([model(0), model(1)], TASK, lr=[0.05, 1e30], **options)
    calm = train([model(0), model(1)], TASK, lr=[0.05, 0.05], **options)
    assert wild.status == (Status.OK, Status.DIVERGED)
    assert all(torch.isfinite(p).all() for p in wild.models[1].parameters())
    np.testing.assert_allclose(wild.loss[:, 0], calm.loss[:, 0], rtol=1e-5)
    assert np.isnan(wild.loss[-1, 1])


def test_training_stops_when_nothing_is_alive():
    done = train(model(0), TASK, sequences=8, epochs=50, batch=8, settings=OptimiserSettings(optimiser="sgd", lr=1e30))
    assert len(done.loss) < 50
    assert done.status == (Status.DIVERGED,)


def test_a_state_goes_on_to_the_identical_weights():
    def fresh():
        replicas = Replicas([model(s) for s in range(2)])
        return Trainer(replicas, hold(TASK, 24, [0, 1], 8, "cpu", torch.float32), "mse", OptimiserSettings(clip=1.0), 4)

    whole, cut = fresh(), fresh()
    for _ in range(4):
        whole.run_epoch()
    for _ in range(2):
        cut.run_epoch()
    state = {name: value.clone() for name, value in cut.state().items()}
    resumed = fresh()
    resumed.load(state)
    for _ in range(2):
        resumed.run_epoch()
    for name, value in whole.state().items():
        assert torch.equal(value, resumed.state()[name]), name
    with pytest.raises(InputError, match="belongs to another training"):
        resumed.load({"weights": state["weights"]})


def test_trainings_side_by_side_are_trainings_one_by_one():
    def fresh(cell, batch):
        replicas = Replicas([model(s, cell) for s in range(2)])
        return Trainer(replicas, hold(TASK, 24, [0, 1], batch, "cpu", torch.float32), "mse", OptimiserSettings(), 2)

    kinds = [("diag_gate", 8), ("lstm", 5)]  # 3 and 5 steps an epoch
    together, alone = ([fresh(*kind) for kind in kinds] for _ in range(2))
    for _ in range(2):
        both = run_epoch(together)
        for one, (loss, norm) in zip(alone, both, strict=True):
            own_loss, own_norm = one.run_epoch()
            np.testing.assert_array_equal(loss, own_loss)
            np.testing.assert_array_equal(norm, own_norm)


def test_checkpoints_hold_the_models_of_their_epoch():
    done = train(model(0), TASK, sequences=16, epochs=3, batch=8, checkpoints=[0, 2])
    assert sorted(done.checkpoints) == [0, 2]
    start = dict(model(0).named_parameters())
    for name, weight in done.checkpoints[0][0].named_parameters():
        assert torch.equal(weight, start[name])
    two = train(model(0), TASK, sequences=16, epochs=2, batch=8)
    for name, weight in two.models[0].named_parameters():
        torch.testing.assert_close(dict(done.checkpoints[2][0].named_parameters())[name], weight)


def test_every_sequence_is_seen_once_an_epoch_in_an_order_of_its_own():
    data = hold(TASK, 10, [3, 4], 4, "cpu", torch.float32)
    epochs = [torch.cat([x for x, _ in data.epoch(e)], dim=1) for e in range(2)]
    for r in range(2):
        seen = [e[r].sum((1, 2)).sort().values for e in epochs]
        torch.testing.assert_close(seen[0], seen[1])
        assert not torch.equal(epochs[0][r], epochs[1][r])
    assert data.steps_per_epoch == 3


def test_fresh_data_never_repeat_and_follow_from_the_seed():
    data = FreshData(TASK, (5,), 4, 3)
    first = [x for x, _ in data.epoch(0)]
    again = [x for x, _ in data.epoch(0)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    drawn = torch.cat([*first, *(x for x, _ in data.epoch(1))], dim=1)[0].flatten(1)
    assert len(torch.unique(drawn, dim=0)) == 24


def test_generators_depend_on_what_they_are_for():
    one, same, other = (torch.rand(3, generator=generator_for(1, what)) for what in ("data", "data", "order"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_masked_loss_counts_the_steps_that_count(generator):
    output, y = torch.randn(2, 3, 4, 1, generator=generator), torch.randn(2, 3, 4, 1, generator=generator)
    mask = torch.tensor([0.0, 0.0, 1.0, 1.0])
    expected = (output - y).square()[:, :, 2:, 0].mean((1, 2))
    torch.testing.assert_close(replica_losses("mse", output, y, mask), expected)


def test_the_precision_asked_for_holds_while_a_model_runs(monkeypatch):
    seen = []
    whole = replicas.scan_readout
    monkeypatch.setattr(replicas, "scan_readout", lambda *a, **o: seen.append(current_precision()) or whole(*a, **o))
    train(model(0), TASK, sequences=8, epochs=1, precision="float16")
    train(model(0), TASK, sequences=8, epochs=1)
    assert seen == ["float16", "float32"]
    assert current_precision() == "float32"


def test_classification_trains():
    task = make_task("copy", length=8, items=2, symbols=3)
    network = GatedRNN("lstm", task.input_size, 8, task.output_size, generator=torch.Generator().manual_seed(0))
    done = train(network, task, sequences=32, epochs=4, batch=16, settings=OptimiserSettings(lr=0.02))
    assert done.loss[-1, 0] < done.loss[0, 0]


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: train([], TASK, sequences=8), "no model"),
        (lambda: train([model(0), model(0, "lstm")], TASK, sequences=8), "same cell"),
        (
            lambda: train([model(0, "const_gate"), model(0, "const_gate", gate_init=0.3)], TASK, sequences=8),
            "same cell",
        ),
        (lambda: train(model(0), TASK), "number of sequences"),
        (lambda: train(model(0), TASK, sequences=8, lr=[0.1, 0.2]), "one learning rate"),
        (lambda: train(model(0), TASK, sequences=8, seeds=[1, 2]), "one seed"),
        (lambda: train(model(0), TASK, sequences=8, batch=0), "batch"),
        (lambda: train(model(0), (torch.zeros(4, 3, 2), torch.zeros(3, 3, 1))), "as many sequences"),
        (lambda: train(model(0), (torch.full((4, 3, 2), torch.nan), torch.zeros(4, 3, 1))), "NaN or inf"),
        (lambda: train(model(0), (torch.zeros(4, 3, 2), torch.zeros(4, 3, 1)), fresh=True), "fresh"),
        (lambda: train(model(0), TASK, sequences=8, loss="l1"), "unknown loss"),
        (lambda: train(model(0), TASK, sequences=8, kernel="cuda"), "unknown kernel"),
        (lambda: train(model(0), TASK, sequences=8, precision="half"), "unknown precision"),
        (lambda: OptimiserSettings(optimiser="lion"), "unknown optimiser"),
        (lambda: OptimiserSettings(schedule="random"), "unknown schedule"),
        (lambda: OptimiserSettings(lr=-1.0), "lr must"),
        (lambda: OptimiserSettings(clip=0.0), "clip must"),
        (lambda: OptimiserSettings(momentum=1.0), "momentum and betas"),
    ],
)
def test_bad_input_is_refused(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_data_that_would_not_fit_are_refused_before_they_are_drawn():
    with pytest.raises(TooLargeError, match="fresh=True"):
        hold(TASK, 10**9, [0], 8, "cpu", torch.float32)


@pytest.mark.gpu
def test_training_on_cuda_is_training_on_the_cpu():
    options = {"sequences": 32, "epochs": 3, "batch": 8, "settings": OptimiserSettings(lr=0.01, clip=1.0)}
    cpu, cuda = (train([model(0), model(1)], TASK, device=device, **options) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.loss, cuda.loss, rtol=1e-4)
