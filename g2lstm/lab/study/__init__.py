"""The paper's tables and figures: each a list of runs, and tables over their run directories."""
