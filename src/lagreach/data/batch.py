"""A batch of sequences."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagreach._util.buffers import LARGE, empty
from lagreach.errors import InputError, TooLargeError

POOLED: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}  # types whose large rows use memory again
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
AS_LOADER = "pass torch.utils.data.DataLoader(data, batch_size=64)"
PADDED = (
    "pad = torch.nn.utils.rnn.pad_sequence; data = {'x': pad(xs, batch_first=True), 'y': pad(ys, batch_first=True), "
    "'lengths': torch.tensor([len(x) for x in xs])}, where xs and ys are lists of the sequences"
)
MOST_PARTS = 4  # of a batch: x, y, mask, lengths
MOST_STEPS = 10**6  # of one sequence: its states are held a dozen times over while gradients are carried back


@dataclass(frozen=True)
class Batch:
    """Some sequences: inputs and targets, and optionally weights of the steps, lengths, and an initial state.

    The first axis of everything is the sequence. `state` is handed to the model as it is (a tensor, or a tuple of
    tensors), with the sequences on its first axis here. `others` are inputs beside x, for models that take several: a
    tuple of what follows x, or a dict by name, in which x is called `name`.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    lengths: Tensor | None = None
    state: Any = None
    others: Any = None
    name: str = "x"
    numbers: Tensor | None = None  # of the sequences among all data, for errors that point at one of them

    def __post_init__(self) -> None:
        for name, part in (("x", self.x), ("y", self.y)):
            if isinstance(part, Tensor) and part.layout in SPARSE:
                raise InputError(
                    f"{name} is a sparse tensor",
                    got=str(part.layout),
                    expected="a dense one",
                    fix=f"pass {name}.to_dense()",
                )

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: slice | Sequence[int]) -> Batch:
        """Return some of the sequences."""
        index = rows if isinstance(rows, slice) else torch.as_tensor(list(rows))
        fields = ("x", "y", "mask", "lengths", "state", "others", "numbers")
        return replace(self, **{name: _take(getattr(self, name), index) for name in fields})

    def with_x(self, x: Tensor) -> Batch:
        """Return the same sequences with another x."""
        return replace(self, x=x)

    def in_precision(self, given: torch.dtype, wanted: torch.dtype) -> Batch:
        """Return the same sequences with all numbers of one type that a model is handed in another."""

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(moved(part) for part in value)
            if isinstance(value, Mapping):
                return {name: moved(part) for name, part in value.items()}
            return value.to(wanted) if isinstance(value, Tensor) and value.dtype == given else value

        return replace(self, x=moved(self.x), state=moved(self.state), others=moved(self.others))


def known_lengths(batch: Batch) -> Tensor | None:
    """Lengths, also where a mask alone tells them: at the end it leaves steps out whose inputs are all zero.

    >>> x, mask = torch.ones(2, 3, 1), torch.tensor([[1, 1, 1], [1, 0, 0]])
    >>> known_lengths(Batch(x * mask[..., None], x, mask)), known_lengths(Batch(x, x, mask))
    (tensor([3, 1]), None)
    """
    x, mask = batch.x, batch.mask
    if (
        batch.lengths is not None
        or mask is None
        or x.ndim < 2
        or mask.shape != x.shape[:2]
        or not x.is_floating_point()
    ):
        return batch.lengths
    there = (torch.as_tensor(mask, device=x.device) != 0) | (x.flatten(2) != 0).any(2)
    lengths = torch.where(there.any(1), x.shape[1] - there.flip(1).long().argmax(1), x.shape[1])
    return lengths if bool((lengths < x.shape[1]).any()) else None


def zero_beyond(batch: Batch) -> Batch:
    """Zeros beyond the lengths, where inputs may hold anything."""
    if batch.lengths is None or batch.x.ndim < 2:
        return batch
    inside = torch.arange(batch.x.shape[1]) < torch.as_tensor(batch.lengths)[:, None].cpu()
    inside = inside.to(batch.x.device).reshape(*inside.shape, *[1] * (batch.x.ndim - 2))
    return replace(batch, x=torch.where(inside, batch.x, torch.zeros((), dtype=batch.x.dtype, device=batch.x.device)))


def finite_padding(batch: Batch) -> Batch:
    """Zeros beyond the lengths where something there is not finite: times zero it would still be no number."""
    x, lengths = batch.x, batch.lengths
    if lengths is None or not x.is_floating_point() or lengths.shape != x.shape[:1] or x.sum().isfinite():
        return batch
    return zero_beyond(batch)


