"""`examine`: everything about the gates of trained models, as plain data, as gates.json and as pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.files import write_whole
from g2lstm.look.counts import Recording, record_reading, record_split
from g2lstm.look.pictures.histograms import draw_histograms, draw_layers, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_timelines, draw_units, draw_words
from g2lstm.look.pictures.style import save
from g2lstm.look.pictures.training import draw_history, gate_history
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Explained, GatesFile
from g2lstm.tasks.reading import GATES, Reading
from g2lstm.tasks.trained import Progress, Scoring, Trained, validation_files

SAMPLES = 200  # windows or sentence pairs, counted in a second or two


def count_some(trained: Trained, data_dir: Path | None = None) -> GatesFile | None:
    """Counts of the gates over some of the validation text; None if that text isn't here."""
    if not all(file.is_file() for file in validation_files(trained.recipe, data_dir)):
        return None
    counted = record_split(trained, "valid", samples=SAMPLES, data_dir=data_dir, explain=True)
    return GatesFile.model_validate(_numbers(counted))


def _numbers(counted: Recording) -> dict[str, Any]:
    """What was counted, as plain data."""
    numbers = {"mode": counted.mode, "data": counted.data, "layers": counted.statistics.summary()}
    return numbers | {"explained": [one.model_dump() for one in counted.explained]}


@dataclass(frozen=True)
class Findings:
    """What was found about one run."""

    numbers: dict[str, Any]  # everything that goes into gates.json
    metrics: list[dict[str, Any]]  # the lines of its metrics.jsonl
    reading: Reading | None = None  # how the model read the text, if one was given


def examine(
    trained: Trained,
    name: str,
    *,
    split: str | None = "valid",
    samples: int = 10_000,
    text: str | None = None,
    target: str | None = None,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
    hard_score: bool = False,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Count the gates of a trained model over a split of its own data, and read a text.

    Without a `split`, only the gates of the text are counted. The decoder reads `target`, if it is given, instead of
    its own translation; `hard_score` also scores the split with hard and soft gates. `name` is the run's, for people;
    all else is as for `record_split`.
    """
    mode: dict[str, Any] = {"eval_gate": eval_gate, "training": training, "seed": seed}
    reading = None if text is None else trained.read(text, target=target, **mode)
    if split is not None:
        recording = record_split(
            trained, split, samples=samples, data_dir=data_dir, explain=True, progress=progress, **mode
        )
    elif reading is not None and not hard_score:
        recording = record_reading(trained, reading)
    else:
        raise G2Error(
            "without a split there is nothing to score, only a text to read; give a text, and leave out hard_score"
        )
    numbers: dict[str, Any] = {
        "run": name,
        "task": trained.recipe.task,
        "method": trained.recipe.model.method,
        "training": training,
        **_numbers(recording),
    }
    if split is not None and hard_score:
        numbers["scores"] = score_by_gate(trained, split, samples=samples, data_dir=data_dir, progress=progress)
    if reading is not None:
        numbers["text"] = _sentence(reading)
    return Findings(numbers, trained.run.metrics(), reading)


def _sentence(reading: Reading) -> dict[str, Any]:
    """A reading as plain data; the gates are averaged over units."""
    layers = [
        {key: getattr(layer, key) for key in ("name", "direction", "title", "side")}
        | {"means": {gate: getattr(layer, gate).mean(1).tolist() for gate in GATES}}
        for layer in reading.layers
    ]
    numbers: dict[str, Any] = {"tokens": reading.tokens, "unknown": reading.unknown, "layers": layers}
    if "text" in reading.tokens:
        numbers["next_words"] = reading.next_words
    elif reading.attention is not None:  # otherwise the translation was given
        numbers |= {"translation": reading.translation, "produced": reading.produced}
        numbers["attention"] = reading.attention.tolist()
    return numbers


def score_by_gate(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a split, or its first samples, with soft and hard gates: {"metric": ..., "soft": ..., ...}."""
    values = {
        gate: trained.score_split(Scoring(split, gate, samples=samples, data_dir=data_dir), progress).values
        for gate in ("soft", "hard")
    }
    metric, soft = trained.metric.name, values["soft"]
    counted: dict[str, Any] = {unit: soft[unit] for unit in ("tokens", "sentences") if unit in soft}
    return {"metric": metric, **{gate: each[metric] for gate, each in values.items()}, "split": split, **counted}


def named_runs(paths: Sequence[Path]) -> dict[str, RunDirectory]:
    """Runs by the names of their directories, or by their paths where two have the same name."""
    resolved = [path.resolve() for path in paths]
    if twice := [path for path, place in zip(paths, resolved, strict=True) if resolved.count(place) > 1]:
        raise G2Error(f"the run {twice[0]} is given twice; give it once")
    names = [place.name for place in resolved]
    keys = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    runs = {key: RunDirectory.open(path) for key, path in zip(keys, paths, strict=True)}
    for run in runs.values():
        run.training_facts()  # raises if there is no model
    return runs


def write_gallery(folder: Path, runs: Mapping[str, Findings]) -> list[Path]:
    """Write gates.json and the pictures of some runs, in their order, into a folder; returns the files written."""
    layers = {name: each.numbers["layers"] for name, each in runs.items()}
    modes = " / ".join(dict.fromkeys(each.numbers["mode"] for each in runs.values()))
    files = [folder / "gates.json"]
    write_whole(files[0], json.dumps(as_object(runs), ensure_ascii=False, allow_nan=False, indent=1).encode())
    files += save(draw_histograms(layers, modes), folder / "histograms")
    files += save(draw_layers(layers, modes), folder / "layers")
    files += save(draw_sigmoid(layers, modes), folder / "sigmoid")
    histories = {name: history for name, each in runs.items() if (history := gate_history(each.metrics)) is not None}
    if histories:
        files += save(draw_history(histories), folder / "history")
    readings = {name: each.reading for name, each in runs.items() if each.reading is not None}
    for side in dict.fromkeys(side for each in readings.values() for side in each.tokens):
        ending = "" if side == "text" else f"-{side}"
        files += save(draw_words(readings, side), folder / f"words{ending}")
        found = {name: GatesFile.model_validate(runs[name].numbers) for name in readings}
        units = {name: explained_on(side, readings[name], found[name]) for name in readings}
        shown = {name: reading for name, reading in readings.items() if units[name]}
        if shown:
            files += save(draw_timelines(shown, side, units), folder / f"timelines{ending}")
    for title, side in dict.fromkeys((layer.title, layer.side) for each in readings.values() for layer in each.layers):
        own = {name: layer for name, reading in readings.items() for layer in reading.layers if layer.title == title}
        words = [readings[name].tokens[side] for name in own]
        slug = title.replace(",", "").replace(" ", "-")
        files += save(draw_units(own, words, modes), folder / f"units-{slug}")
    return files


def explained_on(side: str, reading: Reading, found: GatesFile | None) -> list[Explained]:
    """Those of the explained units that read one side of a text."""
    own = {(layer.name, layer.direction): layer.input.shape[1] for layer in reading.layers if layer.side == side}
    units = [] if found is None else found.explained
    return [one for one in units if one.unit < own.get((one.name, one.direction), 0) and one.gate in GATES]


def as_object(runs: Mapping[str, Findings]) -> dict[str, Any]:
    """The numbers of one run as they are; several runs become {"runs": [...]}."""
    numbers = [each.numbers for each in runs.values()]
    return numbers[0] if len(numbers) == 1 else {"runs": numbers}
