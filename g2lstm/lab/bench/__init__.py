"""Measurements: ratios to named peers, interleaved in one run."""
