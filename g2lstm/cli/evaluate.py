"""`g2lstm eval`: the score of a run."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import Beam, DataDir, EvalGate, Json, LengthPenalty, Run, print_json, say, usable


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
    eval_gate: EvalGate = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Score a run: a language model by its perplexity on a text read as one stream, a translation model by BLEU.

    Compare perplexities only between models with the same tokenizer; bits per character compare all of them, if they
    know the same words.

    The cache options are for language models, --beam, --length-penalty, --source, --reference and --save for
    translation. Scores of splits are kept in the run's result.json, those of other files are not.

    Examples: `g2lstm eval runs/ptb-small --split test --cache`, `g2lstm eval runs/multi30k-small --split test`
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
        data_dir=data_dir,
    )
    trained = load(run)
    trained.check_scoring(how)
    trained.run.results()  # if they can't be read, better to know before the work than after
    with bar() as show:
        result = score(trained, how, partial(show, "scoring"))
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
        trained.run.add_result(result)
