"""Compression that is real: weights in few bits or of low rank, smaller on disk and faster to run."""
