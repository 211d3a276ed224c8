"""Where a network stands, and the command line: what they print, and what they refuse."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lagreach import GatedRNN
from lagreach.cli.convergence import app
from lagreach.errors import InputError, UnsupportedError
from lagreach.papers.cayci import bounds, standing, symmetric_init
from lagreach.papers.cayci.lags import lag_parts
from lagreach.transport.first_order import effective_rates
from tests.papers.cayci.cases import some_weights, unit_inputs

RUNNER = CliRunner()


@pytest.fixture
def model(generator):
    return GatedRNN("diag_elman", 3, 12, 1, gate_init=0.2, generator=generator, dtype=torch.float64)


def test_numbers_of_a_model(model, generator):
    x = unit_inputs(6, 10, 3, generator)
    position = standing(model, x, nu=(0.3, 0.4), error=0.05)
    assert (position.m, position.T, position.d, position.n) == (12, 10, 3, 6)
    assert position.gain == pytest.approx(0.8)
    assert position.x_bound == pytest.approx(1.0)
    assert position.mu == pytest.approx(bounds.mu0(0.8, 10) * bounds.mu1(0.8, 10))
    assert pytest.approx(bounds.certified("tanh", 0.8, 10).L) == position.constants.L
    asked = {"error": 0.05, "alpha": 0.8, "T": 10, "n": 6, "nu": (0.3, 0.4)}
    assert position.projected.m == pytest.approx(bounds.theorem1_requirement("tanh", **asked).m, rel=1e-9)
    assert position.plain.m == pytest.approx(bounds.theorem2("tanh", **asked).m, rel=1e-9)
    assert not position.certified
    for word in ("below the cut-off", "given", "sufficient, never necessary"):
        assert word in str(position)
    json.dumps(position.to_dict(), allow_nan=False)


def test_retention_is_that_of_the_effective_rates(model, generator):
    x = unit_inputs(6, 10, 3, generator)
    position = standing(model, x)
    rates = effective_rates(model, x, [1, 4, 9])
    np.testing.assert_allclose(position.retention[[1, 4, 9]], rates.envelope / 12, rtol=1e-6)


def test_the_sharpness_is_the_one_of_the_model(model, generator):
    """Largest eigenvalue of the kernel of the model's own output, with its own readout."""
    x = unit_inputs(4, 5, 3, generator)
    names = ["layers.0.u_h", "layers.0.W_h"]
    params = dict(model.named_parameters())
    rows = []
    for j in range(4):
        for t in range(5):
            grads = torch.autograd.grad(model(x)[j, t, 0], [params[name] for name in names])
            rows.append(torch.cat([g.flatten() for g in grads]))
    J = torch.stack(rows)
    assert standing(model, x).sharpness == pytest.approx(float(torch.linalg.eigvalsh(J @ J.T)[-1]) / 4, rel=1e-10)


def test_a_bias_counts_as_a_constant_input(model, generator):
    x = unit_inputs(4, 5, 3, generator)
    with torch.no_grad():
        model.layers[0]["b_h"].fill_(0.1)
    position = standing(model, x)
    assert position.d == 4
    assert position.x_bound == pytest.approx(2**0.5)


