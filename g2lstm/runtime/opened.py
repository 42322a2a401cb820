"""`load`: opens a run directory or a saved model without torch."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from g2lstm.errors import G2Error, needs
from g2lstm.runtime.language import LanguageModel, LanguageParts, language_parts
from g2lstm.runtime.recipe import RunRecipe
from g2lstm.runtime.stack import Stack
from g2lstm.runtime.translation import TranslationModel, TranslationParts, search_facts, translation_parts
from g2lstm.runtime.weights import NamedWeights

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


def load(path: str | Path, *, threads: int | None = None, eval_gate: str | None = None) -> Any:
    """Opens the model of a run, compressed or not, or a compressed model from a file, to use it without torch.

    Args:
        path: a run directory, from `g2lstm train` or `g2lstm compress`; or a file of `g2lstm.save`, if its model is one
            chain of embedding, LSTM or GRU and linear layers with usual activations.
        threads: at most this many in the compiled kernel; one per processor if not given. Small models use fewer.
        eval_gate: of a run: "soft", "tempered" or "hard"; None for the model's own.

    Returns:
        A `LanguageModel` or a `TranslationModel` of this package, whatever the run is; for a file a `Stack`.

    Examples:
        >>> from g2lstm.runtime import load
        >>> model = load("runs/ptb-small+small")
        >>> model.generate("the company said", tokens=20, seed=1)
        >>> load("runs/multi30k-small+small").translate("ein mann schläft .")
    """
    run = Path(path)
    if os.path.isfile(run):
        if eval_gate is not None:
            raise G2Error(f"eval_gate is for runs; the gates of {run} are as they were saved")
        return Stack(run, threads)
    opened = open_run(run, eval_gate)
    if isinstance(opened.parts, LanguageParts):
        return LanguageModel(opened.parts, opened.tokenizers[0], threads)
    source, target = opened.tokenizers
    return TranslationModel(opened.parts, search_facts(opened.recipe), source, target, threads)


class OpenedRun(NamedTuple):
    """A run directory that was read: its recipe, its tokenizers by the order of its task, and its model."""

    recipe: RunRecipe
    tokenizers: "list[Tokenizer]"
    parts: LanguageParts | TranslationParts


def open_run(run: Path, eval_gate: str | None = None) -> OpenedRun:
    """Reads a run directory without torch; the arguments are those of `load`."""
    if not os.path.isfile(run / "recipe.toml"):  # unlike Path.is_file, this never raises
        what = "has no recipe.toml" if os.path.exists(run) else "does not exist"
        raise G2Error(f"{run} is not a run directory: it {what}; make one with `g2lstm train RECIPE --out {run}`")
    recipe = RunRecipe(run / "recipe.toml")
    if recipe.task not in _TASKS:
        raise G2Error(
            f"{run} is a run of task {recipe.task!r}, and the runtime knows {', '.join(_TASKS)}; install a newer g2lstm"
        )
    names, take_apart = _TASKS[recipe.task]
    with needs("text", "a run with its tokenizer"):
        from g2lstm.text.tokenize import Tokenizer
    tokenizers = [Tokenizer.load(run / name) for name in names]
    weights = NamedWeights.open(run / "model.safetensors")
    return OpenedRun(recipe, tokenizers, take_apart(recipe, weights, *tokenizers, eval_gate=eval_gate))


# For each task the files of its tokenizers, and what takes its models apart.
_TASKS: dict[str, tuple[tuple[str, ...], Callable[..., LanguageParts | TranslationParts]]] = {
    "lm": (("tokenizer.json",), language_parts),
    "mt": (("tokenizer.source.json", "tokenizer.target.json"), translation_parts),
}