def telling_rows(count: int, lengths: Tensor | None = None, counted: Tensor | None = None) -> list[int]:
    """Numbers of a few sequences that differ as much as any: a check of a model on these holds for the others.

    The shortest and the longest, those with the fewest and the most steps that a mask lets count, and the first two.

    >>> telling_rows(9, torch.tensor([5, 5, 7, 2, 5, 5, 9, 5, 5]))
    [3, 6, 0, 1]
    """
    measures = [values for values in (lengths, counted) if values is not None and values.shape == (count,)]
    extremes = [int(row) for values in measures for row in (values.argmin(), values.argmax())]
    return list(dict.fromkeys([*extremes, *range(min(2, count))]))


def sample_of(batch: Batch) -> Batch:
    """A few sequences of a batch that differ (see `telling_rows`)."""
    rows = telling_rows(len(batch), batch.lengths, counted_steps(batch))
    return replace(batch.select(rows), numbers=torch.as_tensor(rows) if batch.numbers is None else batch.numbers[rows])


def counted_steps(batch: Batch) -> Tensor | None:
    """Weight of all steps of each sequence, where a mask says so."""
    return None if batch.mask is None or batch.mask.ndim < 2 else batch.mask.flatten(1).double().sum(1)


def check_steps(x: Tensor) -> None:
    """Refuse sequences that no memory could hold the states of."""
    if x.ndim > 1 and x.shape[1] > MOST_STEPS:
        raise TooLargeError(
            "these sequences are too long",
            got=f"{x.shape[1]} steps, x of shape {tuple(x.shape)}",
            expected=f"at most {MOST_STEPS} steps, sequences on the first axis",
            fix="cut them into windows with lagreach.cut_series",
        )


def one_series(read_by: str, width: int) -> InputError:
    """The error for one long series in the place of sequences."""
    return InputError(
        "x is (time, input): one series, not sequences",
        got=f"x of shape (N, {width}), which is N steps to {read_by}",
        expected="(seq, time, input)",
        fix="cut it: data = lagreach.cut_series(x, y, length); if these are sequences of one number a step, pass x[..., None]",
    )


def refuse_one_series(x: Tensor, read_by: str, width: int) -> None:
    """Refuse two axes of which the last is as wide as an input; of width one, they may be sequences of one number a step."""
    if x.ndim == 2 and x.shape[-1] == width > 1:
        raise one_series(read_by, width)


def or_one_series(x: Tensor) -> str:
    """What else to do where x may be one long series; nothing where it cannot be."""
    told = x.ndim == 2 and x.is_floating_point()
    return "; if x is one series (time, input), cut it with lagreach.cut_series(x, y, length)" if told else ""


def without_mixing(x: Tensor) -> str:
    """What to do about a model whose output for a sequence depends on others."""
    return (
        "lag gradients are defined per sequence; take out what mixes sequences (torch's recurrent layers take time first, "
        f"unless batch_first=True){or_one_series(x)}"
    )


def check_mask(mask: Tensor | None, where: str) -> None:
    """Refuse a mask that is not one of steps, or whose values are no weights."""
    if mask is None:
        return
    if mask.ndim == 1:
        raise _one_number_a_sequence(mask, where)
    if mask.dtype == torch.bool:
        return
    wrong = torch.ones(mask.shape, dtype=torch.bool) if mask.is_complex() else ~(torch.isfinite(mask) & (mask >= 0))
    if bool(wrong.any()):
        index = wrong.nonzero()[0].tolist()
        raise InputError(
            f"the mask of {where} holds a value that is no weight of a step",
            got=f"{mask[tuple(index)].item()} at index {index}",
            expected="bool, or finite numbers of 0 or more; 0 leaves a step out",
            fix="pass mask > 0 if it marks the steps that count",
        )


def _one_number_a_sequence(mask: Tensor, where: str) -> InputError:
    """The error for one number a sequence in the place of a mask: whole numbers are lengths."""
    counts = mask.dtype != torch.bool and bool((mask == mask.round()).all() and (mask >= 1).all() and (mask > 1).any())
    fix = "pass mask[:, None].expand(-1, time) if all steps of a sequence weigh the same; lengths come fourth"
    return InputError(
        f"the mask of {where} has no time axis",
        got=f"shape {tuple(mask.shape)}" + (f", whole numbers up to {int(mask.max())}" if counts else ""),
        expected="(seq, time), bool or nonnegative",
        fix="if these are lengths, pass (x, y, None, lengths), or a dict with x, y and lengths" if counts else fix,
    )


