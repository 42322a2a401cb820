"""The tasks: language modelling and translation."""
