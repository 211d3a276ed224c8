"""diagnose() as a user meets it: results, files, budgets, interrupts, and a model left as it was."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lagreach
from lagreach.cells.const_gate import ConstGate
from lagreach.cells.diag_gate import DiagGate
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.errors import InputError, LagreachError, UnsupportedError
from lagreach.gradients import measurement_plan as plan_module
from lagreach.types import Status
from tests.diagnosis.conftest import Net
from tests.reliability.damage import edit_diagnosis, put_record


def test_it_finds_the_planted_lag(diagnosis):
    assert diagnosis.layers[0].window.dependences == (3,)
    assert diagnosis.required.sel(lag=3) < 100
    assert np.isinf(diagnosis.required.sel(lag=8))
    assert diagnosis.required_if_present.sel(lag=5) > diagnosis.required_if_present.sel(lag=1)
    assert diagnosis.window(8000).lag >= 3
    assert diagnosis.window(1e-9).lag is None
    assert diagnosis.limits[8] in (Status.LIMIT_OUT_OF_REACH, Status.LIMIT_NO_DEPENDENCY)
    assert diagnosis.kappa != diagnosis.kappa or diagnosis.kappa >= 2  # NaN: not estimable from 96 sequences


def test_it_says_so_in_words(diagnosis):
    text = str(diagnosis)
    for part in (
        "With 96 sequences",
        "lag 3",
        "limit",
        "first order against exact",
        "gradient noise",
        "N(l) is the number",
    ):
        assert part in text


def test_the_model_is_left_as_it_was(data):
    model = Net()
    model.train()
    model.read.weight.grad = torch.ones_like(model.read.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    noted = lagreach.diagnose(model, data, lags=[0, 3])
    assert any("training mode" in warning for warning in noted.warnings)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.read.weight.grad, torch.ones_like(model.read.weight))
    assert model.lstm.weight_ih_l0.grad is None
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())


def test_hooks_are_gone_after_a_crash(data):
    class Crashes(Net):
        runs = 0

        def forward(self, x):
            output = super().forward(x)
            self.runs += 1
            if self.runs > 8:
                raise KeyboardInterrupt
            return output

    model = Crashes()
    with pytest.raises(KeyboardInterrupt):
        lagreach.diagnose(model, data, lags=[0, 3])
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())
    assert model.training


def test_an_interrupt_keeps_the_finished_blocks(model, data, monkeypatch):
    calls = []
    original = plan_module.MeasurementPlan.pieces

    def pieces(self, blocks):
        calls.append(list(blocks))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, blocks)

    monkeypatch.setattr(plan_module.MeasurementPlan, "pieces", pieces)
    partial = lagreach.diagnose(model, data, lags=[0, 3])
    assert partial.partial
    assert partial.layers[0].window.sequences == 64  # 8 blocks of 8 sequences
    assert any("interrupted" in warning for warning in partial.warnings)
    assert partial.layers[0].window.dependences == (3,)


def test_loaders_give_the_same_answer_as_tensors(model, data, diagnosis):
    loader = DataLoader(TensorDataset(*data), batch_size=7, shuffle=True)
    again = lagreach.diagnose(model, loader, lags=[0, 1, 3, 8], require=[5])
    np.testing.assert_allclose(again.required.values, diagnosis.required.values, rtol=1e-4)
    np.testing.assert_allclose(again.required_if_present.values, diagnosis.required_if_present.values, rtol=1e-4)
    assert again.fingerprint == diagnosis.fingerprint


def test_numpy_arrays_and_dicts(model, data, diagnosis):
    x, y = (part.numpy() for part in data)
    again = lagreach.diagnose(model, {"x": x, "y": y}, lags=[0, 1, 3, 8], require=[5])
    np.testing.assert_array_equal(again.required.values, diagnosis.required.values)


def test_files_round_trip(diagnosis, tmp_path):
    path = tmp_path / "run.nc"
    diagnosis.save(path)
    again = lagreach.load(path)
    assert str(again) == str(diagnosis)
    np.testing.assert_array_equal(again.required.values, diagnosis.required.values)
    assert again.window(500) == diagnosis.window(500)
    dataset = diagnosis.to_xarray()
    assert dict(dataset.sizes) == {"layer": 1, "lag": 5, "unit": 8, "N": 25}
    assert json.loads(dataset.attrs["settings"])["loss"] == "mse"
    import xarray as xr

    with xr.open_dataset(path, engine="h5netcdf") as opened:
        np.testing.assert_array_equal(opened["required"].values, dataset["required"].values)
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_damaged_and_foreign_files_get_a_clear_error(diagnosis, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        lagreach.load(tmp_path / "missing.nc")
    (tmp_path / "text.nc").write_text("not netCDF")
    with pytest.raises(InputError, match="not a diagnosis"):
        lagreach.load(tmp_path / "text.nc")
    diagnosis.save(tmp_path / "run.nc")
    whole = (tmp_path / "run.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        lagreach.load(tmp_path / "cut.nc")
    edit_diagnosis(tmp_path / "run.nc", lambda file: file.attrs.__setitem__("schema_version", 99))
    with pytest.raises(InputError, match="another version"):
        lagreach.load(tmp_path / "run.nc")
    diagnosis.save(tmp_path / "run.nc")
    put_record(tmp_path / "run.nc", json.dumps({"@": "os.system", "fields": {"command": "true"}}))
    with pytest.raises(InputError, match="damaged"):
        lagreach.load(tmp_path / "run.nc")
    with pytest.raises(InputError, match="folder does not exist"):
        diagnosis.save(tmp_path / "nowhere" / "run.nc")


def test_report_is_one_self_contained_page(diagnosis, tmp_path):
    diagnosis.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "With 96 sequences" in page
    assert "src=" not in page.split("<script")[0]
    assert "default-src 'none'" in page  # the browser itself refuses the network
    assert len(page) < 6e6


def test_several_layers_and_directions(data):
    tagger = nn.Sequential(nn.LSTM(2, 4, bidirectional=True, batch_first=True))
    x, _ = data
    diagnosis = lagreach.diagnose(
        tagger, (x, torch.randn(96, 20, 8, generator=torch.Generator().manual_seed(2))), lags=[0, 2]
    )
    assert diagnosis.required.dims == ("layer", "lag")
    assert diagnosis.to_xarray().sizes["layer"] == 2
    assert any("within each layer" in warning for warning in diagnosis.warnings)
    assert diagnosis.layer("0 layer 0 backward").local


def test_settings_that_an_argument_would_overrule_are_refused(model, data, diagnosis):
    with pytest.raises(InputError, match=r"settings.seed=3 and seed=1"):
        lagreach.diagnose(model, data, settings=MeasureSettings(seed=3), seed=1)
    same = lagreach.diagnose(model, data, lags=[0, 1, 3, 8], require=[5], settings=MeasureSettings(seed=3))
    assert same.settings["seed"] == 3
    assert diagnosis.settings["seed"] == 0


def test_an_input_that_is_not_finite_is_named_by_its_number(model, data):
    x, y = data
    spoilt = x.clone()
    spoilt[90, 7, 1] = math.nan
    with pytest.raises(InputError, match=r"nan at index \[90, 7, 1\]"):
        lagreach.diagnose(model, (spoilt, y), lags=[0, 3])


def test_series_are_accepted_with_a_warning(model):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2000, 2, generator=generator)
    y = torch.roll(x[:, :1], 2, dims=0)
    diagnosis = lagreach.diagnose(model, lagreach.cut_series(x, y, length=20), lags=[0, 2, 4])
    assert any("not independent" in warning for warning in diagnosis.warnings)
    assert diagnosis.layers[0].window.dependences == (2,)


@pytest.mark.thorough
def test_correlated_inputs_are_said_to_be(model, data, diagnosis):
    x, y = data
    smooth = x.clone()
    for t in range(1, x.shape[1]):
        smooth[:, t] = 0.8 * smooth[:, t - 1] + 0.6 * x[:, t]
    noted = lagreach.diagnose(model, (smooth, y), lags=[0, 3])
    assert any("correlated in time: dependences are partial" in note for note in noted.layers[0].window.warnings)
    assert not any("correlated" in note for note in diagnosis.layers[0].window.warnings)
    assert not noted.layers[0].window.memory.independent_inputs
    assert diagnosis.layers[0].window.memory.independent_inputs


def test_carried_state(data):
    class Stateful(Net):
        def forward(self, x, state):
            return self.read(self.lstm(x, state)[0])

    x, y = data
    state = tuple(torch.randn(96, 1, 8, generator=torch.Generator().manual_seed(k)) for k in range(2))
    diagnosis = lagreach.diagnose(Stateful(), {"x": x, "y": y, "state": state}, lags=[0, 3])
    assert diagnosis.layers[0].window.dependences == (3,)


@pytest.mark.thorough
def test_autocast_models(data, diagnosis):
    class Half(Net):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    torch.manual_seed(0)
    half = lagreach.diagnose(Half(), data, lags=[0, 1, 3, 8], require=[5])
    assert half.layers[0].window.dependences == (3,)
    np.testing.assert_allclose(half.required_if_present.values, diagnosis.required_if_present.values, rtol=0.05)


def test_functional_form(data):
    def step(x, s, params):
        return 0.8 * s + 0.2 * torch.tanh(x @ params["W"].T)

    generator = torch.Generator().manual_seed(0)
    params = {"W": torch.randn(6, 2, generator=generator)}
    readout = (torch.randn(1, 6, generator=generator), torch.zeros(1))
    diagnosis = lagreach.diagnose_step(
        step, params, data, readout=readout, state_size=6, input_params=lambda name: name == "W", lags=[0, 3, 8]
    )
    assert diagnosis.layers[0].window.dependences == (3,)


class OwnLayer(nn.Module):
    """A user's own recurrent layer: the weights of ConstGate under their own names."""

    def __init__(self, gate=0.2):
        super().__init__()
        self.gate = gate
        self.W_h, self.U_h = nn.Parameter(0.5 * torch.randn(6, 2)), nn.Parameter(0.1 * torch.randn(6, 6))
        self.b_h = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        h, states = torch.zeros(len(x), 6, dtype=x.dtype), []
        for t in range(x.shape[1]):
            h = (1 - self.gate) * h + self.gate * torch.tanh(x[:, t] @ self.W_h.T + h @ self.U_h.T + self.b_h)
            states.append(h)
        return torch.stack(states, 1)


