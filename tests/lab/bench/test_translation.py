"""The decoders that benchmarks/translation.py measures ours against, and its search."""

import pytest
import torch
from torch import nn

from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.mt.model import TranslationModel
from tests.lab.bench.scripts import script

translation = script("translation")


@pytest.mark.parametrize("softmax_inside", [True, False])
def test_the_loop_is_the_same_model(monkeypatch, softmax_inside):
    for name, value in {"VOCABULARY": 30, "WIDTH": 8, "DROPOUT": 0.0}.items():
        monkeypatch.setattr(translation, name, value)
    ours = TranslationModel(30, 30, 8, 8, 2, 2, tied="none", method="sigmoid").eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(4)  # so that all parts matter
    loop = translation.LoopModel(nn.LSTM, nn.LSTMCell, softmax_inside)
    pairs = [
        (loop.source, ours.source_embedding),
        (loop.target, ours.target_embedding),
        (loop.first, ours.encoder[0]),
        (loop.second, ours.encoder[1]),
        (loop.bridge, ours.bridge),
        (loop.attention, ours.attention),
        (loop.output, ours.output),
    ]
    for mine, other in pairs:
        mine.load_state_dict(other.state_dict())
    for cell, layer in ((loop.lower, ours.decoder[0]), (loop.upper, ours.decoder[1])):
        cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    loop.softmax.load_state_dict({"weight": ours.output_weight, "bias": ours.softmax_bias})
    source, inputs, targets = torch.randint(30, (3, 6, 4))
    lengths = torch.tensor([6, 2, 5, 3])
    targets = targets.masked_fill(torch.arange(6).unsqueeze(1) >= lengths, -100)
    wanted = targets >= 0
    features = ours(source, lengths, inputs)[wanted]
    expected = cross_entropy(features, ours.output_weight, ours.softmax_bias, targets[wanted])
    assert loop(source, lengths, inputs, targets).item() == pytest.approx(expected.item(), rel=1e-5)
