"""How binary the gates are: the share of their values below 0.1 or above 0.9."""

from g2lstm.nn.record import GateRecord


def saturation(record: GateRecord | None) -> dict[str, float]:
    """Over the recorded calls, by LSTM and gate: {"saturation/layers.0/input": 0.31, ...}."""
    shares: dict[str, float] = {}
    for name, calls in (record or {}).items():
        for gate in ("input", "forget"):
            values = [value for call in calls for value in getattr(call, gate)]
            counts = [((value < 0.1) | (value > 0.9)).sum().item() for value in values]
            known = sum(value.isfinite().sum().item() for value in values)
            shares[f"saturation/{name}/{gate}"] = sum(counts) / max(known, 1)
    return shares
