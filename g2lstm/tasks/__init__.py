"""The tasks: language modeling and translation."""
