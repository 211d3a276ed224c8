"""Tokens that a model has no row for: torch says only that an index is out of range, and perhaps after hours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lagreach.adapters.calling import Call, default_call, untouched
from lagreach.data.sequences import Sequences
from lagreach.errors import InputError

READ = 256  # sequences at once


def refuse_unknown_tokens(model: Any, sequences: Sequences, call: Call | None) -> None:
    """Look at the sequences with the smallest and the largest token: is each within the embeddings that it is given to?"""
    parts = model.named_modules() if isinstance(model, nn.Module) else ()
    tables = {part: path for path, part in parts if isinstance(part, (nn.Embedding, nn.EmbeddingBag))}
    if not tables or sequences.read([0]).x.is_floating_point():
        return

    def look(table: Any, args: tuple[Any, ...]) -> None:
        tokens = args[0] if args else None
        if not isinstance(tokens, Tensor) or tokens.is_floating_point() or not tokens.numel():
            return
        rows, (low, high) = int(table.num_embeddings), (int(end) for end in tokens.aminmax())
        if low < 0 or high >= rows:
            raise InputError(
                "a token is beyond the vocabulary of the model",
                got=f"token {low if low < 0 else high}, in sequence {_row(ends, low if low < 0 else high)}",
                expected=f"0 to {rows - 1}: {tables[table] or 'the embedding'} has {rows} rows",
                fix=f"build it with {max(high, 0) + 1} rows or more, or give tokens that it does not know one that it has",
            )

    ends = _extremes(sequences)
    with torch.no_grad(), untouched(model):
        handles = [table.register_forward_pre_hook(look) for table in tables]
        try:
            (call or default_call)(model, sequences.read([row for row, _ in ends]))
        except InputError:
            raise
        except (Exception, SystemExit):  # whatever else is wrong is said where models are checked
            return
        finally:
            for handle in handles:
                handle.remove()


def _extremes(sequences: Sequences) -> list[tuple[int, int]]:
    """Numbers of the sequences that hold the smallest and the largest token, and these tokens."""
    low, high = [], []
    for start in range(0, len(sequences), READ):
        x = sequences.read(range(start, min(start + READ, len(sequences)))).x.long().flatten(1)
        low.append(x.amin(1))
        high.append(x.amax(1))
    lowest, highest = torch.cat(low).cpu(), torch.cat(high).cpu()
    return [(int(lowest.argmin()), int(lowest.min())), (int(highest.argmax()), int(highest.max()))]


def _row(ends: list[tuple[int, int]], token: int) -> str:
    """Which sequence holds a token; a model may have made another one of it."""
    return next((str(row) for row, held in ends if held == token), "one of these: " + str([row for row, _ in ends]))
