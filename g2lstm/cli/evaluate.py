"""`g2lstm eval`, `score` and `verify`: scores of a run, of translations that others made, and whether scores hold."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import (
    UNKNOWN,
    Beam,
    DataDir,
    EvalGate,
    Json,
    LengthPenalty,
    Run,
    console,
    print_json,
    put,
    say,
    table,
    tell,
    usable,
)
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.tasks.trained import Metric


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="The split to score: valid, test or train.")] = "valid",
    cache: Annotated[bool, typer.Option("--cache", help="Mix in the continuous cache pointer.")] = False,
    cache_window: Annotated[int | None, typer.Option(min=1, help="How many steps back the cache reaches.")] = None,
    cache_theta: Annotated[float | None, typer.Option(help="How sharply the cache prefers similar states.")] = None,
    cache_lambda: Annotated[float | None, typer.Option(help="The share of probability that the cache gets.")] = None,
    tune_cache: Annotated[
        bool, typer.Option("--tune-cache", help="Tune the cache settings on the validation set.")
    ] = False,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    source: Annotated[
        Path | None, typer.Option(help="A file to translate, instead of a split.", callback=usable)
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its human translation.", callback=usable)] = None,
    save: Annotated[Path | None, typer.Option(help="Write the translations to this file.", callback=usable)] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Another run to compare with on the same text; repeatable.", metavar="RUN", callback=usable),
    ] = None,
    eval_gate: EvalGate = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Score a run: a language model by its perplexity on a text read as one stream, a translation model by BLEU.

    Compare perplexities only between models with the same tokenizer; bits per character compare any models that know
    the same words.

    The cache options are for language models; --beam, --length-penalty, --source, --reference and --save are for
    translation. The run's result.json keeps the scores of splits, but not of other files.

    With --against, another run reads the same text in the same way, and a paired bootstrap over its sentences says
    whether the difference could be chance; another seed of training may still differ by more.

    Examples: `g2lstm eval runs/ptb-small --split test --cache`, `g2lstm eval runs/multi30k-small --split test`,
    `g2lstm eval runs/a --against runs/b --source in.de --reference in.en`
    """
    from g2lstm.runs.trained import load, score
    from g2lstm.tasks.trained import Scoring

    how = Scoring(
        split,
        eval_gate,
        cache=cache,
        cache_window=cache_window,
        cache_theta=cache_theta,
        cache_lambda=cache_lambda,
        tune_cache=tune_cache,
        beam=beam,
        length_penalty=length_penalty,
        source=source,
        reference=reference,
        save=save,
        by_sentence=bool(against),
        data_dir=data_dir,
    )
    trained = load(run)
    trained.check_scoring(how)
    trained.run.results()  # if they can't be read, better to know before the work than after
    others = [load(other) for other in against or ()]
    for other in others:
        if other.task != trained.task:
            raise G2Error(
                f"{run} is a {trained.title}, but {other.run.path} is a {other.title}; compare runs of the same kind"
            )
        other.check_scoring(how)
    with bar() as show:
        result = score(trained, how, partial(show, "scoring"))
        rest = replace(how, save=None)
        found = [score(other, rest, partial(show, f"scoring {other.run.path}")) for other in others]
    sums = result.pop("by_sentence", None)
    differences = [_difference(trained.metric, result, sums, one) for one in found]
    if differences:
        result["against"] = [
            {"run": str(other.run.path), **each} for other, each in zip(others, differences, strict=True)
        ]
    if as_json:
        print_json(result)
    elif "perplexity" in result:
        bits, unknown = f"{result['bits_per_character']:.3f}", f"{result['unknown_share']:.1%}"
        say(
            f"{run}: perplexity {result['perplexity']:.2f} on {split}, {bits} bits per character, "
            f"{result['tokens']:,} tokens, {unknown} of them unknown words"
        )
    else:
        scores = f"BLEU {result['bleu']:.2f}, chrF {result['chrf']:.2f}"
        on = split if source is None else source
        say(f"{run}: {scores} on {on}, {result['sentences']:,} sentences")
    if not as_json:
        for each in result.get("against", ()):
            say(_in_words(run, each, trained.metric))
        signatures = {
            "trained_on": "trained on ",
            "bleu_signature": "BLEU|",
            "chrf_signature": "chrF2|",
            "signature": "",
        }
        for name, words in signatures.items():
            if name in result:
                say(f"{words}{result[name]}")
    if source is None:
        trained.run.add_result({key: value for key, value in result.items() if key != "against"})


