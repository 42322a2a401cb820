"""`g2lstm eval`: the score of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress as Bar

from g2lstm.cli.options import DataDir, EvalGate, Json, Run
from g2lstm.cli.output import console, error_console, progress_columns
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.runs.language import TrainedLanguageModel
    from g2lstm.runs.translation import TrainedTranslationModel


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
    from g2lstm.runs.language import TrainedLanguageModel
    from g2lstm.runs.trained import load

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
    from g2lstm.nn.mode import lstms

    gate = lstms(trained.model)[0].eval_gate if eval_gate is None else eval_gate
    if isinstance(trained, TrainedLanguageModel):
        settings = (cache, cache_window, cache_theta, cache_lambda, tune)
        result = _perplexity(trained, split, gate, settings, dynamic, data_dir)
        summary = f"perplexity [bold]{result['perplexity']:.2f}[/] on {split}, {result['tokens']:,} tokens"
    else:
        result = _bleu(trained, split, gate, beam, length_penalty, data_dir)
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


def _perplexity(
    trained: "TrainedLanguageModel",
    split: str,
    gate: str,
    cache: tuple[bool, int | None, float | None, float | None, bool],
    dynamic: bool,
    data_dir: Path | None,
) -> dict[str, Any]:
    import torch

    from g2lstm.lm.cache import CacheSettings, cached_perplexity, tune_cache
    from g2lstm.lm.dynamic import DynamicSettings, dynamic_perplexity
    from g2lstm.lm.evaluate import perplexity

    stream = trained.split(split, data_dir)
    tokens = torch.from_numpy(stream.read(0, len(stream)))
    facts: dict[str, Any] = {"data": f"{trained.recipe.data.name or 'own'}/{stream.text_sha256[:8]}", "split": split}
    facts["gate"] = gate
    with Bar(*progress_columns(), console=error_console(), transient=True) as bar:
        task = bar.add_task("reading")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        wants_cache, window, theta, share, tune = cache
        if wants_cache:
            own = trained.recipe.evaluate.cache
            settings = CacheSettings(
                window=own.window if window is None else window,
                theta=own.theta if theta is None else theta,
                share=own.lambda_ if share is None else share,
            )
            if tune:
                valid = trained.split("valid", data_dir)
                ids = torch.from_numpy(valid.read(0, len(valid)))
                settings = tune_cache(trained.model, ids, eval_gate=gate, progress=show).settings
            facts["cache"] = f"{settings.window},{settings.theta:g},{settings.share:g}"
            score = cached_perplexity(trained.model, tokens, settings, eval_gate=gate, progress=show)
        elif dynamic:
            rule = DynamicSettings()
            facts["dynamic"] = f"{rule.segment},{rule.learning_rate:g},{rule.decay:g}"
            score = dynamic_perplexity(trained.model, tokens, rule, eval_gate=gate, progress=show)
        else:
            score = perplexity(trained.model, tokens, eval_gate=gate, progress=show)
    return {
        "perplexity": score.perplexity,
        "split": split,
        "tokens": score.tokens,
        "eval_gate": gate,
        **{name: facts[name] for name in ("cache", "dynamic") if name in facts},
        "signature": trained.run.signature(**facts),
    }


def _bleu(
    trained: "TrainedTranslationModel",
    split: str,
    gate: str,
    beam: int | None,
    length_penalty: float | None,
    data_dir: Path | None,
) -> dict[str, Any]:
    from g2lstm.data.text import sha256_of
    from g2lstm.mt.bleu import score

    how = trained.recipe.evaluate
    beam = how.beam if beam is None else beam
    length_penalty = how.length_penalty if length_penalty is None else length_penalty
    files = trained.files(split, data_dir)
    sources, references = trained.split(split, data_dir)
    with Bar(*progress_columns(), console=error_console(), transient=True) as bar:
        task = bar.add_task("translating")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        found = trained.search(sources, beam=beam, length_penalty=length_penalty, eval_gate=gate, progress=show)
    texts = [best[0].text for best in found]
    scores = score(texts, references, tokenize=how.bleu.tokenize, lowercase=how.bleu.lowercase)
    hashes = "+".join(sha256_of(file)[:8] for file in files)
    facts = {"data": f"{trained.recipe.data.name or 'own'}/{hashes}", "split": split, "gate": gate}
    facts |= {"beam": str(beam), "penalty": f"{length_penalty:g}"}
    return {
        "bleu": scores.bleu,
        "chrf": scores.chrf,
        "split": split,
        "sentences": len(texts),
        "eval_gate": gate,
        "beam": beam,
        "length_penalty": length_penalty,
        **({"trained_on": trained.partial} if trained.partial else {}),
        "bleu_signature": scores.bleu_signature,
        "chrf_signature": scores.chrf_signature,
        "signature": trained.run.signature(**facts),
    }
