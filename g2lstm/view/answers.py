"""Readings as the JSON objects that the page understands."""

from typing import Any

import numpy as np

from g2lstm.tasks.reading import GATES, LayerReading, Reading

LOW, HIGH = 0.1, 0.9  # beyond these a gate counts as closed or open


def reading_answer(reading: Reading) -> dict[str, Any]:
    """Everything about a sentence but the single units: for each layer and word the means over the units.

    `decided` is the share of units below 0.1 or above 0.9.
    """
    answer: dict[str, Any] = {
        "mode": reading.mode,
        "tokens": reading.tokens,
        "unknown": reading.unknown,
        "layers": [_layer(layer) for layer in reading.layers],
    }
    if reading.next_words:
        answer["next_words"] = [[word, _rounded(share)] for word, share in reading.next_words]
    if reading.attention is not None:
        answer |= {"translation": reading.translation, "produced": reading.produced}
        answer["attention"] = _numbers(reading.attention)
    return answer


def units_answer(reading: Reading, layer: int, position: int) -> dict[str, Any]:
    """The gates of all units of one layer at one word."""
    found = reading.layers[layer]
    return {
        "token": reading.tokens[found.side][position],
        "values": {gate: _numbers(getattr(found, gate)[position]) for gate in GATES},
    }


def unit_answer(reading: Reading, layer: int, unit: int) -> dict[str, Any]:
    """The gates of one unit of one layer at all words."""
    found = reading.layers[layer]
    return {
        "tokens": reading.tokens[found.side],
        "values": {gate: _numbers(getattr(found, gate)[:, unit]) for gate in GATES},
    }


def _layer(layer: LayerReading) -> dict[str, Any]:
    values = {gate: getattr(layer, gate) for gate in GATES}
    return {
        "name": layer.name,
        "title": layer.title,
        "side": layer.side,
        "direction": layer.direction,
        "units": layer.input.shape[1],
        "means": {gate: _numbers(value.mean(axis=1)) for gate, value in values.items()},
        "decided": {gate: _numbers(((value < LOW) | (value > HIGH)).mean(axis=1)) for gate, value in values.items()},
    }


def _numbers(values: Any) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), 6).tolist()


def _rounded(value: float) -> float:
    return round(float(value), 6)
