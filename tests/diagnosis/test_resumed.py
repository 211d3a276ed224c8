"""A measurement of a whole model goes on where it stopped, and gives what it would have given at once."""

import numpy as np
import pytest
import torch

import lagreach
from lagreach.data.sequences import as_sequences
from lagreach.diagnosis.resumed import Resumed, described, digest, plain, read, rebuilt, write
from lagreach.errors import UnsupportedError
from lagreach.whole_model.measurement_plan import plan_model_measurement
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, made

LAG = 2


def numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 8, cases.INPUT, generator=generator)
    return x, x.roll(LAG, 1)[..., :1] + 0.3 * torch.randn(48, 8, 1, generator=generator)


def words(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, TOKENS, (48, 8), generator=generator)
    return x, x.roll(LAG, 1)


KINDS = {
    "numbers": (lambda: made(cases.Interrupting).float(), numbers, "mse"),
    "tokens": (lambda: made(cases.Interrupting, tokens=TOKENS, outputs=TOKENS).float(), words, "cross_entropy"),
}


def measured(model, data, loss, folder=None, **more):
    options = {} if folder is None else {"measure": Resumed(folder)}
    model.runs = 0
    return lagreach.diagnose(model, data, loss, [0, 1, LAG], **options, **more)


def same(one, other):
    one, other = one.layers[0].window, other.layers[0].window
    np.testing.assert_allclose(one.noise, other.noise, rtol=1e-5)
    np.testing.assert_allclose(one.delta, other.delta, rtol=1e-4, atol=1e-12)
    assert one.adjusted_p.tolist() == other.adjusted_p.tolist()
    assert one.dependences == other.dependences


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_finished_blocks_are_not_measured_again(kind, tmp_path):
    build, draw, loss = KINDS[kind]
    model, data = build(), draw()
    whole = measured(model, data, loss)
    first = measured(model, data, loss, tmp_path)
    same(first, whole)
    needed = model.runs
    again = measured(model, data, loss, tmp_path)
    same(again, whole)
    set_up_and_gain = model.runs
    assert set_up_and_gain < needed - 8
    for path in list(tmp_path.glob("noise-*"))[:1]:
        path.write_bytes(path.read_bytes()[:100])  # half a file is measured again
    same(measured(model, data, loss, tmp_path), whole)
    assert set_up_and_gain < model.runs < needed


@pytest.mark.thorough
def test_an_interrupt_loses_nothing_that_was_finished(tmp_path):
    build, draw, loss = KINDS["numbers"]
    model, data = build(), draw()
    whole = measured(model, data, loss, tmp_path / "whole")
    needed = model.runs
    model.stop = needed - 1  # in the last pass; the gain takes one run
    cut = measured(model, data, loss, tmp_path / "cut")
    assert cut.partial
    model.stop = None
    same(measured(model, data, loss, tmp_path / "cut"), whole)
    assert model.runs < needed


@pytest.mark.thorough
def test_other_weights_data_and_settings_are_measured_anew(tmp_path):
    build, draw, loss = KINDS["numbers"]
    model, data = build(), draw()
    measured(model, data, loss, tmp_path)
    files = len(list(tmp_path.iterdir()))
    measured(model, data, loss, tmp_path, seed=1)
    assert len(list(tmp_path.iterdir())) > files
    files = len(list(tmp_path.iterdir()))
    with torch.no_grad():
        model.readout.weight.mul_(1.01)
    same(measured(model, data, loss, tmp_path), measured(model, data, loss))
    assert len(list(tmp_path.iterdir())) > files
    same(measured(model, numbers(1), loss, tmp_path), measured(model, numbers(1), loss))


def test_what_a_measurement_is_of_holds_nothing_of_this_process():
    build, draw, loss = KINDS["tokens"]
    plan = plan_model_measurement(build(), as_sequences(draw()), loss, [0, LAG], blocks=8, probes=1, seed=0)
    assert " at 0x" not in repr(described(plan))
    assert digest(described(plan)) == digest(described(plan))


def test_a_loss_of_ones_own_cannot_be_resumed(tmp_path):
    model, data = KINDS["numbers"][0](), numbers()
    with pytest.raises(UnsupportedError, match="cannot be recognised"):
        measured(model, data, lambda output, y, mask: (output - y).square().mean((1, 2)), tmp_path)


@pytest.mark.thorough
def test_recurrent_layers_are_measured_as_ever(tmp_path):
    model = made(cases.Recurrent).float()
    diagnosis = lagreach.diagnose(model, numbers(), lags=[0, LAG], measure=Resumed(tmp_path))
    same(diagnosis, lagreach.diagnose(model, numbers(), lags=[0, LAG]))
    assert list(tmp_path.iterdir()) == []


def test_files_hold_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"format": 1, "part": Evil()}, tmp_path / "evil.pt")
    assert read(tmp_path / "evil.pt") is None
    assert read(tmp_path / "missing.pt") is None
    write(tmp_path / "whole.pt", (np.arange(3), None, [1.5, "a"], torch.ones(2)))
    array, nothing, listed, tensor = read(tmp_path / "whole.pt")
    assert array.tolist() == [0, 1, 2]
    assert nothing is None
    assert listed == [1.5, "a"]
    assert torch.equal(tensor, torch.ones(2))
    assert rebuilt(plain(3)) == 3
