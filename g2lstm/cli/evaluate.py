"""`g2lstm eval`: the score of a run."""

from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from g2lstm.cli.options import DataDir, EvalGate, Json, Run
from g2lstm.cli.output import console, print_json, say
from g2lstm.cli.progress import bar


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="The split to score: valid, test or train.")] = "valid",
    cache: Annotated[bool, typer.Option("--cache", help="Mix in the continuous cache pointer.")] = False,
    cache_window: Annotated[int | None, typer.Option(min=1, help="How many steps back the cache reaches.")] = None,
    cache_theta: Annotated[float | None, typer.Option(help="How sharply the cache prefers similar states.")] = None,
    cache_lambda: Annotated[float | None, typer.Option(help="The share of probability that the cache gets.")] = None,
    tune: Annotated[bool, typer.Option("--tune-cache", help="Find the cache settings on the validation set.")] = False,
    beam: Annotated[
        int | None, typer.Option(min=1, help="The number of hypotheses to follow; 1 is greedy search.")
    ] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Divide scores by the length to this power.")] = None,
    eval_gate: EvalGate = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Score a run: a language model by its perplexity on a text read as one stream, a translation model by BLEU.

    The cache options are for language models, --beam and --length-penalty for translation.

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
        tune_cache=tune,
        beam=beam,
        length_penalty=length_penalty,
        data_dir=data_dir,
    )
    trained = load(run)
    trained.check_scoring(how)
    trained.run.results()  # if they can't be read, better to know before the work than after it
    with bar() as show:
        result = score(trained, how, partial(show, "scoring"))
    if "perplexity" in result:
        summary = f"perplexity [bold]{result['perplexity']:.2f}[/] on {split}, {result['tokens']:,} tokens"
    else:
        summary = f"BLEU [bold]{result['bleu']:.2f}[/], chrF {result['chrf']:.2f} on {split}, "
        summary += f"{result['sentences']:,} sentences"
    if as_json:
        print_json(result)
        trained.run.add_result(result)
        return
    console().print(f"{escape(str(run))}: {summary}", soft_wrap=True)
    if "trained_on" in result:
        say(f"trained on {result['trained_on']}")
    if "bleu" in result:
        say(f"BLEU|{result['bleu_signature']}")
        say(f"chrF2|{result['chrf_signature']}")
    say(result["signature"])
    trained.run.add_result(result)
