"""The laboratory: studies and benchmarks. Nothing imports it but the command line."""
