"""Whose lags are measured, and that the result says so."""

import pytest
import torch
from torch import nn

import lagreach
from lagreach.cells.diag_gate import DiagGate
from lagreach.data.batch import Batch
from lagreach.errors import InputError, UnsupportedError
from lagreach.whole_model.choice import choose_lags
from tests.whole_model import cases
from tests.whole_model.cases import INPUT, made


class FedBack(nn.Module):
    """Its own output is its next input: no recurrence that could be replayed from its inputs."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(INPUT + 1, 4)
        self.readout = nn.Linear(4, 1)

    def forward(self, x):
        state, output, outputs = x.new_zeros(len(x), 4), x.new_zeros(len(x), 1), []
        for step in range(x.shape[1]):
            state = self.cell(torch.cat((x[:, step], output), 1), state)
            output = self.readout(state)
            outputs.append(output)
        return torch.stack(outputs, 1)


class InARow(nn.Module):
    """Layers of torch, one after the other, and a readout."""

    def __init__(self, *layers, width):
        super().__init__()
        self.layers, self.readout = nn.ModuleList(layers), nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.readout(x)


class CellsInARow(nn.Module):
    """A loop over two cells."""

    def __init__(self):
        super().__init__()
        self.lower, self.upper, self.readout = nn.LSTMCell(INPUT, 4), nn.LSTMCell(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        lower, upper, outputs = None, None, []
        for step in range(x.shape[1]):
            lower = self.lower(x[:, step], lower)
            upper = self.upper(lower[0], upper)
            outputs.append(upper[0])
        return self.readout(torch.stack(outputs, 1))


def lstm(inputs=INPUT, **options):
    return nn.LSTM(inputs, 4, batch_first=True, **options)


def batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, INPUT, generator=generator)
    return Batch(x, torch.randn(3, 8, 1, generator=generator))


@pytest.mark.parametrize(
    ("model", "of", "why"),
    [
        (lambda: made(cases.Recurrent).float(), "layers", "step by step, exactly"),
        (lambda: lagreach.GatedRNN("gru", INPUT, 4, 1), "layers", "known step by step"),
        (lambda: made(cases.CausalTransformer).float(), "model", "no recurrent layer"),
        (lambda: made(cases.PaddedConvolutions).float(), "model", "no recurrent layer"),
        (FedBack, "model", "cannot be carried back step by step: "),
        (lambda: nn.DataParallel(made(cases.CausalTransformer).float()), "model", "no recurrent layer"),
    ],
)
def test_the_choice_and_why(model, of, why):
    chosen = choose_lags(model(), batch())
    assert chosen.of == of
    assert why in chosen.why
    assert bool(chosen.views) == (of == "layers")


@pytest.mark.parametrize(
    ("model", "of"),
    [
        (lambda: InARow(lstm(num_layers=2), width=4), "layers"),
        (lambda: InARow(lstm(bidirectional=True), width=8), "layers"),
        (lambda: InARow(lstm(), nn.Dropout(0.2), lstm(4), width=4), "model"),
        (lambda: InARow(lstm(num_layers=2, bidirectional=True), width=8), "model"),
        (lambda: InARow(lstm(), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), width=4), "model"),
        (CellsInARow, "model"),
    ],
)
def test_steps_within_one_of_several_layers_are_no_lags_of_the_model(model, of):
    chosen = choose_lags(model(), batch())
    assert chosen.of == of
    assert ('lags_of="layers" shows those' in chosen.why) == (of == "model")
    assert choose_lags(model(), batch(), of_layers=True).of == "layers"


@pytest.mark.parametrize("seed", [0, 41])
def test_of_layers_in_a_row_only_the_true_lag_is_named(seed):
    """The data were said to depend on lags 1, 2, 3, 4 and 5."""
    torch.manual_seed(seed)
    model, x, y = InARow(lstm(), lstm(4), width=4), torch.randn(300, 24, INPUT), 0.7 * torch.randn(300, 24, 1)
    y[:, 5:] += x[:, :-5, :1]
    lags = [0, 1, 2, 3, 4, 5, 6, 8, 12]
    diagnosis = lagreach.diagnose(model, (x, y), lags=lags)
    assert diagnosis.settings["lags_of"] == "model"
    assert diagnosis.layers[0].window.dependences == (5,)
    by_layer = lagreach.diagnose(model, (x, y), lags=[0, 5], params="all")  # which a whole model does not have
    assert [layer.local for layer in by_layer.layers] == [True, True]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_stacks_of_gated_linear_layers_get_lags_of_the_whole_model():
    pytest.importorskip("transformers")
    tokens = torch.randint(0, cases.TOKENS, (3, 8))
    sample = Batch(tokens, tokens)
    two = choose_lags(cases.hugging_face("MambaForCausalLM").float(), sample)
    assert two.of == "model"
    assert "2 recurrent layers" in two.why
    one = choose_lags(cases.hugging_face("MambaForCausalLM", num_hidden_layers=1).float(), sample)
    assert one.of == "layers"
    assert choose_lags(cases.hugging_face("MambaForCausalLM").float(), sample, lags_of="layers").of == "layers"
    assert choose_lags(cases.hugging_face("GPT2LMHeadModel").float(), sample).of == "model"


def test_asking_for_one_or_the_other():
    recurrent = made(cases.Recurrent).float()
    assert choose_lags(recurrent, batch(), lags_of="model").of == "model"
    assert choose_lags(recurrent, batch(), inputs="layer").of == "model"
    with pytest.raises(UnsupportedError, match="no recurrent layer"):
        choose_lags(made(cases.CausalTransformer).float(), batch(), lags_of="layers")
    with pytest.raises(InputError, match="unknown choice of lags"):
        choose_lags(recurrent, batch(), lags_of="neither")
    with pytest.raises(InputError, match="inputs= names"):
        choose_lags(recurrent, batch(), lags_of="layers", inputs="layer")
    with pytest.raises(InputError, match="run as they are"):
        choose_lags(recurrent, batch(), lags_of="model", cell={"layer": DiagGate()})
