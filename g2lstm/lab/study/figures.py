"""The paper's Figures 1 to 4, from translation models with an LSTM, with G² and with binary gates."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.lab.study.jobs import Job
from g2lstm.lab.study.plan import METHODS
from g2lstm.look.examine import as_object, examine
from g2lstm.look.pictures.histograms import draw_histograms, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_words
from g2lstm.look.pictures.style import save
from g2lstm.runs.compressed import write_json
from g2lstm.runs.trained import load_as
from g2lstm.tasks.recipes import MT
from g2lstm.tasks.trained import Progress

PAIRS = 10_000  # of the training set, as in the paper
_FIRST = "decoder.0"
_WORDS = range(8, 19)  # in a sentence for the heat map


def draw_figures(jobs: Sequence[Job], data_dir: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Draws the figures into figures-RECIPE beside the runs, unless they are newer than the weights; returns the files.

    The gates are those of evaluation, given the target, and counted on pairs of the training set. As in the
    paper, Figures 1, 3 and 4 show the decoder's first layer. Figure 4 shows a pair of the test set: the first whose
    source is neither trivial nor too long for one picture.
    """
    for job in jobs:
        if job.training is None or not (job.path / "model.safetensors").is_file():
            raise G2Error(f"the figures need {job.path}, which is not trained; carry out the whole study")
    folder = jobs[0].path.with_name(f"figures-{jobs[0].run.recipe}")
    names = ("figure1and3-histograms", "figure2-sigmoid", "figure4-words")
    files = [folder / f"{name}.{ending}" for name in names for ending in ("png", "svg")] + [folder / "gates.json"]
    changed = max((job.path / "model.safetensors").stat().st_mtime for job in jobs)
    if all(file.is_file() and file.stat().st_mtime > changed for file in files):
        return files
    models = {METHODS[job.run.row].title: load_as(MT, job.path) for job in jobs}
    pairs = list(zip(*next(iter(models.values())).split("test", data_dir), strict=True))
    source, target = next((pair for pair in pairs if len(pair[0].split()) in _WORDS), pairs[0])
    how = {"split": "train", "samples": PAIRS, "text": source, "target": target}
    found = {
        name: examine(trained, name, data_dir=data_dir, progress=progress, **how)  # type: ignore[arg-type]
        for name, trained in models.items()
    }
    layers = {name: each.numbers["layers"] for name, each in found.items()}
    first = {name: [layer for layer in each if layer["name"] == _FIRST] for name, each in layers.items()}
    readings = {
        name: replace(each.reading, layers=[layer for layer in each.reading.layers if layer.name == _FIRST])
        for name, each in found.items()
        if each.reading is not None
    }
    mode = next(iter(found.values())).numbers["mode"]
    save(draw_histograms(first, mode, "first layer of the decoder"), folder / names[0])
    save(draw_sigmoid(layers, mode), folder / names[1])
    save(draw_words(readings, "target"), folder / names[2])
    write_json(folder / "gates.json", as_object(found))
    return files
