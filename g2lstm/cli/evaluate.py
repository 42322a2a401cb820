"""`g2lstm eval`: the score of a run."""

import json
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from g2lstm.cli.options import DataDir, EvalGate, Json, Run
from g2lstm.cli.output import console
from g2lstm.cli.progress import bar


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="valid, test or train.")] = "valid",
    cache: Annotated[bool, typer.Option("--cache", help="Mix in the continuous cache pointer.")] = False,
    cache_window: Annotated[int | None, typer.Option(min=1, help="Steps that the cache sees.")] = None,
    cache_theta: Annotated[float | None, typer.Option(help="How sharply it prefers similar states.")] = None,
    cache_lambda: Annotated[float | None, typer.Option(help="Its share of the probability.")] = None,
    tune: Annotated[bool, typer.Option("--tune-cache", help="Search its settings on the validation set.")] = False,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Dynamic evaluation: learn from what was read.")] = False,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Scores are divided by length to this power.")] = None,
    eval_gate: EvalGate = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluates a run: a language model by perplexity on its text read as one stream, a translation model by BLEU.

    The options with "cache" and "dynamic" are for language models, "beam" and "length penalty" for translation.

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
        dynamic=dynamic,
        beam=beam,
        length_penalty=length_penalty,
        data_dir=data_dir,
    )
    trained = load(run)
    trained.check_scoring(how)
    trained.run.results()  # if they can't be read, better to know before than after
    with bar() as show:
        result = score(trained, how, partial(show, "scoring"))
    if "perplexity" in result:
        summary = f"perplexity [bold]{result['perplexity']:.2f}[/] on {split}, {result['tokens']:,} tokens"
    else:
        summary = f"BLEU [bold]{result['bleu']:.2f}[/], chrF {result['chrf']:.2f} on {split}, "
        summary += f"{result['sentences']:,} sentences"
    if as_json:
        print(json.dumps(result))
        trained.run.add_result(result)
        return
    console().print(f"{escape(str(run))}: {summary}", soft_wrap=True)
    if "trained_on" in result:
        console().print(f"trained on {result['trained_on']}", highlight=False)
    if "bleu" in result:
        console().print(f"BLEU|{result['bleu_signature']}", highlight=False, soft_wrap=True)
        console().print(f"chrF2|{result['chrf_signature']}", highlight=False, soft_wrap=True)
    console().print(result["signature"], highlight=False, soft_wrap=True)
    trained.run.add_result(result)
