"""The files that `g2lstm gates` writes: gates.json and the pictures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from g2lstm.files import write_atomically
from g2lstm.look.examine import Findings
from g2lstm.look.pictures.histograms import draw_histograms, draw_layers, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_units, draw_words
from g2lstm.look.pictures.style import save
from g2lstm.look.pictures.training import draw_history, draw_saturation, gate_history, has_saturation
from g2lstm.tasks.reading import Reading


def write_gallery(folder: Path, runs: Mapping[str, Findings]) -> list[Path]:
    """Write gates.json and the pictures into a folder; the files written.

    Args:
        folder: created if necessary.
        runs: findings by run name, in the order in which to show them.
    """
    layers = {name: each.numbers["layers"] for name, each in runs.items()}
    modes = " / ".join(dict.fromkeys(each.numbers["mode"] for each in runs.values()))
    files = [folder / "gates.json"]
    with write_atomically(files[0]) as file:
        file.write(json.dumps(as_object(runs), ensure_ascii=False, allow_nan=False, indent=1).encode())
    files += save(draw_histograms(layers, modes), folder / "histograms")
    files += save(draw_layers(layers, modes), folder / "layers")
    files += save(draw_sigmoid(layers, modes), folder / "sigmoid")
    metrics = {name: each.metrics for name, each in runs.items() if has_saturation(each.metrics)}
    if metrics:
        files += save(draw_saturation(metrics), folder / "training")
    histories = {name: history for name, each in runs.items() if (history := gate_history(each.metrics)) is not None}
    if histories:
        files += save(draw_history(histories), folder / "history")
    readings = {name: each.reading for name, each in runs.items() if each.reading is not None}
    if readings:
        files += _sentence_pictures(folder, readings, modes)
    return files


def as_object(runs: Mapping[str, Findings]) -> dict[str, Any]:
    """The numbers of a single run as they are, of several runs as {"runs": [...]}."""
    numbers = [each.numbers for each in runs.values()]
    return numbers[0] if len(numbers) == 1 else {"runs": numbers}


def _sentence_pictures(folder: Path, readings: Mapping[str, Reading], mode: str) -> list[Path]:
    files = []
    first = next(iter(readings.values()))
    for side in first.tokens:
        name = "words" if side == "text" else f"words-{side}"
        files += save(draw_words(readings, side), folder / name)
    for title, side in dict.fromkeys((layer.title, layer.side) for each in readings.values() for layer in each.layers):
        layers = {name: layer for name, reading in readings.items() for layer in reading.layers if layer.title == title}
        words = [readings[name].tokens[side] for name in layers]
        slug = title.replace(",", "").replace(" ", "-")
        files += save(draw_units(layers, words, mode), folder / f"units-{slug}")
    return files
