"""`GatedRNN`: layers of one cell and a linear readout, as an ordinary torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lagreach.cells import Cell, make_cell
from lagreach.cells.activations import Activation
from lagreach.cells.stack import Stack
from lagreach.data.batch import refuse_one_series
from lagreach.errors import InputError
from lagreach.kernels import check_kernel, scan_output, scan_readout, scan_readout_and_output, scan_readout_and_sums
from lagreach.models import torch_layout
from lagreach.models.bare import is_bare
from lagreach.models.initialise import initial_weights


class GatedRNN(nn.Module):
    """A recurrent network that maps (seq, time, input) to (seq, time, output).

    Parameters
    ----------
    cell
        A name (see `lagreach.all_cells`), a `Cell` subclass (also your own) or a finished cell.
    input_size, hidden_size, output_size, num_layers
        Sizes; every layer has the same cell and `hidden_size`.
    gate_init
        s0 in (0, 1): the fraction of the state that is overwritten per step at the start, so retention starts
        at ``1 - s0``. Set by the bias of the update, forget or retention gate; for ``const_gate`` it *is* the
        gate; for ``diag_elman`` the recurrent weights start at ``+-(1 - s0)``.
    forget_bias
        The bias (logit) of retention itself; 1.0 is the usual LSTM advice.
    chrono
        Longest lag to remember: retention times are drawn uniformly up to it (Tallec & Ollivier 2018).
    layernorm
        LayerNorm on the pre-activation of the candidate.
    recurrent_init
        "orthogonal" candidate weights with small gate weights and zero biases (the paper's), or "uniform"
        (torch's ``+-1/sqrt(hidden_size)`` everywhere).
    activation
        For ``diag_elman``: the name of an activation, or an `Activation` with its bounds.
    kernel
        How the time loop runs: "auto" (the fastest that can), "reference", "numba", "triton" or "parallel"; see
        `lagreach.kernels`. Not part of the weights; the attribute `kernel` can be changed at any time.
    generator
        Where the initial weights come from; the global one if None.

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> model = GatedRNN("diag_gate", input_size=4, hidden_size=8, output_size=1, gate_init=0.05, generator=g)
    >>> model(torch.zeros(3, 10, 4)).shape
    torch.Size([3, 10, 1])
    """

    input_size: int
    hidden_size: int
    output_size: int
    num_layers: int
    kernel: str
    start: dict[str, Any]
    stack: Stack
    layers: nn.ModuleList
    readout: nn.Linear

    def __init__(
        self,
        cell: str | type[Cell] | Cell,
        input_size: int,
        hidden_size: int,
        output_size: int,
        num_layers: int = 1,
        *,
        gate_init: float | None = None,
        forget_bias: float | None = None,
        chrono: int | None = None,
        layernorm: bool = False,
        recurrent_init: str = "orthogonal",
        activation: str | Activation | None = None,
        kernel: str = "auto",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "output_size": output_size}
        for what, size in {**sizes, "num_layers": num_layers}.items():
            if not isinstance(size, int) or size < 1:
                raise InputError(f"{what} must be a positive integer", got=size)
        built = make_cell(cell, layernorm=layernorm or None, activation=activation, gate_init=gate_init)
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size
        self.num_layers, self.kernel = num_layers, check_kernel(kernel)
        # what it was started with, for those who build another of another size
        options: dict[str, Any] = {
            "gate_init": gate_init,
            "forget_bias": forget_bias,
            "chrono": chrono,
            "layernorm": layernorm or None,
        }
        options |= {
            "activation": activation,
            "recurrent_init": None if recurrent_init == "orthogonal" else recurrent_init,
        }
        self.start = {name: value for name, value in options.items() if value is not None}
        names = [{short: f"layers.{k}.{short}" for short in built.shapes(1, hidden_size)} for k in range(num_layers)]
        self.stack = Stack((built,) * num_layers, hidden_size, tuple(names))
        widths = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            nn.ParameterDict(
                initial_weights(
                    built,
                    width,
                    hidden_size,
                    recurrent_init=recurrent_init,
                    gate_init=gate_init,
                    forget_bias=forget_bias,
                    chrono=chrono,
                    generator=generator,
                    dtype=dtype,
                )
            )
            for width in widths
        )
        # skip_init: the constructor of nn.Linear would draw from the global generator
        self.readout = nn.utils.skip_init(nn.Linear, hidden_size, output_size, device="cpu", dtype=dtype)
        with torch.no_grad():
            self.readout.weight.uniform_(-(hidden_size**-0.5), hidden_size**-0.5, generator=generator)
            self.readout.bias.zero_()
        self.to(device)

    @property
    def cell(self) -> Cell:
        """The cell of every layer."""
        return self.stack.cells[0]

    def recurrent_params(self) -> dict[str, Tensor]:
        """Weights of the layers, by their names in `named_parameters`."""
        return {f"layers.{k}.{name}": p for k, layer in enumerate(self.layers) for name, p in layer.named_parameters()}

    def initial_state(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq state"]:
        """Zeros, for as many sequences as `x` has."""
        weight = self.readout.weight
        return torch.zeros(x.shape[0], self.stack.state_size, dtype=weight.dtype, device=weight.device)

    def forward(self, x: Float[Tensor, "seq time input"]) -> Float[Tensor, "seq time output"]:
        """Run the network from a zero state."""
        refuse_one_series(x, "the network", self.input_size)
        if x.ndim != 3 or x.shape[-1] != self.input_size or x.shape[1] == 0:
            raise InputError(
                "the input does not fit the network",
                got=f"shape {tuple(x.shape)}",
                expected=f"(seq, time, {self.input_size}) with at least one time step",
                fix="check input_size and the order of the axes (sequences first)",
            )
        run = self._run(x)
        if is_bare(self.readout):
            read = scan_readout(*run, self.readout.weight, self.readout.bias, kernel=self.kernel)
            if read is not None:
                return read.contiguous()
        h = scan_output(*run, kernel=self.kernel)
        # time first, as the fused kernels leave it: the readout copies its small result rather than all states
        return self.readout(h.transpose(0, 1)).transpose(0, 1).contiguous()

    def output_and_features(
        self, x: Float[Tensor, "seq time input"]
    ) -> tuple[Float[Tensor, "seq time output"], Float[Tensor, "seq time unit"]] | None:
        """What `forward` gives, and what the readout reads, without gradients; None where one pass does not give both."""
        if not is_bare(self.readout):
            return None
        return scan_readout_and_output(*self._run(x), self.readout.weight, self.readout.bias, kernel=self.kernel)

    def output_and_sums(
        self,
        x: Float[Tensor, "seq time input"],
        target: Float[Tensor, "seq time"],
        share: Float[Tensor, "seq time"],
        index: Int[Tensor, "seq pick"],
    ) -> tuple[Float[Tensor, "seq time"], Float[Tensor, "seq unit"], Float[Tensor, "seq pick unit"]] | None:
        """The one output o, sums of ``share (target - o)`` times what the readout reads, and that at some steps.

        Without gradients, and without the states of all steps in memory; None where one pass does not give all of it.
        """
        if not is_bare(self.readout):
            return None
        readout = self.readout.weight, self.readout.bias
        return scan_readout_and_sums(*self._run(x), *readout, target, share, index, kernel=self.kernel)

    def _run(self, x: Tensor) -> tuple[Stack, Tensor, Tensor, dict[str, Tensor]]:
        return self.stack, x, self.initial_state(x), self.recurrent_params()

    def load_torch_layout(self, state_dict: Mapping[str, Tensor]) -> None:
        """Load the weights of a `torch.nn.LSTM` or `torch.nn.GRU` (``weight_ih_l0``, ...) into the layers.

        Works for the cells ``lstm`` and ``torch_gru`` without LayerNorm; nothing is changed when it fails.
        """
        converted = torch_layout.convert(self.cell, state_dict, self.num_layers, dict(self.recurrent_params()))
        with torch.no_grad():
            for name, parameter in self.recurrent_params().items():
                parameter.copy_(converted[name])

    def extra_repr(self) -> str:
        """Sizes and the cell, for `print(model)`."""
        return f"{self.cell}, {self.input_size} -> {self.hidden_size} x {self.num_layers} -> {self.output_size}"
