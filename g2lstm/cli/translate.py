"""`g2lstm translate`: translates standard input, and answers as lines come."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import (
    MAX_INPUT,
    Beam,
    EvalGate,
    LengthPenalty,
    Run,
    not_utf8,
    open_quickly,
    print_json,
    put,
    tell,
)
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.runtime.translation import TextTranslation, Translation

_FEW = 16  # lines, which NumPy translates before torch is imported
_READ_AT_ONCE = 1 << 16  # bytes: enough lines to fill batches with sentences of similar length


def translate(
    run: Run,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    min_length: Annotated[int, typer.Option(min=0, max=1000, help="The minimum number of target tokens per line.")] = 0,
    max_length: Annotated[int | None, typer.Option(min=1, help="The maximum number of target tokens per line.")] = None,
    max_source: Annotated[int, typer.Option(min=1, help="Refuse a line with more source tokens than this.")] = 1000,
    n_best: Annotated[int, typer.Option("--n-best", "--nbest", min=1, help="The number of translations per line.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Write the score before each translation.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Write which words belong together after each translation: 0-0 1-2.")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show which source token each target token attended to.")
    ] = False,
    detokenize: Annotated[bool, typer.Option("--detokenize", help="Write plain text instead of tokens.")] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations at random instead of searching for the likeliest.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="With --sample: below 1, likely tokens become likelier; above 1, unlikely ones do.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="With --sample: make the draw repeatable.")
    ] = None,
    eval_gate: EvalGate = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per translation, one per line.")
    ] = False,
) -> None:
    """Translate each line of standard input, in order, as it comes; an empty line stays empty.

    Tokenise the lines as the training text was. A line that can't be translated gives an empty line, a message on
    standard error, and exit code 2 at the end; a translation that reaches its length limit gives a message.

    Columns are separated by tabs: with --n-best the number of the input line and the score come first, with --scores
    the score, and --alignments adds pairs of source and target words, counted from 0. With --attention,
    indented lines show which source token each target token attended to most. With --json, each line is an object with
    all of this and the translation's rank.

    With --sample, translations are drawn at random, as back-translation needs them: --n-best says how many per line,
    and --beam has no effect. With --seed, a line gets the same translation wherever it stands.

    Example: `g2lstm translate runs/multi30k-small --beam 5 < in.de > out.en`
    """
    options = {
        "beam": beam,
        "length_penalty": length_penalty,
        "min_length": min_length,
        "max_length": max_length,
        "n_best": n_best,
        "with_attention": attention or alignments,
        "as_text": detokenize,
    }
    if sample:
        options |= {"sample": True, "temperature": temperature, "seed": seed}
    elif temperature != 1.0 or seed is not None:
        raise G2Error("--temperature and --seed are for drawing at random; add --sample")
    translator = _Translator(run, eval_gate, max_source, options)
    try:
        for number, found in translator.answers():
            for rank, one in enumerate(found, start=1):
                if isinstance(one, str):
                    tell(f"g2lstm: line {number} {one}")
                if as_json:
                    about = {"text": "", "error": one} if isinstance(one, str) else _as_object(one, attention)
                    print_json({"line": number, "rank": rank, **about}, ascii_only=False)
                    continue
                put(_columns(number, one, n_best > 1, scores, alignments))
                if attention and not isinstance(one, str):
                    _show_attention(one)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has had enough; Python must not write again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if translator.refused:
        tell(f"g2lstm: {translator.refused:,} line(s) could not be translated; their output is empty")
        raise typer.Exit(2)


class _Translator:
    """Translates groups of lines as they come: without torch, unless there is no kernel and a group is large."""

    def __init__(self, run: Path, eval_gate: str | None, max_source: int, options: dict[str, Any]) -> None:
        self._run, self._eval_gate, self._max_source, self._options = run, eval_gate, max_source, options
        self._model: TextTranslation | None = None
        self._is_quick = False
        self.refused = 0

    def answers(self) -> Iterator[tuple[int, "list[Translation | str]"]]:
        """The number of each line with its translations, or with what is wrong with it."""
        number = 0
        self._opened(0)  # what is wrong with the run is said before anything is read
        for group in _groups():
            for found in self._translate(number + 1, group):
                number += 1
                yield number, found
            sys.stdout.flush()

    def _translate(self, first: int, group: list[bytes]) -> "list[list[Translation | str]]":
        from g2lstm.runtime.beam import too_long

        model = self._opened(len(group))
        lines: dict[int, str] = {}
        results: list[list[Translation | str]] = [[] for _ in group]
        for place, line in enumerate(group):
            try:
                if len(line) > MAX_INPUT:
                    raise G2Error(f"has more than {MAX_INPUT:,} bytes; split it into sentences")
                text = line.decode("utf-8-sig" if first + place == 1 else "utf-8").removesuffix("\r")
                length = len(model.source.encode(model.cleaned(text)))
                if length > self._max_source:
                    raise G2Error(too_long(length, self._max_source))
                lines[place] = text
            except UnicodeDecodeError as error:
                results[place] = [not_utf8(error)]
            except G2Error as error:
                results[place] = [str(error)]
        self.refused += len(group) - len(lines)
        gate: dict[str, Any] = {} if self._is_quick else {"eval_gate": self._eval_gate}
        with bar() as show:
            progress = partial(show, f"translating from line {first:,}")
            found = model.search([*lines.values()], **self._options, **gate, max_source=None, progress=progress)
        for place, each in zip(lines, found, strict=True):
            results[place] = [*each]
            if each[0].is_cut:
                tell(
                    f"g2lstm: line {first + place} was cut off after {len(each[0].target_ids)} target tokens; "
                    "raise --max-length if its translation is not complete"
                )
        return results

    def _opened(self, count: int) -> "TextTranslation":
        from g2lstm.compression.kernel import available
        from g2lstm.runtime.translation import TranslationModel

        is_slow = count > _FEW and not available()
        if self._model is None and not is_slow:
            self._model = open_quickly(self._run, TranslationModel, self._eval_gate)
            self._is_quick = self._model is not None
        if self._model is None or (self._is_quick and is_slow):
            from g2lstm.runs.trained import load_as
            from g2lstm.tasks.recipes import MT

            self._model, self._is_quick = load_as(MT, self._run), False
        return self._model


def _groups() -> Iterator[list[bytes]]:
    """The lines that have come since the last ones: of a file many, from a person one.

    A line that is too long comes as soon as that is known, and what is left of it is skipped.
    """
    line, is_skipped = b"", False
    while chunk := sys.stdin.buffer.read1(_READ_AT_ONCE):  # type: ignore[union-attr]
        *ended, rest = chunk.split(b"\n")
        if ended:
            ended[0] = line + ended[0]
            if group := ended[is_skipped:]:
                yield group
            line, is_skipped = b"", False
        if not is_skipped:
            line += rest
        if len(line) > MAX_INPUT:
            yield [line]
            line, is_skipped = b"", True
    if line:
        yield [line]


def _columns(number: int, one: "Translation | str", has_number: bool, has_score: bool, has_alignment: bool) -> str:
    """A line of output; all but its number is empty if the line can't be translated."""
    columns = [str(number)] * has_number
    if isinstance(one, str):
        return "\t".join([*columns, *[""] * (1 + (has_number or has_score) + has_alignment)])
    columns += [f"{one.score:.4f}"] * (has_number or has_score) + [one.text]
    columns += [" ".join(f"{source}-{target}" for source, target in one.alignment or [])] * has_alignment
    return "\t".join(columns)


def _show_attention(translation: "Translation") -> None:
    if translation.attention is None:
        return
    width = max(map(len, translation.target))
    for token, weights in zip(translation.target, translation.attention, strict=True):
        place = int(weights.argmax())
        put(f"  {token:<{width}}  {translation.source[place]} ({weights[place]:.2f})")


def _as_object(translation: "Translation", with_attention: bool) -> dict[str, Any]:
    result = {name: getattr(translation, name) for name in ("text", "score", "log_probability")}
    result |= {"is_cut": True} if translation.is_cut else {}
    if translation.attention is not None:
        result["alignment"] = translation.alignment
        if with_attention:
            weights = [[round(weight, 4) for weight in row] for row in translation.attention.tolist()]
            result |= {"source": translation.source, "target": translation.target, "attention": weights}
    return result
