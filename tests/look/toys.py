"""Small runs on disk, with weights that are random but not small, so that gates differ."""

import torch

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.mt.trained import SOURCE_TOKENIZER, TARGET_TOKENIZER
from g2lstm.tasks.recipes import LM, MT, parse_recipe
from g2lstm.text.corpus import PairFiles, prepare_tokenizers
from g2lstm.text.tokenize import train_word_tokenizer

LINES = ["the cat sat on the mat .", "a dog saw the cat , which ran .", "no one knows what $ 5 buys ."] * 8
GERMAN = ["die katze saß auf der matte .", "ein hund sah die katze , die lief .", "niemand weiß das ."] * 8
ENGLISH = LINES


def language_run(folder, name="lm", **model):
    """A language model's run directory, and its text beside it."""
    text = folder / "text"
    text.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text("\n".join(LINES) + "\n")
    recipe = parse_recipe(
        {
            "task": "lm",
            "data": {"path": str(text), "tokenizer": "word", "min_frequency": 1},
            "model": {"embedding": 6, "hidden": 8, "layers": 2, **model},
            "train": {"epochs": 1, "batch_size": 4, "optimizer": {"name": "adamw", "lr": 0.01}},
            "evaluate": {"batch_size": 3, "bptt": 5},
        }
    )
    tokenizer = train_word_tokenizer(LINES)
    run = RunDirectory.create(folder / name, recipe, {"tokenizer.json": tokenizer})
    return _fill(run, LM.build(recipe, len(tokenizer)))


def translation_run(folder, name="mt", kind="bpe", **model):
    """A translation model's run directory, and its text beside it."""
    text = folder / "pairs"
    text.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (text / f"{split}.de").write_text("\n".join(GERMAN) + "\n")
        (text / f"{split}.en").write_text("\n".join(ENGLISH) + "\n")
    recipe = parse_recipe(
        {
            "task": "mt",
            "data": {"path": str(text), "source": "de", "target": "en", "tokenizer": kind, "vocabulary": 300},
            "model": {"embedding": 6, "hidden": 8, "layers": 2, **model},
            "train": {"epochs": 1, "batch_size": 4, "optimizer": {"name": "adamw", "lr": 0.01}},
            "evaluate": {"batch_size": 5, "beam": 2},
        }
    )
    files = PairFiles(text / "train.de", text / "train.en")
    source, target = prepare_tokenizers(files, kind, vocabulary=300, is_tokenized=True, cache=folder / "cache")
    run = RunDirectory.create(folder / name, recipe, {SOURCE_TOKENIZER: source, TARGET_TOKENIZER: target})
    return _fill(run, MT.build(recipe, len(source), len(target)))


def _fill(run, model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    run.save_weights(model, {})
    return run.path
