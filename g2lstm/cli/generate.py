"""`g2lstm generate`: text from a language model."""

from typing import Annotated

import typer

from g2lstm.cli.shared import Run, put, tell


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="The beginning of the text.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="The number of tokens to add.")] = 50,
    temperature: Annotated[
        float, typer.Option(help="Below 1 is safer, above 1 wilder; 0 always takes the likeliest token.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw only from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw only from the likeliest tokens whose probabilities add up to P.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Make the draw repeatable.")] = None,
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Let the model produce <unk>.")] = False,
) -> None:
    """Continue a prompt with a language model.

    Example: `g2lstm generate runs/ptb-small --prompt "the company said" --temperature 0.8`
    """
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import LM
    from g2lstm.text.tokenize import UNK

    trained = load_as(LM, run)
    tokenizer = trained.tokenizer
    words = dict.fromkeys(prompt.split())
    if unknown := [word for word in words if word != UNK and tokenizer.encode(word) == [tokenizer.unk_id]]:
        tell(f"g2lstm: not in the vocabulary, so read as {UNK}: {', '.join(unknown)}")
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    put(trained.generate(prompt, tokens=tokens, allow_unknown=allow_unknown, **options))  # type: ignore[arg-type]
