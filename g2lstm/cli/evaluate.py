"""`g2lstm eval`: the score of a run."""

import json
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from g2lstm.cli.options import DataDir, EvalGate, Json, Run
from g2lstm.cli.output import console
from g2lstm.cli.progress import bar
from g2lstm.errors import G2Error


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
    from g2lstm.runs.scoring import cache_settings, score_language, score_translation
    from g2lstm.runs.trained import load
    from g2lstm.tasks.lm.trained import TrainedLanguageModel

    trained = load(run)
    for_language: dict[str, object] = {"--cache": cache, "--cache-window": cache_window, "--cache-theta": cache_theta}
    for_language |= {"--cache-lambda": cache_lambda, "--tune-cache": tune, "--dynamic": dynamic}
    for_translation: dict[str, object] = {"--beam": beam, "--length-penalty": length_penalty}
    others = for_translation if isinstance(trained, TrainedLanguageModel) else for_language
    if wrong := [name for name, value in others.items() if value is not None and value is not False]:
        raise G2Error(f"{', '.join(wrong)} cannot be used here: {run} is a run of task {trained.recipe.task!r}")
    given = [value for value in (cache_window, cache_theta, cache_lambda) if value is not None]
    if tune and given:
        raise G2Error("--tune-cache chooses window, theta and lambda itself; leave them out, or --tune-cache")
    cache = cache or tune or bool(given)
    trained.run.results()  # if they cannot be read, better to know before than after
    if dynamic and cache:
        raise G2Error("--dynamic and --cache are two evaluations; ask for one at a time")
    with bar() as show:
        if isinstance(trained, TrainedLanguageModel):
            settings = cache_settings(trained, cache_window, cache_theta, cache_lambda) if cache else None
            result = score_language(
                trained,
                split,
                eval_gate=eval_gate,
                cache=settings,
                tunes_cache=tune,
                dynamic=dynamic,
                data_dir=data_dir,
                progress=partial(show, "reading"),
            )
        else:
            result = score_translation(
                trained,
                split,
                eval_gate=eval_gate,
                beam=beam,
                length_penalty=length_penalty,
                data_dir=data_dir,
                progress=partial(show, "translating"),
            )
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