def test_a_layer_described_by_a_cell(data):
    torch.manual_seed(0)
    model = nn.Sequential(OwnLayer(), nn.Linear(6, 1))
    diagnosis = lagreach.diagnose(model, data, lags=[0, 3], cell={"0": ConstGate(gate=0.2)})
    assert diagnosis.layers[0].window.dependences == (3,)
    with pytest.raises(InputError, match="does not compute what ConstGate says"):
        lagreach.diagnose(model, data, lags=[0, 3], cell={"0": ConstGate(gate=0.3)})
    with pytest.raises(InputError, match="weights of 0 are not those of DiagGate"):
        lagreach.diagnose(model, data, lags=[0, 3], cell={"0": DiagGate()})
    with pytest.raises(InputError, match="no such module"):
        lagreach.diagnose(model, data, lags=[0, 3], cell={"layer": ConstGate()})


def test_compare(diagnosis):
    compared = lagreach.compare([diagnosis, diagnosis], ["a", "b"], sequences=1000)
    assert "reach with 1,000 sequences" in str(compared)
    assert compared.to_xarray().sizes["model"] == 2
    with pytest.raises(InputError):
        lagreach.compare([])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"signal": "raw"}, "unknown signal"),
        ({"noise": "none"}, "unknown noise"),
        ({"params": "weights"}, "unknown selection"),
        ({"params": lambda name: False}, "holds no weights"),
        ({"lags": "all"}, "unknown set of lags"),
        ({"lags": [40]}, "lag 40 for T = 20"),
        ({"error": 0.7}, "below one half"),
        ({"loss": "mae"}, "unknown loss"),
        ({"sequences": 0}, "sequences is out of range"),
    ],
)
def test_bad_options(model, data, options, complaint):
    with pytest.raises(LagreachError, match=complaint):
        lagreach.diagnose(model, data, **({"lags": [0, 3]} | options))


