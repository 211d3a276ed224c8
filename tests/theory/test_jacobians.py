"""The paper's one-step Jacobians, written out as matrices, against autodiff of each cell's step."""

import pytest
import torch
from torch import diag, eye

from lagreach.cells import jacobian_diagonal, make_cell
from tests.cases import TOLERANCE, VARIANTS

EXACT = TOLERANCE[torch.float64]


def at_one_point(name, generator, **options):
    cell = make_cell(name, **options)
    x, s, p = cell.example(generator, sequences=1, time=1)
    return cell, x[0, 0], s[0, 0], p


def slope(gate):
    return diag(gate * (1 - gate))


def test_const_gate_52(generator):
    cell, x, h, p = at_one_point("const_gate", generator, gate_init=0.3)
    g = torch.tanh(p["W_h"] @ x + p["U_h"] @ h + p["b_h"])
    expected = (1 - 0.3) * eye(4, dtype=h.dtype) + 0.3 * diag(1 - g**2) @ p["U_h"]
    torch.testing.assert_close(cell.jacobian(x, h, p), expected, **EXACT)


def test_shared_gate_50(generator):
    cell, x, h, p = at_one_point("shared_gate", generator)
    s = torch.sigmoid(p["W_s"] @ x + p["U_s"] @ h + p["b_s"])
    g = torch.tanh(p["W_h"] @ x + p["U_h"] @ h + p["b_h"])
    rank_one = s * (1 - s) * torch.outer(g - h, p["U_s"][0])
    expected = (1 - s) * eye(4, dtype=h.dtype) + s * diag(1 - g**2) @ p["U_h"] + rank_one
    torch.testing.assert_close(cell.jacobian(x, h, p), expected, **EXACT)


def test_diag_gate_48(generator):
    cell, x, h, p = at_one_point("diag_gate", generator)
    s = torch.sigmoid(p["W_s"] @ x + p["U_s"] @ h + p["b_s"])
    g = torch.tanh(p["W_h"] @ x + p["U_h"] @ h + p["b_h"])
    expected = diag(1 - s) + diag(g - h) @ slope(s) @ p["U_s"] + diag(s) @ diag(1 - g**2) @ p["U_h"]
    torch.testing.assert_close(cell.jacobian(x, h, p), expected, **EXACT)


def test_gru_22(generator):
    cell, x, h, p = at_one_point("gru", generator)
    z = torch.sigmoid(p["W_z"] @ x + p["U_z"] @ h + p["b_z"])
    r = torch.sigmoid(p["W_r"] @ x + p["U_r"] @ h + p["b_r"])
    g = torch.tanh(p["W_h"] @ x + p["U_h"] @ (r * h) + p["b_h"])
    S_g = diag(1 - g**2)
    expected = (
        diag(1 - z)
        + diag(g - h) @ slope(z) @ p["U_z"]
        + diag(z) @ S_g @ p["U_h"] @ diag(r)
        + diag(z) @ S_g @ p["U_h"] @ diag(h) @ slope(r) @ p["U_r"]
    )
    torch.testing.assert_close(cell.jacobian(x, h, p), expected, **EXACT)


def test_gru_bracket_needs_all_of_u_r(generator):
    """Keeping only u_h u_r in the bracket, as the author's scripts do, is not the diagonal."""
    cell, x, h, p = at_one_point("gru", generator)
    z = torch.sigmoid(p["W_z"] @ x + p["U_z"] @ h + p["b_z"])
    r = torch.sigmoid(p["W_r"] @ x + p["U_r"] @ h + p["b_r"])
    g = torch.tanh(p["W_h"] @ x + p["U_h"] @ (r * h) + p["b_h"])
    u_h, u_r, u_z = (p[k].diagonal() for k in ("U_h", "U_r", "U_z"))
    truncated = (g - h) * z * (1 - z) * u_z + z * (1 - g**2) * (u_h * r + u_h * u_r * h * r * (1 - r))
    whole = cell.correction(x, h, p)
    torch.testing.assert_close(cell.retention(x, h, p) + whole, jacobian_diagonal(cell, x, h, p), **EXACT)
    assert (truncated - whole).abs().max() > 1e-3


def test_lstm_11(generator):
    cell, x, s, p = at_one_point("lstm", generator)
    h, c = s.chunk(2)
    i, f, o = (torch.sigmoid(p[f"W_{k}"] @ x + p[f"U_{k}"] @ h + p[f"b_{k}"]) for k in "ifo")
    g = torch.tanh(p["W_g"] @ x + p["U_g"] @ h + p["b_g"])
    c_after = f * c + i * g
    E = diag(o * (1 - torch.tanh(c_after) ** 2))
    C_h = diag(c) @ slope(f) @ p["U_f"] + diag(i) @ diag(1 - g**2) @ p["U_g"] + diag(g) @ slope(i) @ p["U_i"]
    upper = diag(torch.tanh(c_after)) @ slope(o) @ p["U_o"] + E @ C_h
    expected = torch.cat((torch.cat((upper, E @ diag(f)), 1), torch.cat((C_h, diag(f)), 1)))
    torch.testing.assert_close(cell.jacobian(x, s, p), expected, **EXACT)


@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_closed_diagonal_against_autodiff(name, layernorm, generator):
    cell = make_cell(name, layernorm=layernorm or None)
    x, s, p = cell.example(generator, hidden_size=5)
    closed = cell.retention(x, s, p) + cell.correction(x, s, p)
    torch.testing.assert_close(closed, jacobian_diagonal(cell, x, s, p), **EXACT)
    torch.testing.assert_close(closed, cell.jacobian(x, s, p).diagonal(dim1=-2, dim2=-1), **EXACT)


def test_layernorm_jacobian_is_not_a_detail(generator):
    """Dropping LayerNorm's own Jacobian changes the correction by more than a rounding error."""
    cell = make_cell("diag_gate", layernorm=True)
    x, s, p = cell.example(generator, hidden_size=8)
    gate, a = cell._preactivations(x, s, p)
    normed = torch.nn.functional.layer_norm(a, a.shape[-1:], p["ln_gain"], p["ln_shift"])
    dropped = gate * (1 - torch.tanh(normed) ** 2) * p["U_h"].diagonal()
    through_gate = (torch.tanh(normed) - s) * gate * (1 - gate) * p["U_s"].diagonal()
    relative = (dropped + through_gate - cell.correction(x, s, p)).norm() / cell.correction(x, s, p).norm()
    assert relative > 0.1
