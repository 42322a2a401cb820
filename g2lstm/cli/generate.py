"""`g2lstm generate`: text from a language model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.shared import MAX_INPUT, Run, not_utf8, open_quickly, put, tell
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.tasks.lm.trained import TrainedLanguageModel


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="The beginning of the text; - reads it from standard input.")] = "",
    tokens: Annotated[int, typer.Option(min=1, max=2**63 - 1, help="The number of tokens to add.")] = 50,
    temperature: Annotated[
        float,
        typer.Option(
            help="Below 1, likely tokens become likelier; above 1, unlikely ones do. 0 always takes the likeliest."
        ),
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw only from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw only from the likeliest tokens whose probabilities add up to P.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Make the draw repeatable.")] = None,
    allow_unknown: Annotated[bool, typer.Option("--allow-unknown", help="Let the model produce <unk>.")] = False,
    detokenize: Annotated[
        str | None,
        typer.Option(metavar="de|en", help="Join what a tokenizer split, by the rules of this language."),
    ] = None,
) -> None:
    """Continue a prompt with a language model.

    Example: `g2lstm generate runs/ptb-small --prompt "the company said" --temperature 0.8`
    """
    from g2lstm.runtime.detokenize import check_language
    from g2lstm.runtime.detokenize import detokenize as plain
    from g2lstm.runtime.language import LanguageModel
    from g2lstm.text.tokenize import UNK

    if detokenize is not None:
        check_language(detokenize)
    if prompt == "-":
        given = sys.stdin.buffer.read(MAX_INPUT + 1)
        if len(given) > MAX_INPUT:
            raise G2Error(f"the prompt has more than {MAX_INPUT:,} bytes; give only its end")
        try:
            prompt = given.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise G2Error(f"the prompt {not_utf8(error)}") from None
    trained = open_quickly(run, LanguageModel) or _with_torch(run)
    tokenizer = trained.tokenizer
    words = dict.fromkeys(prompt.split())
    if unknown := [word for word in words if word != UNK and tokenizer.encode(word) == [tokenizer.unk_id]]:
        tell(f"g2lstm: not in the vocabulary, so read as {UNK}: {', '.join(unknown)}")
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    text = trained.generate(prompt, tokens=tokens, allow_unknown=allow_unknown, **options)  # type: ignore[arg-type]
    put(text if detokenize is None else "\n".join(plain(line, detokenize) for line in text.split("\n")))


def _with_torch(run: Path) -> "TrainedLanguageModel":
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import LM

    return load_as(LM, run)
