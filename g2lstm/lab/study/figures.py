"""The paper's Figures 1 to 4, from a trained LSTM and a trained G² model of translation."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import BASELINE, METHODS, OURS, Plan, Scale, Study, methods_with_seeds
from g2lstm.look.examine import Findings, examine
from g2lstm.look.gallery import as_object
from g2lstm.look.pictures.histograms import draw_histograms, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_words
from g2lstm.look.pictures.style import save
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load_as
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.reading import Reading
from g2lstm.tasks.registry import MT

PAIRS = 10_000  # of the training set, as in the paper
_RECIPES = {"small": "multi30k-small", "paper": "iwslt14"}
_FIRST = "decoder.0"
_WORDS = range(8, 19)  # of a sentence for the heat map

Progress = Callable[[int, int], None]


def figures(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """The runs that the figures need: those of table 4, without the sharpened ones."""
    if seeds != 1:
        raise G2Error("the figures show one model of each kind, that of seed 1; leave --seeds out")
    recipe = _RECIPES[scale]
    plans = methods_with_seeds(recipe, (), series=recipe, seeds=seeds, overrides=overrides)
    wanted = tuple(plan for plan in plans if plan.row in (BASELINE, OURS))
    return Study("figures", f"Figures 1 to 4, {recipe}", wanted, ())


def draw_figures(
    plans: Sequence[Plan], out: Path, data_dir: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Draws them into out/figures-RECIPE, unless those of the same weights are there; the files.

    The gates are those of evaluation, soft, with the target given, and of the decoder's first layer in Figures 1, 3 and
    4, as in the paper; they are counted on pairs of the training set. Figure 4 shows a pair of the test set.

    Args:
        plans: of the study; they must be trained.
        out: the folder of all runs.
        data_dir: a folder that holds the named data sets.
        progress: called with the pairs done and those in all.
    """
    folder = out / f"figures-{plans[0].recipe}"
    names = ("figure1and3-histograms", "figure2-sigmoid", "figure4-words")
    files = [folder / f"{name}.{ending}" for name in names for ending in ("png", "svg")] + [folder / "gates.json"]
    for plan in plans:
        if results.training_of(out / plan.name) is None or not RunDirectory(out / plan.name).model_file.is_file():
            raise G2Error(f"the figures need {out / plan.name}, which is not trained; carry out the whole study")
    weights = [results.weights_of(out / plan.name) for plan in plans]
    if all(file.is_file() for file in files) and results.read(files[-1]).get("weights") == weights:
        return files
    found: dict[str, Findings] = {}
    pair: tuple[str, str] | None = None
    for plan in plans:
        trained = load_as(MT, out / plan.name)
        pair = pair or _pair(trained, data_dir)
        name = METHODS[plan.row]
        found[name] = examine(
            trained,
            name,
            split="train",
            samples=PAIRS,
            text=pair[0],
            target=pair[1],
            eval_gate="soft",
            data_dir=data_dir,
            progress=progress,
        )
    layers = {name: each.numbers["layers"] for name, each in found.items()}
    first = {name: [layer for layer in each if layer["name"] == _FIRST] for name, each in layers.items()}
    mode = next(iter(found.values())).numbers["mode"]
    readings = {name: _of_first_layer(each.reading) for name, each in found.items() if each.reading is not None}
    save(draw_histograms(first, mode, "first layer of the decoder"), folder / names[0])
    save(draw_sigmoid(layers, mode), folder / names[1])
    save(draw_words(readings, "target"), folder / names[2])
    with write_atomically(folder / "gates.json") as file:
        numbers = {**as_object(found), "weights": weights}
        file.write(json.dumps(numbers, ensure_ascii=False, allow_nan=False, indent=1).encode())
    return files


def _of_first_layer(reading: Reading) -> Reading:
    return replace(reading, layers=[layer for layer in reading.layers if layer.name == _FIRST])


def _pair(trained: TrainedTranslationModel, data_dir: Path | None) -> tuple[str, str]:
    """The first of the test set whose source is neither trivial nor too long for one look; else the first."""
    pairs = list(zip(*trained.split("test", data_dir), strict=True))
    return next((pair for pair in pairs if len(pair[0].split()) in _WORDS), pairs[0])