def check_values(tensor: Tensor) -> None:
    """Refuse a tensor that has a shape and no values."""
    if tensor.is_meta:
        raise InputError(
            "these tensors have no values",
            got=f"shape {tuple(tensor.shape)} on the meta device",
            expected="numbers on a processor or a GPU",
        )


def as_numbers(values: Any) -> Tensor:
    """Tensors as they are; types that numpy does not know, such as bfloat16, as float32."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise InputError(
            "some values of an array are masked",
            got=f"{int(np.ma.getmaskarray(values).sum())} of {values.size}",
            expected="numbers everywhere",
            fix="pass values.filled(0), and which steps count as mask=",
        )
    if isinstance(values, np.ndarray) and (min(values.strides, default=0) < 0 or not values.dtype.isnative):
        values = values.astype(values.dtype.newbyteorder("="), order="C")  # torch knows neither
    try:
        # torch takes data frames for lists of their columns
        framed = hasattr(values, "__array__") and not isinstance(values, (Tensor, np.ndarray))
        with warnings.catch_warnings():
            # a file that is mapped into memory, say, which is larger than that: nobody writes into it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(np.array(values) if framed else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "these are no numbers",
            got=type(values).__name__ + (f" of {values.dtype}" if isinstance(values, np.ndarray) else ""),
            expected="tensors, arrays or lists of numbers",
            fix="pass values.astype(float) if they are" if hasattr(values, "astype") else None,
        ) from error
    check_values(tensor)
    known = (torch.float16, torch.float32, torch.float64)
    return tensor.float() if tensor.is_floating_point() and tensor.dtype not in known else tensor


def _together(data: Any) -> str:
    """How to bring single sequences together: those of one length by a loader, others padded."""
    if len({len(one[0]) for one in data if isinstance(one, (tuple, list)) and len(one)}) == 1:
        return AS_LOADER
    return f"pad them: {PADDED}"


def is_array(value: object) -> bool:
    """Whether something is a tensor, or what numpy takes for an array."""
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def refuse_single_sequences(data: object) -> None:
    """A list of single sequences is not one of batches: steps would pass for sequences."""
    first = data[0] if isinstance(data, (tuple, list)) and data else None
    if isinstance(first, (tuple, list)) and len(first) > MOST_PARTS and all(map(is_array, first)):
        raise InputError(
            "lists of sequences are not batches",
            got=f"a list of {len(first)}, the first of shape {tuple(first[0].shape)}",
            expected="(x, y) tensors of all sequences",
            fix=f"pass torch.stack(x) where all are as long; else pad them: {PADDED}",
        )
    x = as_numbers(first[0]) if isinstance(first, (tuple, list)) and first and is_array(first[0]) else None
    if isinstance(x, Tensor) and x.ndim == 2 and x.is_floating_point() and len(data) > len(x):  # type: ignore[arg-type]
        raise InputError(
            "single sequences are not batches",
            got=f"{len(data)} of them, the first x of shape {tuple(x.shape)}",  # type: ignore[arg-type]
            expected="(x, y) tensors of all sequences, or batches with x of shape (seq, time, input)",
            fix=f"{_together(data)}; of batches without an axis of features pass x[..., None]",
        )


def _take(value: Any, index: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_take(part, index) for part in value)
    if isinstance(value, Mapping):
        return {name: _take(part, index) for name, part in value.items()}
    if isinstance(index, Tensor) and isinstance(value, Tensor) and index.dtype != torch.bool:
        return _rows(value, index.to(value.device))
    return value[index]


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Whole rows: twice as fast as other indices. Into memory that is used again, where it is much."""
    wanted = (len(index), *values.shape[1:])
    plain = (
        type(values) is Tensor and values.device.type == "cpu" and values.dtype in POOLED and not values.requires_grad
    )
    if not plain or math.prod(wanted) * values.itemsize < LARGE:
        return values.index_select(0, index)
    return torch.index_select(values, 0, index, out=torch.from_numpy(empty(wanted, POOLED[values.dtype])))
