"""Looking at the gates: of one sentence, or counted over many; numbers and pictures."""

from g2lstm.look.counts import GateHistogram, GateStatistics, Recording, record_split, watch
from g2lstm.tasks.reading import LayerReading, Reading

__all__ = [
    "GateHistogram",
    "GateStatistics",
    "LayerReading",
    "Reading",
    "Recording",
    "record_split",
    "watch",
]
