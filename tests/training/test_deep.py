"""A deep translation model with residual connections trains: from the embedded pairs to more than counts of words."""

import math
from collections import Counter

import pytest

from g2lstm.tasks.recipes import load_recipe
from g2lstm.text.registry import fetch
from g2lstm.training.start import train_recipe
from tests.training.toys import Recorder

DEEP = ["model.layers=8", "model.residual=true", "model.embedding=64", "model.hidden=64"]
SHORT = ["train.minutes=", "train.epochs=1", "train.best_by=loss", "train.optimizer.lr=5e-3"]


def entropy(path):
    """Nats a token of a model that knows how often each occurs in this very text, and nothing else."""
    counts = Counter(word for line in path.read_text().splitlines() for word in [*line.split(), "<eos>"])
    return sum(-count * math.log(count / counts.total()) for count in counts.values()) / counts.total()


@pytest.mark.slow
def test_eight_layers_on_each_side_learn(tmp_path):
    """Counts of words are learnt without any layer; what goes beyond them has come through the stacks."""
    curve = Recorder()
    train_recipe(load_recipe("embedded-mt", [*DEEP, *SHORT]), tmp_path / "run", curve)
    before, after = (validation.loss for validation in curve.validations)
    counts_alone = entropy(fetch("embedded-mt") / "valid.en")
    assert after < 0.75 * counts_alone < counts_alone < before
