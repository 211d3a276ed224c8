"""What a bidirectional tagger sees before and after each step: layer by layer and direction by direction."""

import torch
from torch import nn

import lagreach


class Tagger(nn.Module):
    """Bidirectional LSTM with a class for every step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 12, bidirectional=True, batch_first=True)
        self.read = nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores at every step."""
        return self.read(self.lstm(x)[0])


def main(sequences: int = 160) -> "lagreach.diagnosis.result.Diagnosis":
    """A step's tag is the sign of the input three steps later."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.randn(sequences, 32, 3, generator=generator)
    tags = torch.randint(0, 2, (sequences, 32), generator=generator)
    tags[:, :-3] = (x[:, 3:, 0] > 0).long()
    diagnosis = lagreach.diagnose(Tagger(), (x, tags), loss="cross_entropy", lags=[0, 1, 3, 6])
    print(diagnosis)
    return diagnosis


if __name__ == "__main__":
    main()
