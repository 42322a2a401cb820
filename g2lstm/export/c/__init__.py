"""Models as plain C."""
