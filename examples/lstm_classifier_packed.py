"""How far back does an LSTM text classifier learn? Packed sequences of different lengths, last hidden state."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import lagreach


class Classifier(nn.Module):
    """Embedding, packed LSTM, linear layer on the final hidden state."""

    def __init__(self, vocabulary: int = 20, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.read = nn.Linear(16, classes)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Class scores of whole sequences."""
        packed = pack_padded_sequence(self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.read(self.lstm(packed)[1][0][-1])


def main(sequences: int = 192) -> "lagreach.diagnosis.result.Diagnosis":
    """The class is decided by the token four steps before the end."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    tokens = torch.randint(0, 20, (sequences, 24), generator=generator)
    lengths = torch.randint(12, 25, (sequences,), generator=generator)
    decisive = tokens[torch.arange(sequences), lengths - 1 - 4]
    data = {"x": tokens, "y": (decisive >= 10).long(), "lengths": lengths}
    diagnosis = lagreach.diagnose(Classifier(), data, loss="cross_entropy", lags=[0, 1, 2, 4, 8])
    print(diagnosis)
    return diagnosis


if __name__ == "__main__":
    main()
