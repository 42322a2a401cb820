"""Toy trained models of both tasks, with run directories, made without training."""

from pathlib import Path

import torch

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import load_recipe
from g2lstm.tasks.registry import LM, MT
from g2lstm.text.tokenize import Tokenizer, train_word_tokenizer

WORDS = ["a b c d e f g h i j k l m n o p q r s t u", "der mann die frau schläft liest das buch"]


def language_run(path: Path, **sets: object) -> Path:
    tokenizer = train_word_tokenizer(WORDS)
    recipe = load_recipe(
        "embedded", [f"model.{key}={value}" for key, value in {"hidden": 9, "embedding": 6, **sets}.items()]
    )
    run = RunDirectory.create(path, recipe, {"tokenizer.json": tokenizer})
    run.save_weights(_sharp(LM.build(recipe, len(tokenizer))), {})
    return path


def translation_run(path: Path, **sets: object) -> Path:
    source, target = train_word_tokenizer(WORDS), train_word_tokenizer(WORDS[:1])
    recipe = load_recipe(
        "embedded-mt", [f"model.{key}={value}" for key, value in {"hidden": 8, "embedding": 6, **sets}.items()]
    )
    tokenizers: dict[str, Tokenizer] = {"tokenizer.source.json": source, "tokenizer.target.json": target}
    run = RunDirectory.create(path, recipe, tokenizers)
    run.save_weights(_sharp(MT.build(recipe, len(source), len(target))), {})
    return path


def _sharp(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights under which words differ in probability."""
    return {name: 3 * tensor for name, tensor in model.state_dict().items()}
