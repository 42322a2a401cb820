"""The run directory: what training writes and every other command reads."""
