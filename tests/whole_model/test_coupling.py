"""What mixes sequences is refused, and rounding is not taken for it."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.data.batch import Batch
from lagreach.errors import UnsupportedError
from lagreach.whole_model.coupling import check_loss, check_model
from lagreach.whole_model.outputs import objective_for
from lagreach.whole_model.running import at_rest, whole_model
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, made


def sample(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, INPUT, generator=generator).to(dtype)
    return Batch(x, torch.randn(3, 12, 1, generator=generator).to(dtype))


def checked(model, batch, call=None):
    whole = whole_model(model, call)
    with at_rest(whole.module):
        check_model(whole, batch)


def adding_the_first(model, batch):
    """A call that mixes sequences, whatever the model."""
    output = model(batch.x.to(next(model.parameters()).dtype))
    return output + output[:1]


class RoundsByBatchSize(cases.Flat):
    """Products of another batch size round differently, as large ones on a GPU do."""

    def forward(self, x):
        return super().forward(x) * (1 + 3e-2 * (len(x) == 1))


class BesideAnother(cases.Flat):
    def __init__(self, share=0.01, **options):
        super().__init__(**options)
        self.share = share

    def forward(self, x):
        output = super().forward(x)
        return output + self.share * output.mean(0, keepdim=True)


class AfterAnother(cases.Flat):
    """Only sequences further down the batch see those before."""

    def forward(self, x):
        output = super().forward(x)
        return output + 0.01 * output.cumsum(0).roll(1, 0)


class Rounded(cases.Flat):
    """What a sequence is beside decides how it is added up: rounding, and nothing else."""

    def forward(self, x):
        output = super().forward(x)
        shift = 300 * x.flatten(1).sum(1).abs().sum()
        return (output + shift) - shift


class Random(cases.Flat):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn(())


class Stateful(cases.Flat):
    kept = None

    def forward(self, x):
        output = super().forward(x) + (0 if self.kept is None else self.kept)
        self.kept = output.detach().mean()
        return output


@pytest.mark.parametrize("cls", [RoundsByBatchSize, cases.Flat, cases.CausalTransformer, Rounded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_is_no_coupling(cls, dtype):
    if cls is Rounded and dtype == torch.float64:
        pytest.skip("in double precision nothing is left to judge it by")
    model = made(cls).to(dtype)
    checked(model, sample())
    if (cls, dtype) != (Rounded, torch.bfloat16):  # rounded twice as coarsely, nothing is left to judge it by either
        with pytest.raises(UnsupportedError, match="depends on the other sequences"):
            checked(model, sample(), adding_the_first)


def test_rounding_is_no_coupling_where_a_call_hands_x_on_as_it_is():
    model = made(Rounded).float()
    checked(model, sample(), lambda model, batch: model(batch.x))
    with pytest.raises(UnsupportedError, match="depends on the other sequences"):
        checked(model, sample(), adding_the_first)


@pytest.mark.parametrize("cls", [BesideAnother, AfterAnother])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sequences_that_see_each_other_are_refused(cls, dtype):
    with pytest.raises(UnsupportedError, match="depends on the other sequences"):
        checked(made(cls).to(dtype), sample())


def test_a_little_coupling_is_refused_in_double_precision_too():
    model = BesideAnother(share=1e-5).double().eval()
    with pytest.raises(UnsupportedError, match="depends on the other sequences"):
        checked(model, sample())
    with pytest.raises(UnsupportedError, match="depends on the other sequences"):
        checked(BesideAnother(share=1e-4).eval(), sample())


def test_random_models_and_models_that_keep_a_state_are_refused():
    for cls in (Random, Stateful):
        with pytest.raises(UnsupportedError, match="two runs of the model"):
            checked(made(cls), sample())


def test_overflow_is_said():
    model = made(cases.Flat)
    with torch.no_grad():
        model.readout.weight.fill_(torch.inf)
    with pytest.raises(UnsupportedError, match="not finite"):
        checked(model, sample())


def test_batch_norm_in_training_mode_is_refused():
    model = nn.Sequential(
        nn.Linear(INPUT, 4), nn.Unflatten(-1, (4, 1)), nn.Flatten(2), nn.BatchNorm1d(12), nn.Linear(4, 1)
    )
    x = torch.randn(32, 12, INPUT)
    with pytest.raises(UnsupportedError, match="BatchNorm in training mode"):
        lagreach.diagnose(model, (x, x[..., :1]))
    diagnosis = lagreach.diagnose(model.eval(), (x, x[..., :1]), lags=[0, 1])
    assert diagnosis.layers[0].window.dependences == (0,)


def in_batch_negatives(output, y, mask):
    """Each sequence against all targets of its batch."""
    scores = output.mean(1) @ y.mean(1).T
    return nn.functional.cross_entropy(scores, torch.arange(len(output)), reduction="none")


def test_losses_that_compare_sequences_are_refused():
    model = made(cases.Flat)
    batch = sample(torch.float64)
    output = model(batch.x).detach()
    check_loss(objective_for(lambda out, y, mask: (out - y).square().mean((1, 2)), batch, output, 12), output)
    with pytest.raises(UnsupportedError, match="loss of a sequence depends on the other"):
        check_loss(objective_for(in_batch_negatives, batch, output, 12), output)
