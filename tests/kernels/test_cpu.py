"""The compiled CPU kernels against the plain loop: values, gradients, tangents, and what should not go wrong."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lagreach import GatedRNN, all_cells
from lagreach._util import buffers
from lagreach._util.autodiff import directional_derivative
from lagreach._util.threads import one_thread
from lagreach.cells.stack import Stack
from lagreach.errors import UnsupportedError
from lagreach.kernels import choose, cpu, scan, scan_output, scan_readout, scan_stack, scan_tangent
from lagreach.kernels.cpu import passes
from lagreach.kernels.packing import BLOCKS
from lagreach.kernels.reference import reference
from tests import cases
from tests.cases import TOLERANCE

FUSED = [cell.name for cell in BLOCKS]  # the others have no loop that is worth compiling
CELLS = [name for name in cases.CELLS if name in FUSED]
VARIANTS = [variant for variant in cases.VARIANTS if variant[0] in FUSED]
CLOSE = {torch.float64: {"rtol": 1e-10, "atol": 1e-11}, torch.float32: {"rtol": 2e-4, "atol": 2e-5}}


def build(name, layernorm=False):
    return all_cells()[name](**({"layernorm": True} if layernorm else {}))


def draw(cell, sizes, dtype, seed=0):
    """Inputs, initial states and weights for (replica, seq, time, input, hidden)."""
    replica, seq, time, width, hidden = sizes
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    params = {k: 0.5 * normal(replica, *shape) for k, shape in cell.shapes(width, hidden).items()}
    return normal(replica, seq, time, width), 0.5 * normal(replica, seq, cell.state_size(hidden)), params


def with_gradients(run, cell, x, s0, params, cotangent=None):
    """States, and gradients of their product with a fixed cotangent with respect to everything."""
    leaves = [v.clone().requires_grad_() for v in (x, s0, *params.values())]
    states = run(cell, leaves[0], leaves[1], dict(zip(params, leaves[2:], strict=True)))
    if cotangent is None:
        cotangent = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad(states, leaves, cotangent.to(states.dtype))
    return states.detach(), dict(zip(("x", "s0", *params), grads, strict=True))


def fused(cell, x, s0, params):
    return scan(cell, x, s0, params, kernel="numba")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
@settings(max_examples=12, deadline=None)
@given(
    sizes=st.tuples(
        st.integers(1, 3),
        st.integers(1, 9),
        st.integers(1, 7),
        st.integers(1, 6),
        st.sampled_from((1, 2, 3, 4, 7, 16, 33)),
    ),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_the_loop(name, layernorm, dtype, sizes, seed):
    if layernorm and sizes[-1] < 3:
        sizes = (*sizes[:-1], 5)  # over one or two units LayerNorm gives signs: gradients are then rounding errors
    cell = build(name, layernorm)
    x, s0, params = draw(cell, sizes, dtype, seed)
    states, grads = with_gradients(fused, cell, x, s0, params)
    # float32 is compared with the truth rather than with another rounding of it
    exact = with_gradients(reference, cell, x.double(), s0.double(), {k: p.double() for k, p in params.items()})
    torch.testing.assert_close(states, exact[0].to(dtype), **CLOSE[dtype])
    for k, g in grads.items():
        scale = max(1.0, float(exact[1][k].abs().max()))
        torch.testing.assert_close(
            g / scale, (exact[1][k] / scale).to(dtype), msg=lambda m, k=k: f"{k}: {m}", **CLOSE[dtype]
        )


@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_long_sequences_of_many_rows(name, layernorm):
    cell = build(name, layernorm)
    x, s0, params = draw(cell, (1, 70, 60, 3, 20), torch.float64)
    params = {k: 0.5 * p for k, p in params.items()}
    states, grads = with_gradients(fused, cell, x, s0, params)
    expected, expected_grads = with_gradients(reference, cell, x, s0, params)
    torch.testing.assert_close(states, expected, **TOLERANCE[torch.float64])
    for k in grads:
        torch.testing.assert_close(grads[k], expected_grads[k], rtol=1e-9, atol=1e-9)


def read_in_the_same_pass(cell, x, s0, params):
    own = {name: p for name, p in params.items() if name not in ("read", "offset")}
    stack = Stack((cell,), params["read"].shape[-1], ({name: name for name in own},))
    outputs = scan_readout(stack, x, s0, own, params["read"], params["offset"], kernel="numba")
    assert outputs is not None
    return outputs


def read_afterwards(cell, x, s0, params):
    own = {name: p for name, p in params.items() if name not in ("read", "offset")}
    h = cell.output(reference(cell, x, s0, own))
    return h @ params["read"].mT[:, None] + params["offset"][:, None, None]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_a_readout_in_the_same_pass_is_that_of_the_loop(name, layernorm, dtype, outputs):
    """Two models of 40 sequences, in two blocks of rows; gradients of everything, and through them once more."""
    cell, generator = build(name, layernorm), torch.Generator().manual_seed(5)
    x, s0, params = draw(cell, (2, 40, 9, 3, 7), torch.float64)
    shapes = {"read": (2, outputs, 7), "offset": (2, outputs)}
    params |= {k: torch.randn(shape, generator=generator, dtype=torch.float64) for k, shape in shapes.items()}
    here = [v.to(dtype) for v in (x, s0)], {k: p.to(dtype) for k, p in params.items()}
    found, gradients = with_gradients(read_in_the_same_pass, cell, *here[0], here[1])
    expected, expected_gradients = with_gradients(read_afterwards, cell, x, s0, params)
    torch.testing.assert_close(found, expected.to(dtype), **CLOSE[dtype])
    for k, g in gradients.items():
        scale = max(1.0, float(expected_gradients[k].abs().max()))
        torch.testing.assert_close(g / scale, (expected_gradients[k] / scale).to(dtype), **CLOSE[dtype])
    with torch.no_grad():
        torch.testing.assert_close(read_in_the_same_pass(cell, *here[0], here[1]), found, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lstm", "const_gate"])
def test_a_readout_in_the_same_pass_can_be_differentiated_again(name):
    cell = build(name)
    x, s0, params = draw(cell, (1, 2, 3, 2, 3), torch.float64)
    params |= {"read": torch.ones(1, 2, 3).double(), "offset": torch.ones(1, 2).double()}
    leaves = [v.requires_grad_() for v in (x, s0, *params.values())]

    def run(*values):
        return read_in_the_same_pass(cell, *values[:2], dict(zip(params, values[2:], strict=True)))

    assert torch.autograd.gradgradcheck(run, leaves)


def test_a_readout_that_somebody_watches_or_changed_is_called():
    model = GatedRNN("diag_gate", 2, 3, 1, generator=torch.Generator().manual_seed(0))
    x, seen = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(1)), []
    plain = model(x)
    handle = model.readout.register_forward_hook(lambda *_: seen.append("hook"))
    torch.testing.assert_close(model(x), plain)
    assert seen == ["hook"]
    handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append("everywhere"))
    model(x)
    handle.remove()
    assert "everywhere" in seen

    class Bounded(torch.nn.Linear):
        def forward(self, states):
            return super().forward(states).tanh()

    model.readout.__class__ = Bounded
    torch.testing.assert_close(model(x), plain.tanh())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("name", "layernorm"), VARIANTS)
def test_tangents_are_directional_derivatives(name, layernorm, dtype):
    cell = build(name, layernorm)
    x, s0, params = (v for v in draw(cell, (1, 5, 9, 3, 6), torch.float64))
    x, s0, params = x[0], s0[0], {k: p[0] for k, p in params.items()}
    direction = {
        k: torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype) for k, p in params.items()
    }
    expected = directional_derivative(lambda p: reference(cell, x, s0, p), params, direction)
    stack = Stack((cell,), 6, ({k: k for k in params},))
    tangent = scan_tangent(
        stack,
        x.to(dtype),
        s0.to(dtype),
        {k: p.to(dtype) for k, p in params.items()},
        {k: p.to(dtype) for k, p in direction.items()},
        kernel="numba",
    )
    scale = expected.abs().max()
    torch.testing.assert_close(tangent / scale.to(dtype), (expected / scale).to(dtype), **CLOSE[dtype])


def test_tangents_of_a_stack():
    model = GatedRNN("gru", 3, 4, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    params = {k: p.detach() for k, p in model.recurrent_params().items()}
    x, s0 = torch.randn(2, 5, 3, dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)
    direction = {k: torch.ones_like(p) for k, p in params.items()}
    expected = directional_derivative(lambda p: reference(model.stack, x, s0, p), params, direction)
    torch.testing.assert_close(scan_tangent(model.stack, x, s0, params, direction), expected)


@pytest.mark.parametrize("name", CELLS)
def test_a_loss_on_the_last_step_or_on_one_block_only(name):
    cell = build(name)
    x, s0, params = draw(cell, (2, 3, 6, 2, 5), torch.float64)
    for part in (lambda s: s[..., -1:, :], lambda s: s[..., :1], lambda s: s[..., -1:]):
        runs = [
            with_gradients(lambda *a, run=run, part=part: part(run(*a)), cell, x, s0, params)[1]
            for run in (fused, reference)
        ]
        for k in runs[0]:
            torch.testing.assert_close(runs[0][k], runs[1][k], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_can_be_differentiated_again(name):
    cell = build(name)
    x, s0, params = draw(cell, (1, 2, 4, 2, 3), torch.float64)

    def penalty(run):
        leaves = {k: p.clone().requires_grad_() for k, p in params.items()}
        grads = torch.autograd.grad(run(cell, x, s0, leaves).square().sum(), list(leaves.values()), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), list(leaves.values()))

    for ours, expected in zip(penalty(fused), penalty(reference), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", CELLS)
def test_nan_and_infinity_go_where_they_go_in_the_loop(name, bad, dtype):
    cell = build(name)
    x, s0, params = draw(cell, (1, 6, 5, 2, 7), dtype)
    spoilt = x.clone()
    spoilt[0, 1, 2, 0] = bad
    states, expected = fused(cell, spoilt, s0, params), reference(cell, spoilt, s0, params)
    torch.testing.assert_close(states, expected, equal_nan=True, **CLOSE[dtype])
    assert states[0, 1, 2:].isnan().any() == np.isnan(bad)
    assert states[0, 2:].isfinite().all()
    # A gate that is shut altogether is 0 in the loop and 1e-38 in the kernel. Times infinity one gives NaN, the other
    # infinity: neither passes for a number.
    s0[0, 4, 0] = bad
    states, expected = fused(cell, x, s0, params), reference(cell, x, s0, params)
    assert states.isfinite().all(-1).equal(expected.isfinite().all(-1))


@pytest.mark.parametrize("name", ["diag_gate", "shared_gate", "gru", "torch_gru", "lstm"])
@pytest.mark.parametrize("share", [1e-4, 1e-6])
def test_nearly_shut_gates_keep_their_relative_accuracy(name, share):
    """From a zero state, what a nearly shut gate lets in is all there is: float32 must get it right to 1e-5."""
    cell = build(name)
    x, s0, params = draw(cell, (1, 8, 20, 3, 32), torch.float64)
    params = {k: 0.1 * p for k, p in params.items()}
    bias, sign = cell.retention_bias
    params[bias] = params[bias] * 0 - sign * float(np.log(share / (1 - share)))
    if name == "lstm":
        params["b_i"] = params["b_i"] * 0 + float(np.log(share / (1 - share)))
    exact = reference(cell, x.float().double(), s0 * 0, {k: p.float().double() for k, p in params.items()})
    states = fused(cell, x.float(), s0.float() * 0, {k: p.float() for k, p in params.items()})
    error = (states.double() - exact).abs()
    assert error.max() < 1e-5 * exact.abs().mean()
    assert torch.linalg.norm(error) < 1e-6 * torch.linalg.norm(exact)


def test_saturated_gates_do_not_overflow():
    cell = build("lstm")
    x, s0, params = draw(cell, (1, 3, 9, 2, 5), torch.float32)
    for huge in (60.0, 200.0, 1e30):
        params["b_f"], params["b_i"] = params["b_f"] * 0 + huge, params["b_i"] * 0 - huge
        states, grads = with_gradients(fused, cell, x, s0, params)
        expected, expected_grads = with_gradients(reference, cell, x, s0, params)
        torch.testing.assert_close(states, expected, **CLOSE[torch.float32])
        for k in grads:
            torch.testing.assert_close(grads[k], expected_grads[k], **CLOSE[torch.float32])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CELLS)
def test_the_number_of_threads_does_not_matter(name, monkeypatch):
    monkeypatch.setattr("lagreach.kernels.cpu.passes.WORTH_THREADS", 0)
    cell = build(name)
    x, s0, params = draw(cell, (2, 300, 8, 3, 9), torch.float32)
    before = torch.get_num_threads()
    with one_thread():
        alone = with_gradients(fused, cell, x, s0, params)
        torch.set_num_threads(3)
        together = with_gradients(fused, cell, x, s0, params)
    assert torch.get_num_threads() == before
    assert alone[0].equal(together[0])
    for k in alone[1]:
        assert alone[1][k].equal(together[1][k]), k


def test_rows_do_not_depend_on_their_neighbours():
    cell = build("lstm")
    x, s0, params = draw(cell, (1, 40, 8, 3, 9), torch.float64)
    whole = fused(cell, x, s0, params)
    torch.testing.assert_close(fused(cell, x[:, 30:37], s0[:, 30:37], params), whole[:, 30:37], rtol=1e-13, atol=1e-14)


def test_changing_the_states_in_place_is_noticed():
    cell = build("diag_gate")
    x, s0, params = draw(cell, (1, 2, 3, 2, 3), torch.float64)
    params["U_h"].requires_grad_()
    states = fused(cell, x, s0, params)
    states.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize("name", CELLS)
def test_a_model_gives_the_same_with_every_kernel(name):
    model = GatedRNN(name, 3, 5, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert model.kernel == "auto"
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    results = []
    for kernel in ("numba", "reference"):
        model.kernel = kernel
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        results.append((y, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)
    assert results[0][0].is_contiguous()
    assert copy.deepcopy(model).kernel == pickle.loads(pickle.dumps(model)).kernel == "reference"
    assert not any("kernel" in key for key in model.state_dict())


def test_the_output_of_a_stack_is_that_of_its_top_layer():
    model = GatedRNN("lstm", 3, 5, 2, 2, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 4, 6, 3)
    params = {k: torch.stack((p, 2 * p)).detach() for k, p in model.recurrent_params().items()}
    s0 = torch.zeros(2, 4, model.stack.state_size)
    for kernel in ("numba", "reference"):
        expected = model.stack.output(scan_stack(model.stack, x, s0, params, kernel=kernel))
        torch.testing.assert_close(scan_output(model.stack, x, s0, params, kernel=kernel), expected)


def test_memory_is_let_go_after_the_backward_pass():
    buffers.clear()
    model = GatedRNN("lstm", 4, 32, 1, generator=torch.Generator().manual_seed(0))
    loss = model(torch.randn(64, 200, 4)).square().mean()
    loss.backward()
    assert (
        sum(memory.size for memory in buffers._idle) > 64 * 200 * 32 * 4 * 4
    )  # the gates, though the loss still lives
    buffers.clear()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_graph_can_be_kept_and_used_twice():
    model = GatedRNN("diag_gate", 3, 5, 1, generator=torch.Generator().manual_seed(0))
    loss = model(torch.randn(4, 6, 3)).square().mean()
    first, second = (torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_first_use_of_a_kernel_is_announced(monkeypatch):
    said = []
    monkeypatch.setattr(passes, "_ready", {})
    monkeypatch.setattr(passes, "waiting", lambda text: said.append(text) or contextlib.nullcontext())
    model = GatedRNN("diag_gate", 3, 5, 1)
    for _ in range(2):
        model(torch.randn(4, 6, 3)).sum().backward()
    assert said == ["compiling the diag_gate kernel for this machine, once ..."] * 2  # forward, backward


# When the reference loop runs instead


class Twice(all_cells()["elman"]):
    """A user's own step; the kernel of its parent would be wrong."""

    def step(self, x, s, params):
        return 2 * super().step(x, s, params)