@pytest.mark.usefixtures("_as_users_run_it")
def test_what_is_no_number_and_no_model_is_refused_in_words(model, data):
    with pytest.raises(InputError, match="sequences is not a number"):
        lagreach.diagnose(model, data, sequences="5")
    with pytest.raises(InputError, match="memory is not a number"):
        lagreach.cost(model, data, memory="1GB")
    with pytest.raises(InputError, match="no numbers"):
        lagreach.diagnose(model, (data[0], "y"))
    with pytest.raises(InputError, match="not a model"):
        lagreach.diagnose(None, data)


def test_bad_data(model, data):
    x, y = data
    with pytest.raises(InputError, match="too few sequences"):
        lagreach.diagnose(model, (x[:10], y[:10]))
    with pytest.raises(InputError, match="different numbers"):
        lagreach.diagnose(model, (x, y[:10]))
    with pytest.raises(InputError, match="not data"):
        lagreach.diagnose(model, 3)
    bad = x.clone()
    bad[5, 2, 1] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        lagreach.diagnose(model, (bad, y))
    with pytest.raises(UnsupportedError, match="no recurrent layer"):
        lagreach.diagnose(nn.Linear(2, 1), (x, y), lags_of="layers")


@pytest.mark.thorough
def test_a_lag_that_never_varies_has_no_number_and_says_so(generator):
    """The input at the first step is always zero, so nothing can be said about the lag that leads there."""
    x = torch.randn(64, 20, 2, generator=generator)
    x[:, 0] = 0
    y = torch.zeros(64, 20, 1)
    y[:, -1] = x[:, 3:4, 0]
    mask = torch.zeros(64, 20)
    mask[:, -1] = 1
    model = lagreach.GatedRNN("diag_gate", 2, 6, 1, gate_init=0.2, generator=generator)
    for lags in ([19], [16, 19]):
        diagnosis = lagreach.diagnose(model, (x, y, mask), lags=lags)
        planted = diagnosis.layers[0].window.required_if_present().at(19)
        assert np.isnan(planted["sequences"])
        assert planted["status"] is diagnosis.limits[19] is Status.LIMIT_SHARED_INPUT
        assert "> nan" not in str(diagnosis)


@pytest.mark.thorough
def test_a_diagonal_network_is_told_where_it_stands_to_both_theories(generator, tmp_path):
    x = torch.randn(64, 16, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    model = lagreach.GatedRNN("diag_elman", 2, 8, 1, gate_init=0.2, generator=generator)
    diagnosis = lagreach.diagnose(model, (x, y), lags=[1, 3])
    assert diagnosis.convergence is not None
    assert diagnosis.convergence["gain"] == pytest.approx(0.8)
    assert "cut-off" in str(diagnosis)
    diagnosis.save(tmp_path / "d.nc")
    assert lagreach.load(tmp_path / "d.nc").convergence == diagnosis.convergence
    diagnosis.report(tmp_path / "d.html")
    assert "Convergence of gradient descent" in (tmp_path / "d.html").read_text()
    other = lagreach.GatedRNN("diag_gate", 2, 8, 1, generator=generator)
    assert lagreach.diagnose(other, (x, y), lags=[1, 3]).convergence is None
