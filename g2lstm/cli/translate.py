"""`g2lstm translate`: standard input, line by line, into another language."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress as Bar

from g2lstm.cli.options import EvalGate, Json, Run
from g2lstm.cli.output import error_console, progress_columns
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.runs.translation import Translation


def translate(
    run: Run,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Scores are divided by length to this power.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Target tokens at most.")] = None,
    n_best: Annotated[int, typer.Option(min=1, help="How many translations of each line.")] = 1,
    attention: Annotated[bool, typer.Option("--attention", help="Show where each target token looked.")] = False,
    detokenize: Annotated[bool, typer.Option("--detokenize", help="Write as people do, not in tokens.")] = False,
    eval_gate: EvalGate = None,
    as_json: Json = False,
) -> None:
    """Translates each line of standard input; the order is kept, and an empty line stays one.

    Lines are to be tokenised as the training text was. With --n-best every line is: number, score, translation, with
    tabs between. With --json every line is one object, which has all of that and the attention if asked for.

    Example: `g2lstm translate runs/multi30k-small --beam 5 < in.de > out.en`
    """
    from g2lstm.runs.trained import load_translation_model

    trained = load_translation_model(run)
    lines = _standard_input()
    with Bar(*progress_columns(), console=error_console(), transient=True) as bar:
        task = bar.add_task("translating", total=len(lines))
        found = trained.search(
            lines,
            beam=beam,
            length_penalty=length_penalty,
            max_length=max_length,
            n_best=n_best,
            with_attention=attention,
            as_text=detokenize,
            eval_gate=eval_gate,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for number, each in enumerate(found, start=1):
        for translation in each:
            if as_json:
                print(json.dumps(_as_object(number, translation), ensure_ascii=False))
                continue
            print(translation.text if n_best == 1 else f"{number}\t{translation.score:.4f}\t{translation.text}")
            if attention:
                print("\n".join(_alignment(translation)))


def _standard_input() -> list[str]:
    lines = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            lines.append(line.decode("utf-8").removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise G2Error(
                f"line {number} of the input is not UTF-8 text: byte 0x{byte:02x} at place {error.start + 1}; convert "
                "it first, for example with: iconv -f latin1 -t utf-8"
            ) from None
    return lines


def _alignment(translation: "Translation") -> list[str]:
    """For each target token the source token that it looked at most, and how much."""
    if translation.attention is None:
        return []
    width = max(len(token) for token in translation.target)
    rows = []
    for token, weights in zip(translation.target, translation.attention, strict=True):
        share, place = weights.max(dim=-1)
        rows.append(f"  {token:<{width}}  {translation.source[int(place)]} ({share:.2f})")
    return rows


def _as_object(number: int, translation: "Translation") -> dict[str, object]:
    result: dict[str, object] = {
        "line": number,
        "text": translation.text,
        "score": translation.score,
        "log_probability": translation.log_probability,
    }
    if translation.attention is not None:
        weights = [[round(weight, 4) for weight in row] for row in translation.attention.tolist()]
        result |= {"source": translation.source, "target": translation.target, "attention": weights}
    return result
