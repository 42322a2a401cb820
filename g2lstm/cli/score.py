"""`g2lstm score`: how likely a translation model finds translations that others made."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import EvalGate, Run, print_json, put, tell, usable


def score(
    run: Run,
    source: Annotated[Path, typer.Argument(help="A text in the source language.", callback=usable)],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.", callback=usable)],
    eval_gate: EvalGate = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Score given translations: the log-probability of each target line, a tab, and its number of tokens.

    The end of the sentence counts as a token. Standard error says the perplexity of the whole target text. Both texts
    must be tokenised as the training text was.

    Example: `g2lstm score runs/multi30k-small in.de candidates.en`
    """
    import numpy as np

    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import MT

    trained = load_as(MT, run)
    with bar() as show:
        found, tokens = trained.log_probabilities(
            source, target, eval_gate=eval_gate, progress=partial(show, "scoring")
        )
    for number, (value, count) in enumerate(zip(found.tolist(), tokens.tolist(), strict=True), start=1):
        if as_json:
            print_json({"line": number, "log_probability": value, "tokens": count})
        else:
            put(f"{value:.4f}\t{count}")
    tell(f"perplexity {np.exp(-found.sum() / tokens.sum()):.2f}, {tokens.sum():,} tokens, {len(found):,} lines")
