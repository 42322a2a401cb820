"""`g2lstm translate`: translates standard input line by line."""

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import Beam, EvalGate, LengthPenalty, Run, print_json, put
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.tasks.mt.trained import Translation


def translate(
    run: Run,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="The maximum number of target tokens per line.")] = None,
    max_source: Annotated[int, typer.Option(min=1, help="Refuse a line with more source tokens than this.")] = 1000,
    n_best: Annotated[int, typer.Option(min=1, help="The number of translations per line.")] = 1,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show which source token each target token attended to.")
    ] = False,
    detokenize: Annotated[bool, typer.Option("--detokenize", help="Write plain text instead of tokens.")] = False,
    eval_gate: EvalGate = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per translation, one per line.")
    ] = False,
) -> None:
    """Translate each line of standard input, in order; an empty line stays empty.

    Tokenise the lines as the training text was. With --n-best, each output line holds the number of the input line, the
    score and the translation, separated by tabs. With --attention, indented lines show which source token each target
    token attended to most. With --json, each line is an object with all of this and the translation's rank.

    Example: `g2lstm translate runs/multi30k-small --beam 5 < in.de > out.en`
    """
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import MT

    trained = load_as(MT, run)
    lines = _standard_input()
    with bar() as show:
        found = trained.search(
            lines,
            beam=beam,
            length_penalty=length_penalty,
            max_length=max_length,
            max_source=max_source,
            n_best=n_best,
            with_attention=attention,
            as_text=detokenize,
            eval_gate=eval_gate,
            progress=partial(show, "translating"),
        )
    try:
        for number, each in enumerate(found, start=1):
            for rank, translation in enumerate(each, start=1):
                if as_json:
                    print_json({"line": number, "rank": rank, **_as_object(translation)}, ascii_only=False)
                    continue
                put(translation.text if n_best == 1 else f"{number}\t{translation.score:.4f}\t{translation.text}")
                if attention and translation.attention is not None:
                    width = max(map(len, translation.target))
                    for token, weights in zip(translation.target, translation.attention, strict=True):
                        place = int(weights.argmax())
                        put(f"  {token:<{width}}  {translation.source[place]} ({weights[place]:.2f})")
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has had enough; Python must not write again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _standard_input() -> list[str]:
    lines = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            lines.append(line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise G2Error(
                f"line {number} of the input is not UTF-8 text: byte 0x{byte:02x} at position {error.start + 1}; "
                "convert it first, for example with: iconv -f latin1 -t utf-8"
            ) from None
    return lines


def _as_object(translation: "Translation") -> dict[str, Any]:
    result = {name: getattr(translation, name) for name in ("text", "score", "log_probability")}
    if translation.attention is not None:
        weights = [[round(weight, 4) for weight in row] for row in translation.attention.tolist()]
        result |= {"source": translation.source, "target": translation.target, "attention": weights}
    return result
