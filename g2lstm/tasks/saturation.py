"""How binary the gates are: the share of their values below 0.1 or above 0.9, and coarse histograms."""

import torch

from g2lstm.nn.record import GateRecord

_GATES = ("input", "forget")
BINS = 20


def saturation(record: GateRecord | None) -> dict[str, float]:
    """Over the recorded calls, by LSTM and gate: {"saturation/layers.0/input": 0.31, ...}."""
    shares: dict[str, float] = {}
    for name, calls in (record or {}).items():
        for gate in _GATES:
            values = [value for call in calls for value in getattr(call, gate)]
            counts = [((value < 0.1) | (value > 0.9)).sum().item() for value in values]
            known = sum(value.isfinite().sum().item() for value in values)
            shares[f"saturation/{name}/{gate}"] = sum(counts) / max(known, 1)
    return shares


def histograms(record: GateRecord | None) -> dict[str, list[int]]:
    """Over the recorded calls of all LSTMs, for each gate how many values are in each twentieth from 0 to 1."""
    counts = {gate: torch.zeros(BINS, dtype=torch.int64) for gate in _GATES}
    for calls in (record or {}).values():
        for call in calls:
            for gate, count in counts.items():
                for value in getattr(call, gate):
                    codes = (value[value.isfinite()] * BINS).int().clamp_(max=BINS - 1)
                    count += torch.bincount(codes, minlength=BINS).cpu()
    return {gate: count.tolist() for gate, count in counts.items()}
