"""`g2lstm generate`: text from a language model."""

import sys
from typing import Annotated

import typer

from g2lstm.cli.options import Run


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add.")] = 50,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, above 1 wilder; 0 takes the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that sum to p.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Makes the draw repeatable.")] = None,
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Let the model say <unk>.")] = False,
) -> None:
    """Continues a prompt.

    Example: `g2lstm generate runs/ptb-small --prompt "the company said" --temperature 0.8`
    """
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.registry import LM
    from g2lstm.text.tokenize import UNK

    trained = load_as(LM, run)
    tokenizer = trained.tokenizer
    words = dict.fromkeys(prompt.split())
    if unknown := [word for word in words if word != UNK and tokenizer.encode(word) == [tokenizer.unk_id]]:
        print(f"g2lstm: not in the vocabulary, so read as {UNK}: {', '.join(unknown)}", file=sys.stderr)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    print(trained.generate(prompt, tokens=tokens, allow_unknown=allow_unknown, **options))  # type: ignore[arg-type]
