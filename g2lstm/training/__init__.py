"""Training: optimisers and schedules, the loop, checkpoints."""