def test_norms_from_targets(generator):
    model = GatedRNN("diag_elman", 2, 64, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    x = unit_inputs(8, 6, 2, generator)
    y = 0.1 * x[..., :1]
    position = standing(model, x, y)
    assert "estimated from 8 sequences" in position.nu_from
    assert position.error == pytest.approx(0.1 * float(y.square().sum()) / 8)
    assert 0 < position.nu[1] < 10
    long = unit_inputs(1, 40, 2, generator)
    noise = torch.randn(1, 40, generator=generator, dtype=torch.float64)
    narrow = GatedRNN("diag_elman", 2, 2, 1, gate_init=0.5, generator=generator, dtype=torch.float64)
    assert "cannot explain" in standing(narrow, long, noise).nu_from


def test_above_the_cut_off_it_is_honest(generator):
    weights = symmetric_init(8, 2, 3.0, generator)
    position = standing(weights, unit_inputs(2, 800, 2, generator))
    assert position.above == 1.0
    assert "the bound is exp(T): vacuous" in position.verdict
    assert "vacuous: exp(T)" in str(position)
    json.dumps(position.to_dict(), allow_nan=False)


def test_a_single_step_and_other_activations(generator):
    position = standing(symmetric_init(8, 2, 3.0, generator), unit_inputs(2, 1, 2, generator), activation="logistic")
    assert np.isnan(position.typical_gain)
    assert position.gain == pytest.approx(0.75)
    assert "logistic" in str(position)
    wide = standing(
        symmetric_init(1 << 14, 1, 0.1, generator), unit_inputs(1, 1, 1, generator), nu=(0.1, 0.1), error=1.0
    )
    assert wide.certified
    assert "enough for the certificate" in wide.verdict


def test_the_envelope_of_weights(generator):
    weights, x = some_weights(5, 2, generator), unit_inputs(3, 6, 2, generator)
    parts = lag_parts(weights, x, torch.zeros(3, 6, dtype=torch.float64))
    np.testing.assert_allclose(standing(weights, x).retention, parts.transport)


@pytest.mark.usefixtures("_as_users_run_it")
def test_what_it_refuses(model, generator):
    x = unit_inputs(2, 4, 3, generator)
    with pytest.raises(UnsupportedError, match="diagonal Elman"):
        standing(GatedRNN("diag_gate", 3, 4, 1), x)
    with pytest.raises(UnsupportedError, match="one layer"):
        standing(GatedRNN("diag_elman", 3, 4, 1, num_layers=2), x)
    with pytest.raises(UnsupportedError, match="Linear"):
        standing(torch.nn.Linear(3, 1), x)
    with pytest.raises(InputError, match="all zero"):
        standing(model, 0 * x)
    with pytest.raises(InputError, match="one target number per step"):
        standing(model, x, x)


def run(*arguments):
    return RUNNER.invoke(app, arguments)


ASKED = ["--alpha", "0.3", "--steps", "10", "--samples", "100"]


def test_the_command_prints_the_bounds():
    done = run("bounds", "--width", "4096", *ASKED, "--error", "0.1", "--form", "both")
    assert done.exit_code == 0
    for word in ("Theorem 1 (corrected)", "Theorem 1 (printed)", "Corollary 1", "Theorem 2", "not certified"):
        assert word in done.stdout


def test_the_command_writes_json():
    done = run("bounds", "--width", "1000000", *ASKED, "--error", "5", "--json")
    printed = json.loads(done.stdout)
    wanted = bounds.theorem1("tanh", alpha=0.3, m=10**6, T=10, n=100, tau=1000, nu=(0.5, 1.0))
    assert printed["bounds"][0]["value"] == pytest.approx(wanted.value)
    assert printed["bounds"][0]["terms"] == pytest.approx(dict(wanted.terms))
    assert all(need["enough"] for need in printed["required"])
    printed = json.loads(run("plan", "--error", "0.1", *ASKED, "--json").stdout)
    assert [(need["name"], need["form"]) for need in printed] == [
        ("Theorem 1", "corrected"), ("Theorem 2", "corrected"), ("Theorem 1", "printed"), ("Theorem 2", "printed"),
    ]  # fmt: skip
    assert printed[1]["m"] == bounds.theorem2("tanh", error=0.1, alpha=0.3, T=10, n=100, nu=(0.5, 1.0)).m


def test_the_command_writes_null_for_what_is_infinite():
    done = run("plan", "--error", "0.1", "--alpha", "2", "--steps", "3000", "--samples", "10", "--json")
    assert all(need["m"] is None and need["vacuous"] for need in json.loads(done.stdout))


def test_the_command_plans():
    done = run("plan", "--error", "0.1", *ASKED, "--form", "corrected", "--rho-w", "1", "--rho-u", "2")
    assert done.exit_code == 0
    assert "Theorem 2 (corrected)" in done.stdout
    assert "printed" not in done.stdout
    assert "never necessary" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bounds", "--width", "7", *ASKED], "even width"),
        (["bounds", "--width", "8", *ASKED, "--rho-w", "0.1"], "leave room"),
        (["plan", "--error", "0.1", *ASKED, "--form", "guessed"], "unknown form"),
        (["plan", "--error", "-1", *ASKED], "error must be positive"),
    ],
)
def test_the_command_refuses(arguments, said):
    done = run(*arguments)
    assert isinstance(done.exception, InputError)  # `lagreach` prints it and exits with 2
    assert said in str(done.exception)


def test_it_is_a_command_of_lagreach():
    code = "from lagreach.cli.main import run; run()"
    arguments = ["convergence", "bounds", "--width", "7", *ASKED]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "even width" in done.stderr
