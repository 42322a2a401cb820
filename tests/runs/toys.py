"""Run directories of tiny models with random weights, one for each task, without training."""

import random

from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training.start import prepare


def language_run(folder, *overrides):
    """A run folder/run of a language model, with its texts beside it."""
    words = [f"w{number}" for number in range(30)]
    lines = [" ".join(random.Random(seed).choices(words, k=9)) for seed in range(60)]
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for split, part in (("train", lines), ("valid", lines[:8]), ("test", lines[4:14])):
        (texts / f"{split}.txt").write_text("\n".join(part) + "\n")
    tables = {
        "task": "lm",
        "data": {"path": str(texts), "tokenizer": "word", "min_frequency": 1},
        "model": {"embedding": 10, "hidden": 12, "layers": 2},
        "evaluate": {"cache": {"window": 20, "theta": 0.5, "lambda": 0.1}},
    }
    return _made(
        folder / "run",
        parse_recipe(tables | {"train": {"epochs": 1, "batch_size": 4, "frequency_bias": False}}, overrides),
    )


def translation_run(folder, *overrides):
    """A run folder/run of a translation model, with its texts beside it."""
    german, english = ["ein", "haus", "baum", "hund", "und"], ["a", "house", "tree", "dog", "and"]
    picks = [random.Random(seed).choices(range(5), k=4) for seed in range(30)]
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for split, part in (("train", picks), ("valid", picks[:5]), ("test", picks[5:12])):
        for ending, words in (("de", german), ("en", english)):
            (texts / f"{split}.{ending}").write_text("".join(" ".join(words[k] for k in pick) + "\n" for pick in part))
    tables = {
        "task": "mt",
        "data": {
            "path": str(texts),
            "source": "de",
            "target": "en",
            "is_tokenized": True,
            "tokenizer": "word",
            "min_frequency": 1,
        },
        "model": {"embedding": 8, "hidden": 9, "layers": 2},
    }
    return _made(folder / "run", parse_recipe(tables | {"train": {"epochs": 1, "batch_size": 4}}, overrides))


def grow_(run, factor, token, bias):
    """Makes weights larger, so that words differ in probability, and gives one word a bias."""
    weights = {name: factor * tensor for name, tensor in load_file(run / "model.safetensors").items()}
    weights["softmax_bias"][token] = bias
    return _keep(run, weights)


def replace_weight_(run, name, tensor):
    """Takes it away if there is no tensor."""
    weights = load_file(run / "model.safetensors") | {name: tensor}
    return _keep(run, {name: tensor for name, tensor in weights.items() if tensor is not None})


def _keep(run, weights):
    save_file(weights, run / "model.safetensors", RunDirectory(run).training_facts())
    return run


def _made(path, recipe):
    task, tokenizers = prepare(recipe, Accelerator(cpu=True))
    run = RunDirectory.create(path, recipe, tokenizers)
    run.save_weights(task.model, {**task.facts, "steps": "7"})
    return path