def reason(cell, device="cpu", dtype=torch.float32):
    return cpu.missing(cell, torch.device(device), dtype)


def test_cells_dtypes_and_devices_it_cannot_run():
    assert reason(build("lstm")) is None
    assert "cell" in reason(Twice())
    assert "tanh" in reason(all_cells()["diag_elman"]("sine"))
    assert "float32" in reason(build("lstm"), dtype=torch.bfloat16)
    assert "CPU" in reason(build("lstm"), device="meta")
    with pytest.raises(UnsupportedError, match="does not know this cell"):
        choose("numba", Twice(), torch.device("cpu"), torch.float32)
    x, s0, params = draw(Twice(), (1, 2, 3, 2, 3), torch.float64)
    torch.testing.assert_close(scan(Twice(), x, s0, params), reference(Twice(), x, s0, params))


def test_transformations_and_autocast_take_the_reference_loop():
    model = GatedRNN("gru", 2, 3, 1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 4, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in reason(model.cell)
    each = torch.func.vmap(lambda one: model(one[None])[0])(x)
    torch.testing.assert_close(each, model(x))
    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in reason(model.cell)
    assert reason(model.cell) is None


def test_mixed_dtypes_are_refused_as_torch_does():
    model = GatedRNN("gru", 2, 3, 1)
    with pytest.raises(RuntimeError, match="dtype"):
        model(torch.zeros(1, 2, 2, dtype=torch.float64))


def test_without_numba_everything_works_and_says_so_once(monkeypatch):
    cpu.has_numba.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = GatedRNN("gru", 2, 3, 1)
    with pytest.warns(cpu.SlowWarning, match="numba is not installed"):
        model(torch.zeros(1, 2, 2))
    model(torch.zeros(1, 2, 2))  # a second warning would be an error
    with pytest.raises(UnsupportedError, match="numba is not installed"):
        choose("numba", model.cell, torch.device("cpu"), torch.float32)
    cpu.has_numba.cache_clear()
