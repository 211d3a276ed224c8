"""Every Triton kernel compiles for an NVIDIA GPU, without one: the interpreter runs what the compiler may refuse."""

from dataclasses import replace

import pytest
import torch

from lagreach.kernels.gpu.function import _options
from lagreach.kernels.gpu.plan import FAMILIES, MOST_REGISTERS, Plan, Shape

pytest.importorskip("triton")
pytestmark = pytest.mark.thorough

CELLS = ["const_gate", "diag_gate", "gru", "torch_gru", "lstm", "diag_elman"]  # one for each of the kernels
SHAPES = {"usual": Shape(), "units_first": Shape(units_first=True), "alone": Shape(alone=True)}
REGISTERS, SHARED = 1 << 16, 227 << 10  # of a multiprocessor of an H100 or H200; bytes of shared memory for a program


def compiled(cell: str, shape: Shape, kernel: str, *, hidden: int, layernorm: bool):
    """A kernel for compute capability 9.0, and its options."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    plan = Plan(FAMILIES[cell], layernorm, 0.5, "float32", shape=shape)
    x = torch.empty(1, 16, 2, 3)
    tile = plan.tile(x, torch.empty(1, hidden, hidden))
    options = _options(plan, tile, x)
    function = getattr(plan.family.kernels(units_first=tile.units_first), kernel)
    constants = {"K": replace(options.pop("K"), PTX=True)}
    halves = constants["K"].PRECISION == "float32" and plan.family.dense
    types = {"K": "constexpr", "B": "i32", "T": "i32", "fixed": "fp32", "weights": "*fp16" if halves else "*fp32"}
    signature = {name: types.get(name, "*fp32") for name in function.arg_names}
    launch = {name: options[name] for name in options if name not in types}
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(ASTSource(function, signature, constants, {}), target=target, options=launch), tile, launch


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("hidden", "layernorm"), [(20, True), (64, False)])
def test_every_kernel_compiles(cell, shape, hidden, layernorm):
    if not FAMILIES[cell].dense and (shape != "usual" or layernorm):
        pytest.skip("it has no such kernels")
    kernels = ("forward", "backward", "tangent") if shape == "usual" else ("forward", "backward")
    for kernel in kernels:
        made, _, _ = compiled(cell, SHAPES[shape], kernel, hidden=hidden, layernorm=layernorm)
        assert ".target sm_90" in made.asm["ptx"]
        assert made.metadata.shared <= SHARED


@pytest.mark.parametrize(("cell", "hidden"), [("lstm", 64), ("diag_gate", 128), ("const_gate", 128)])
def test_a_sequence_alone_fits_a_multiprocessor(cell, hidden):
    """Its threads may have all registers they ask for, or the launch would be refused."""
    made, tile, launch = compiled(cell, SHAPES["alone"], "backward", hidden=hidden, layernorm=False)
    assert tile.alone
    assert launch["maxnreg"] == MOST_REGISTERS
    assert 32 * tile.warps * MOST_REGISTERS <= REGISTERS
    assert f".maxnreg {MOST_REGISTERS}" in made.asm["ptx"]