def _difference(metric: "Metric", one: dict[str, Any], sums: Any, other: dict[str, Any]) -> dict[str, Any]:
    """How much the first score is above the other, and how much of that the choice of sentences explains."""
    import numpy as np

    from g2lstm.lab.study.table import LEAST, Term, compared

    name, is_language = metric.name, "perplexity" in one
    if one["data"].partition("/")[2] != other["data"].partition("/")[2]:  # the hashes of the texts
        raise G2Error("the runs have different texts; give one with --source and --reference, or compare other runs")
    if is_language and one["tokenizers"] != other["tokenizers"]:
        raise G2Error(
            "the runs have different tokenizers, so their perplexities can't be compared; compare their bits "
            "per character, which `g2lstm eval` prints for each"
        )
    both = [np.asarray(each, np.float64) for each in (sums, other["by_sentence"])]
    values = {name: other[name], "difference": one[name] - other[name], "sentences": len(both[0])}
    if len(both[0]) < LEAST:
        return values
    found = compared([Term(1.0, [both[0]]), Term(-1.0, [both[1]])], is_language=is_language)
    return {**values, "low": found.low, "high": found.high, "p_value": found.p_value}


def _in_words(run: Path, found: dict[str, Any], metric: "Metric") -> str:
    from g2lstm.lab.study.table import LEAST, chance

    said = f"{found['run']}: {metric.title} {found[metric.name]:.2f}; {run} differs by {found['difference']:+.2f}"
    if "p_value" not in found:
        return f"{said}; {found['sentences']} sentences are too few to rule out chance; use at least {LEAST}"
    return f"{said}, 95 % interval {found['low']:+.2f} to {found['high']:+.2f}, p {chance(found['p_value'])}"


def score(
    run: Run,
    source: Annotated[Path, typer.Argument(help="A text in the source language.", callback=usable)],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.", callback=usable)],
    eval_gate: EvalGate = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Score given translations: the log-probability of each target line, a tab, and its number of tokens.

    The end of the sentence counts as a token. The perplexity of the whole target text goes to standard error. Both
    texts must be tokenised as the training text was.

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
    with np.errstate(over="ignore"):
        perplexity = np.exp(-found.sum() / tokens.sum())
    tell(f"perplexity {perplexity:.2f}, {tokens.sum():,} tokens, {len(found):,} lines")


_VERDICTS = {
    "same": "same",
    "rounding": "same, up to rounding",
    "different": "DIFFERENT",
    "elsewhere": "computed elsewhere",
    "not recorded": "was not recorded",
}


def verify(
    run: Run,
    split: Annotated[str | None, typer.Option(help="Only the scores of this split; all by default.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compute the scores in a run's result.json once more, and compare them and all that they depend on.

    That is the recipe, the weights, the tokenizers, the text (which is encoded anew), the versions, the number of
    threads, the processor and the kernel. Another machine may round differently; that alone is no reason for doubt. The
    exit code is 0 if every score holds, and 2 if one does not.

    Example: `g2lstm verify runs/ptb-small --split test`
    """
    from g2lstm.runs.trained import load
    from g2lstm.runs.trained import verify as compare

    trained = load(run)
    scores = [score for score in trained.run.results() if split in (None, score.split)]
    if not scores:
        which = "" if split is None else f" of the split {split!r}"
        raise G2Error(f"{run} has no score{which} to verify; make one with `g2lstm eval {run}`")
    with bar() as show:
        found = [
            compare(trained, each, data_dir=data_dir, progress=partial(show, f"score {number} of {len(scores)}"))
            for number, each in enumerate(scores, start=1)
        ]
    if as_json:
        holds = all(each.holds for each in found)
        print_json({"run": str(run), "holds": holds, "scores": [each.to_json() for each in found]})
    else:
        for each in found:
            rows = [[c.what, *map(_shown, (c.recorded, c.found)), _VERDICTS[c.verdict]] for c in each.checks]
            console().print(table(("", "recorded", "now", ""), rows, left=4, title=each.signature))
            say("the score holds" if each.holds else "the score does not hold")
    wrong = [each.signature for each in found if not each.holds]
    if wrong:
        raise G2Error(f"{len(wrong)} of {len(found)} scores of {run} do not hold; the first is {wrong[0]}")


def _shown(value: str | float | None) -> str:
    return UNKNOWN if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
