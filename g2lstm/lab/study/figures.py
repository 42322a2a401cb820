"""The paper's Figures 1 to 4, from a translation model with an LSTM and one with G²."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import METHODS, PlannedRun
from g2lstm.look.examine import Findings, as_object, examine
from g2lstm.look.pictures.histograms import draw_histograms, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_words
from g2lstm.look.pictures.style import save
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Record
from g2lstm.runs.trained import load_as
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.reading import Reading
from g2lstm.tasks.recipes import MT
from g2lstm.tasks.trained import Progress

PAIRS = 10_000  # of the training set, as in the paper
_FIRST = "decoder.0"
_WORDS = range(8, 19)  # in a sentence for the heat map


class _Drawn(Record):
    """What gates.json says about the figures beside it."""

    weights: list[str | None]


def draw_figures(
    runs: Sequence[PlannedRun], out: Path, data_dir: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Draws the figures into out/figures-RECIPE, unless it holds those of the same weights; returns the files.

    The gates are soft gates in evaluation, given the target, and counted on pairs of the training set. As in the
    paper, Figures 1, 3 and 4 show the decoder's first layer. Figure 4 shows a pair of the test set.

    Args:
        runs: of the study, all trained.
        out: the folder for all runs.
        data_dir: a folder that holds the named data sets.
        progress: called with the number of pairs done and the total.
    """
    folder = out / f"figures-{runs[0].recipe}"
    names = ("figure1and3-histograms", "figure2-sigmoid", "figure4-words")
    files = [folder / f"{name}.{ending}" for name in names for ending in ("png", "svg")] + [folder / "gates.json"]
    for run in runs:
        if results.training_of(out / run.name) is None or not RunDirectory(out / run.name).model_file.is_file():
            raise G2Error(f"the figures need {out / run.name}, which is not trained; carry out the whole study")
    weights = [results.weights_of(out / run.name) for run in runs]
    if all(file.is_file() for file in files) and results.read(files[-1], _Drawn).weights == weights:
        return files
    found: dict[str, Findings] = {}
    pair: tuple[str, str] | None = None
    for run in runs:
        trained = load_as(MT, out / run.name)
        pair = pair or _pair(trained, data_dir)
        name = METHODS[run.row]
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
    """The first pair of the test set whose source is neither trivial nor too long for one picture; else the first."""
    pairs = list(zip(*trained.split("test", data_dir), strict=True))
    return next((pair for pair in pairs if len(pair[0].split()) in _WORDS), pairs[0])
