"""Looking at the gates: of one sentence, or counted over many; numbers and pictures."""

from g2lstm.look.histogram import GateHistogram
from g2lstm.look.reading import LayerReading, Reading, read_sentence
from g2lstm.look.record import Recording, record_split, watch
from g2lstm.look.statistics import GateStatistics

__all__ = [
    "GateHistogram",
    "GateStatistics",
    "LayerReading",
    "Reading",
    "Recording",
    "read_sentence",
    "record_split",
    "watch",
]
