"""Whose lags are measured: of the recurrent layers, step by step, or of the whole model; and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from lagreach.adapters import View, find_views
from lagreach.adapters.calling import (
    Call,
    captured,
    default_call,
    refuse_batch_norm,
    refuse_other_objects,
    untouched,
)
from lagreach.adapters.custom import custom_views
from lagreach.adapters.families import scan_modules
from lagreach.adapters.own_cells import own_cell_paths, reads_own_steps
from lagreach.data.batch import Batch
from lagreach.errors import InputError, LagreachError, UnstableModelError, UnsupportedError
from lagreach.gradients.output_anchors import PER_STEP, decide
from lagreach.gradients.selection import select_params
from lagreach.models.gated_rnn import GatedRNN
from lagreach.transport.rollout import run
from lagreach.whole_model.find_input import find_input_module
from lagreach.whole_model.input_module import read
from lagreach.whole_model.own_steps import mixed_where
from lagreach.whole_model.running import at_rest, unwrapped, whole_model

CHOICES = ("auto", "layers", "model")
NO_WAY_BACK = (
    "{0} is left out: it gets no gradient, because to autograd the loss does not depend on its weights. Its output is cut "
    "off by detach() or torch.no_grad, or nothing uses it"
)
OWN_STEPS = (
    "lags are steps of {0}, not of the data, because {1}: one that is named need not be one of the data. Lags of the whole model "
    "{2}"
)
CUT = "cannot be measured: no gradient gets from its output to its input"
NO_READER = "cannot be measured: it is not known what reads its input"
OTHER_STEPS = "cannot be measured: its outputs are several, and not one for each step of the input"
LOOK_INSIDE = ' (lags_of="layers" shows those)'
ATTENDS = ("attention", "attn", "transformer")  # in names of classes that look at several steps,
MIXES_STEPS = (*ATTENDS, "conv1d")  # and of those that do so for a few


@dataclass(frozen=True)
class LagChoice:
    """Whose lags are measured ("layers" or "model"), why, and the recurrences that were found.

    `inputs` is the module that reads the input, and `outputs` whether there is one a step, where these are known already; `notes`
    say what was left out.
    """

    of: str
    why: str
    views: tuple[View, ...] = ()
    inputs: str | None = None
    outputs: str | None = None
    notes: tuple[str, ...] = ()


def choose_lags(
    model: Any,
    sample: Batch,
    *,
    lags_of: str = "auto",
    inputs: str | None = None,
    cell: Mapping[str, Any] | None = None,
    call: Call | None = None,
    only: str | None = None,
    of_layers: bool = False,
) -> LagChoice:
    """Choose: one recurrence keeps exact transport; of several in a row, and of everything else, lags are the whole model's.

    Parameters
    ----------
    lags_of
        "auto", or "layers" or "model" to say which.
    inputs
        The module that reads the input; naming one asks for lags of the whole model.
    only
        Path of a part of the model: its recurrent layers alone, or where it has none, lags back to the part's own input.
    of_layers
        Whether something is asked for that recurrent layers alone have: then stacks of them are looked at layer by layer.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(3, 8, 2)
    >>> print(choose_lags(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), Batch(x, x[..., :1])).why)
    it has no recurrent layer
    """
    if lags_of not in CHOICES:
        raise InputError("unknown choice of lags", got=f"lags_of={lags_of!r}", expected=", ".join(CHOICES))
    if lags_of == "layers" and inputs is not None:
        raise InputError(
            "inputs= names what reads the input of the whole model",
            got=f'inputs={inputs!r} with lags_of="layers"',
            fix='leave one of them out; lags_of="model" measures lags of the whole model',
        )
    if not isinstance(model, View):
        refuse_other_objects(model)
    if only is not None:
        return _part(model, sample, lags_of, inputs, cell, call, only)
    if lags_of == "model" or inputs is not None:
        _refuse_described(model, cell)
        return LagChoice("model", "as asked for", inputs=inputs)
    if cell is not None:
        return _of_layers("cell= describes its recurrence", _described(model, cell, sample, call), sample)
    if lags_of == "layers":
        return _of_layers("as asked for", find_views(model, sample, call), sample)
    if not isinstance(model, nn.Module) or isinstance(model, GatedRNN):
        return LagChoice("layers", "its recurrence is known step by step", tuple(find_views(model, sample, call)))
    return _by_looking(model, sample, call, of_layers)


def _of_layers(why: str, views: Sequence[View], sample: Batch, notes: tuple[str, ...] = ()) -> LagChoice:
    """Lags of the recurrences that training reaches; of the others, names and the reason."""
    learning = tuple(view for view in views if view.learns(sample))
    cut_off = list(dict.fromkeys(view.name for view in views if view not in learning))
    if not learning:
        raise InputError(
            "no recurrent layer of the model gets a gradient",
            got=f"an output that does not hang on the weights of {', '.join(cut_off)}",
            expected="a way back from the loss to a recurrent layer",
            fix="take out detach(), torch.no_grad or rounding behind the layer, or let the output use it",
        )
    return LagChoice("layers", why, learning, notes=(*notes, *(NO_WAY_BACK.format(name) for name in cut_off)))


def _described(model: Any, cell: Mapping[str, Any], sample: Batch, call: Call | None) -> list[View]:
    if not isinstance(model, nn.Module):
        raise InputError(
            "cell= describes layers of a torch module", got=type(model).__name__, expected="a torch.nn.Module"
        )
    return custom_views(model, cell, sample, call)


def _by_looking(model: nn.Module, sample: Batch, call: Call | None, of_layers: bool) -> LagChoice:
    inside = unwrapped(model)
    refuse_batch_norm(inside)
    recurrent = [m for m in inside.modules() if isinstance(m, (nn.RNNBase, nn.RNNCellBase))]
    try:
        gated = [path for path, *_ in scan_modules(inside)]
    except UnsupportedError as error:
        return LagChoice("model", _refusal(error))
    if not recurrent and not gated:
        return _own_cells(inside, sample, call)
    if len(gated) > 1 or (gated and recurrent):
        count = len(gated) + len(recurrent)
        return LagChoice("model", f"steps within each of its {count} recurrent layers are no lags of the model")
    if gated and _looks_around(inside, gated[0]):
        return LagChoice("model", f"steps are mixed outside {gated[0]} as well, by attention or convolutions")
    if len(recurrent) > 1 and _looks_around(inside, *_paths(inside, recurrent)):
        return LagChoice("model", f"its {len(recurrent)} recurrent layers are joined by attention or convolutions")
    try:
        views = find_views(model, sample, call)
    except UnstableModelError:  # it gives other outputs at every run: the model as a whole cannot be measured either
        raise
    except UnsupportedError as error:
        return LagChoice("model", _refusal(error))
    choice = _of_layers("its recurrence is carried back step by step, exactly", views, sample)
    if of_layers or not recurrent:
        return choice
    mixed = None
    if len(choice.views) == len(views):  # or else it is cut, and its layers in a row may not be
        mixed = _mixed_steps(inside, recurrent, sample, call or default_call)
    around = None if mixed else _around_layer(choice.views[0], sample)
    why = mixed or around
    if why is None:
        return choice
    outputs = _told_by_states(choice.views, sample)
    hindrance = _hindrance(model, recurrent if around else (), outputs if around else None, sample, call)
    if hindrance is None:
        return LagChoice("model", why, outputs=outputs, notes=choice.notes)
    note = OWN_STEPS.format(choice.views[0].name, why.removesuffix(LOOK_INSIDE), hindrance)
    return replace(choice, notes=(*choice.notes, note))


def _around_layer(view: View, sample: Batch) -> str | None:
    """Say why a layer's steps are not those of the model's input and output; None where they are."""
    where = mixed_where(view, sample)
    return None if where is None else f"steps are mixed or shifted {where} {view.name}{LOOK_INSIDE}"


def _mixed_steps(model: nn.Module, recurrent: Sequence[nn.Module], sample: Batch, call: Call) -> str | None:
    """Say why steps within the layers are no lags of the model: others carry inputs over time as well; None where they are."""
    first, *others = recurrent
    if others:
        return f"steps within each of its {len(recurrent)} recurrent layers are no lags of the model{LOOK_INSIDE}"
    (path,) = _paths(model, recurrent)
    if isinstance(first, nn.RNNBase) and first.bidirectional and first.num_layers > 1:
        return f"steps within each layer of {path or 'a bidirectional stack'} are no lags of the model{LOOK_INSIDE}"
    attending = [module for module in _around(model, path, by=ATTENDS) if module is not model]
    with untouched(model), torch.no_grad(), captured(attending) as calls:
        call(model, sample)
    return f"steps are mixed outside {path} as well, by attention{LOOK_INSIDE}" if any(calls.values()) else None


def _told_by_states(views: Sequence[View], sample: Batch) -> str | None:
    """Whether outputs belong to a step each, by the states that feed them; None where these do not tell."""
    try:
        return decide([run(view.bind(sample)) for view in views])
    except InputError:
        return None


def _hindrance(
    model: nn.Module, layers: Sequence[nn.Module], outputs: str | None, sample: Batch, call: Call | None
) -> str | None:
    """Why lags of the whole model, back through some layers, cannot be measured; None if they can."""
    whole = whole_model(model, call)
    try:
        with at_rest(whole.module):
            source = find_input_module(whole, sample)
            with captured(list(layers)) as calls:
                _, output = read(whole, source, sample)
    except LagreachError as error:
        return CUT if "no gradient gets" in str(error) else NO_READER
    if not all(_in_graph(made[0][:2]) for made in calls.values() if made):
        return CUT
    several = outputs == PER_STEP and output.shape[1] != sample.x.shape[1]
    return OTHER_STEPS if several else None


def _in_graph(arguments: Any) -> bool:
    leaves = [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in tree_leaves(arguments)]
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)


def _part(
    model: Any,
    sample: Batch,
    lags_of: str,
    inputs: str | None,
    cell: Mapping[str, Any] | None,
    call: Call | None,
    only: str,
) -> LagChoice:
    """Look at one part of a model, and name the recurrent layers that are left out."""
    if inputs is not None or cell is not None or not isinstance(model, nn.Module):
        named = "inputs=" if inputs is not None else "cell=" if cell is not None else type(model).__name__
        raise InputError(
            "only= names a part of a torch module, and is enough",
            got=f"only={only!r} with {named}",
            fix="leave one out",
        )
    whole = unwrapped(model)
    paths = [path for path, _ in whole.named_modules() if path]
    if only not in paths:
        raise InputError("there is no such part", got=f"only={only!r}", expected=f"one of {', '.join(paths[:16])}")
    if lags_of == "model":
        return LagChoice("model", "as asked for", inputs=only)
    try:
        views = find_views(whole, sample, call, only)
    except UnstableModelError:
        raise
    except UnsupportedError as error:
        if lags_of == "layers":
            raise
        return LagChoice("model", f"{_refusal(error)}; lags are counted back to the input of {only}", inputs=only)
    recurrent = [path for path, module in whole.named_modules() if isinstance(module, (nn.RNNBase, nn.RNNCellBase))]
    recurrent = recurrent or own_cell_paths(whole, sample, call or default_call)
    others = [path for path in recurrent if not f"{path}.".startswith(f"{only}.")]
    note = f"only {only} was looked at, as asked for" + (f"; left out: {', '.join(others)}" if others else "")
    return _of_layers(f"of {only} alone, as asked for", views, sample, (note,))


def _own_cells(model: nn.Module, sample: Batch, call: Call | None) -> LagChoice:
    """One cell of the user's own is carried back step by step; several, or none, are lags of the whole model."""
    cells = own_cell_paths(model, sample, call or default_call)
    if not cells:
        return LagChoice("model", "it has no recurrent layer")
    if len(cells) > 1:
        return LagChoice("model", f"steps within each of its {len(cells)} cells are no lags of the model")
    try:
        views = find_views(model, sample, call)
        select_params(views[0].template)
    except UnstableModelError:
        raise
    except (UnsupportedError, InputError) as error:
        return LagChoice("model", _refusal(error))
    own = reads_own_steps(model, cells[0], sample, call or default_call) and not _looks_around(model, cells[0])
    if not own or mixed_where(views[0], sample) is not None:
        return LagChoice("model", f"the steps of {cells[0]} are not those of the input, or are mixed elsewhere as well")
    return _of_layers(f"its cell {cells[0]} is carried back step by step, exactly", views, sample)


def _paths(model: nn.Module, modules: Sequence[nn.Module]) -> list[str]:
    return [path for path, module in model.named_modules() if any(module is wanted for wanted in modules)]


def _looks_around(model: nn.Module, *layers: str) -> bool:
    """Whether something outside some layers mixes steps, by the names of classes."""
    return bool(_around(model, *layers, by=MIXES_STEPS))


def _around(model: nn.Module, *layers: str, by: Sequence[str]) -> list[nn.Module]:
    """Modules outside some layers whose classes have such a name."""
    inside = tuple(f"{path}." for path in layers)
    outside = [
        module for path, module in model.named_modules() if "" not in layers and not f"{path}.".startswith(inside)
    ]
    return [module for module in outside if any(word in type(module).__name__.lower() for word in by)]


def _refusal(error: LagreachError) -> str:
    return f"its layers cannot be carried back step by step: {str(error).splitlines()[0]}"


def _refuse_described(model: Any, cell: Mapping[str, Any] | None) -> None:
    if cell is not None or not isinstance(model, nn.Module):
        raise InputError(
            "lags of the whole model are for torch modules, run as they are",
            got="cell=" if cell is not None else type(model).__name__,
            fix='leave lags_of out, or pass lags_of="layers"',
        )
