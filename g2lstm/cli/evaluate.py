"""`g2lstm eval`: the score of a run."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress as Bar

from g2lstm.cli.options import DataDir, EvalGate, Json, Run
from g2lstm.cli.output import console, error_console, progress_columns
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.lm.cache import CacheSettings
    from g2lstm.runs.trained import TrainedLanguageModel


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="valid, test or train.")] = "valid",
    cache: Annotated[bool, typer.Option("--cache", help="Mix in the continuous cache pointer.")] = False,
    cache_window: Annotated[int | None, typer.Option(min=1, help="Steps that the cache sees.")] = None,
    cache_theta: Annotated[float | None, typer.Option(help="How sharply it prefers similar states.")] = None,
    cache_lambda: Annotated[float | None, typer.Option(help="Its share of the probability.")] = None,
    tune: Annotated[bool, typer.Option("--tune-cache", help="Search its settings on the validation set.")] = False,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Dynamic evaluation: learn from what was read.")] = False,
    eval_gate: EvalGate = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluates a run by perplexity, on its text read as one stream from beginning to end.

    Example: `g2lstm eval runs/ptb-small --split test --cache`
    """
    if dynamic and (cache or tune):
        raise G2Error("--dynamic and --cache are two evaluations; ask for one at a time")
    import torch

    from g2lstm.lm.cache import cached_perplexity, tune_cache
    from g2lstm.lm.dynamic import DynamicSettings, dynamic_perplexity
    from g2lstm.lm.evaluate import perplexity
    from g2lstm.runs.trained import load

    trained = load(run)
    gate = trained.model.lstms[0].eval_gate if eval_gate is None else eval_gate
    stream = trained.split(split, data_dir)
    tokens = torch.from_numpy(stream.read(0, len(stream)))
    facts: dict[str, Any] = {"data": f"{trained.recipe.data.name or 'own'}/{stream.text_sha256[:8]}", "split": split}
    facts["gate"] = gate
    with Bar(*progress_columns(), console=error_console(), transient=True) as bar:
        task = bar.add_task("reading")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if cache or tune:
            settings = _cache_settings(trained, cache_window, cache_theta, cache_lambda)
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
    result: dict[str, Any] = {
        "perplexity": score.perplexity,
        "split": split,
        "tokens": score.tokens,
        "eval_gate": gate,
        **{name: facts[name] for name in ("cache", "dynamic") if name in facts},
        "signature": trained.run.signature(**facts),
    }
    trained.run.add_result(result)
    if as_json:
        print(json.dumps(result))
        return
    console().print(f"{run}: perplexity [bold]{score.perplexity:.2f}[/] on {split}, {score.tokens:,} tokens")
    console().print(result["signature"], highlight=False, soft_wrap=True)


def _cache_settings(
    trained: "TrainedLanguageModel", window: int | None, theta: float | None, share: float | None
) -> "CacheSettings":
    from g2lstm.lm.cache import CacheSettings

    own = trained.recipe.evaluate.cache
    return CacheSettings(
        window=own.window if window is None else window,
        theta=own.theta if theta is None else theta,
        share=own.lambda_ if share is None else share,
    )
