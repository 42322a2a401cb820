"""Compression: weights in few bits or of low rank, smaller on disk and faster to run."""
