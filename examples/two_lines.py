"""A training script as anyone might have it, a small sequence tagger on `nn.LSTM`, and the two lines that g2lstm adds.

The task: a text of letters and digits in which quotation marks open and close; tag each character as inside a
quotation or not. Run it: python examples/two_lines.py
"""

import torch
from torch import Tensor, nn

import g2lstm

LETTERS, QUOTE = 20, 20
TAGS = 2


class Tagger(nn.Module):
    """Embedding, LSTM, linear layer: nothing in it knows of g2lstm."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS + 1, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, TAGS)

    def forward(self, text: Tensor) -> Tensor:
        """text: (B, T) to scores (B, T, TAGS)."""
        out, _ = self.lstm(self.embedding(text))
        scores: Tensor = self.head(out)
        return scores


def draw_batch(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Characters (B, T) and their tags."""
    text = torch.randint(LETTERS, (batch, length))
    text[torch.rand(batch, length) < 0.08] = QUOTE
    return text, (text == QUOTE).cumsum(1) % 2


def accuracy(model: nn.Module) -> float:
    """On fresh text."""
    model.eval()
    with torch.no_grad():
        text, tags = draw_batch(100, 80)
        return (model(text).argmax(-1) == tags).float().mean().item()


def train(steps: int = 400) -> nn.Module:
    """A trained tagger."""
    torch.manual_seed(0)
    model = Tagger()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)

    g2lstm.convert_(model)  # the first line: the LSTM's gates are now trained to be 0 or 1

    for step in range(steps):
        model.train()
        text, tags = draw_batch(32, 40)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), tags.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    g2lstm.freeze_(model)  # the second line: a plain nn.LSTM again, with the trained weights

    return model


def main(steps: int = 400) -> float:
    """Trains the tagger and returns its accuracy."""
    model = train(steps)
    print(model)
    score = accuracy(model)
    print(f"accuracy {score:.1%}")
    return score


if __name__ == "__main__":
    main()
