"""`g2lstm eval`: the score of a run."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import Beam, DataDir, EvalGate, Json, LengthPenalty, Run, print_json, say, usable
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
    reference: Annotated[Path | None, typer.Option(help="Its translation by people.", callback=usable)] = None,
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

    Compare perplexities only between models with the same tokenizer; bits per character compare all of them, if they
    know the same words.

    The cache options are for language models, --beam, --length-penalty, --source, --reference and --save for
    translation. Scores of splits are kept in the run's result.json, those of other files are not.

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

    from g2lstm.lab.study.significance import LEAST, Term, compared

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
    from g2lstm.lab.study.significance import LEAST, chance

    said = f"{found['run']}: {metric.title} {found[metric.name]:.2f}; {run} differs by {found['difference']:+.2f}"
    if "p_value" not in found:
        return f"{said}; {found['sentences']} sentences can't tell that from chance, {LEAST} could"
    return f"{said}, 95 % interval {found['low']:+.2f} to {found['high']:+.2f}, p {chance(found['p_value'])}"
