"""The training loop of pytorch/examples' word_language_model on a converted model, and its whole-model file."""

import sys
from pathlib import Path

import torch
from torch import nn

import g2lstm
from tests.third_party.check import made


def main(folder: Path) -> None:
    """Carries the state from window to window, clips, steps by hand, saves the whole model, and loads it again."""
    model = g2lstm.convert_(made("word_language_model").model)
    text = torch.arange(600).remainder(7).view(6, 100).t().contiguous()
    hidden, losses, rate = None, [], 2.0
    model.train()
    for start in [*range(0, 90, 10)] * 12:
        data, targets = text[start : start + 10], text[start + 1 : start + 11].reshape(-1)
        model.zero_grad()
        hidden = None if hidden is None else tuple(state.detach() for state in hidden)
        output, hidden = model(data, hidden)
        loss = nn.functional.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-rate)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses
    torch.save(model.rnn, folder / "rnn.pt")
    again = torch.load(folder / "rnn.pt", weights_only=True)
    assert type(again) is g2lstm.G2LSTM
    torch.testing.assert_close(again.eval()(torch.ones(3, 1, 32))[0], model.rnn.eval()(torch.ones(3, 1, 32))[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
