"""Kinds of networks, as far as words go: what helps a network with gates is no advice for one with attention."""

from __future__ import annotations

from torch import nn

from lagreach.forecasting.limits import BLENDED, FEW_SEQUENCES, FEW_STEPS, MEANING, UNSEEN
from lagreach.models.gated_rnn import GatedRNN
from lagreach.whole_model.choice import ATTENDS

GATED, PLAIN, ATTENDING, OTHER = "gated", "plain", "attending", "other"
WITH_GATES = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)
WITHOUT_GATES = (nn.RNN, nn.RNNCell)
UNGATED_CELLS = ("elman", "diag_elman")

REMEDY = {  # what helps at lags that would not be learned
    BLENDED: "more units, faster gates or a wider spread of time scales help to tell neighbours apart; more data do not",
    UNSEEN: "slower gates (a larger bias of the forget gate, say), or another kind of layer; more data do not help",
    FEW_SEQUENCES: "more sequences",
    FEW_STEPS: "train longer, or with larger steps",
}
IN_SHORT = {  # what to do, in a training that is under way
    BLENDED: "more units, or gates with more spread time scales",
    UNSEEN: "stop, or change gates",
    FEW_STEPS: "train longer, or with larger steps",
}
OTHERWISE = {  # what is said of other kinds in the place of these
    PLAIN: {
        BLENDED: "more units, or a cell with gates, help to tell neighbours apart; more data do not",
        UNSEEN: "an orthogonal start of the recurrent weights, or a cell with gates; more data do not help",
    },
    ATTENDING: {
        BLENDED: "forecast again after some training: attention may come to tell neighbours apart",
        UNSEEN: "forecast again after some training: attention may find what nothing shows before it",
    },
    OTHER: {
        BLENDED: "more units, or time scales that lie farther apart, help to tell neighbours apart; more data do not",
        UNSEEN: "another start, or another kind of layer; more data do not help",
    },
}
IN_SHORT_OTHERWISE = {
    PLAIN: {
        BLENDED: "more units, or a cell with gates",
        UNSEEN: "stop, and take a cell with gates or an orthogonal start",
    },
    ATTENDING: {
        BLENDED: "look again later, attention may grow into it",
        UNSEEN: "look again later, attention may find it",
    },
    OTHER: {BLENDED: "more units, or more spread time scales", UNSEEN: "stop, or take another start or kind of layer"},
}
STATE = {
    BLENDED: "something of it arrives, but mixed up with its neighbours",
    UNSEEN: "neither the gradient nor the state shows it",
}
NO_RECORD = {
    ATTENDING: "No track record: forecasts were checked in trainings of recurrent networks. Attention can learn lags of which "
    "nothing shows before training: do not stop for what is said before it, and forecast again after a twentieth of it.",
    OTHER: "No track record: forecasts were checked in trainings of recurrent networks of other kinds. Forecast again after a "
    "twentieth of the training.",
}


def kind_of(model: object) -> str:
    """Which kind a network is of, or a view of one; what has both recurrent layers and attention is one that attends.

    >>> [kind_of(model) for model in (nn.GRU(1, 2), nn.RNN(1, 2), nn.MultiheadAttention(2, 1), nn.Linear(1, 1))]
    ['gated', 'plain', 'attending', 'other']
    """
    model = getattr(model, "_model", model)  # that a view is of
    if not isinstance(model, nn.Module):
        return GATED
    parts = list(model.modules())
    if any(word in type(part).__name__.lower() for part in parts for word in ATTENDS):
        return ATTENDING
    own = [part.cell.name for part in parts if isinstance(part, GatedRNN)]
    if any(isinstance(part, WITH_GATES) for part in parts) or any(cell not in UNGATED_CELLS for cell in own):
        return GATED
    return PLAIN if own or any(isinstance(part, WITHOUT_GATES) for part in parts) else OTHER


def remedies(kind: str) -> dict[str, str]:
    """What helps at lags that would not be learned, by what stands in the way."""
    return REMEDY | OTHERWISE.get(kind, {})


def in_short(kind: str) -> dict[str, str]:
    """The same in a few words, for a training that is under way."""
    return IN_SHORT | IN_SHORT_OTHERWISE.get(kind, {})


def meanings(kind: str) -> dict[str, str]:
    """What stands in the way, in a sentence."""
    if kind == GATED:
        return MEANING
    return MEANING | {word: f"{STATE[word]}: {remedies(kind)[word]}" for word in STATE}
