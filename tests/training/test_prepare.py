"""What a training starts from."""

import math

import pytest
import torch
from accelerate import Accelerator

from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training.start import prepare


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the cat saw the dog\nthe dog ran\n" * 20)
    return tmp_path


def prepared(folder, **train):
    train = {"epochs": 1, "batch_size": 2, "optimizer": {"name": "adamw"}, **train}
    size = {"embedding": 8, "hidden": 8, "layers": 2}
    recipe = parse_recipe({"task": "lm", "data": {"path": str(folder)}, "train": train, "model": size})
    return prepare(recipe, Accelerator(cpu=True))


def test_the_frequencies_of_words_may_be_known_from_the_start(folder):
    plain, knowing = prepared(folder), prepared(folder, frequency_bias=True)
    assert not plain.learner.model.softmax_bias.any()
    id_of = knowing.tokenizers["tokenizer.json"].id_of
    bias = {word: knowing.learner.model.softmax_bias[id_of(word)].item() for word in ("the", "dog", "cat")}
    assert bias["the"] - bias["cat"] == pytest.approx(math.log(61 / 21))
    assert bias["dog"] - bias["cat"] == pytest.approx(math.log(41 / 21))
    others = [name for name, _ in plain.learner.model.named_parameters() if name != "softmax_bias"]
    same = dict(plain.learner.model.named_parameters())
    assert all(torch.equal(same[name], knowing.learner.model.get_parameter(name)) for name in others)
    assert knowing.learner.validate().loss < plain.learner.validate().loss
