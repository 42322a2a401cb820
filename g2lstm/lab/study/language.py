"""Tables 1 and 3: Penn Treebank, perplexity of the three methods, and what compression does to it."""

from collections.abc import Sequence

from g2lstm.lab.study import paper
from g2lstm.lab.study.columns import compression_columns
from g2lstm.lab.study.plan import METHODS, Cache, Column, Measurement, Plan, Scale, Study, TablePlan, methods_with_seeds
from g2lstm.tasks.recipes import load_recipe

_RECIPES = {"small": ("ptb-small", "ptb-small-finetune"), "paper": ("ptb", "ptb-finetune")}


def table1(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Without and with finetuning, and with the cache."""
    kinds: list[tuple[str, str, Cache | None, str]] = [
        ("", "trained", None, "trained"),
        (", finetuned", "finetuned", None, "finetuned"),
        (", finetuned, cache", "finetuned", _cache(scale), "cache"),
    ]
    columns = tuple(
        Column(
            f"{split}{title}",
            series,
            Measurement(split, cache=with_cache),
            paper=paper.PTB[figures, split],
            paper_digits=paper.PTB_SHAPE["digits"],
        )
        for title, series, with_cache, figures in kinds
        for split in ("valid", "test")
    )
    title = "Table 1: perplexity on Penn Treebank (lower is better)"
    in_sample = (
        () if scale == "paper" else ("The validation set with the cache is the one that the cache was tuned on.",)
    )
    table = TablePlan(title, METHODS, columns, notes=(_CACHE_NOTE[scale], *in_sample))
    return Study("table1", title, _plans(scale, seeds, overrides, columns), (table,))


def table3(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """After each compression, with the cache; at small scale of the models that were not finetuned."""
    series = "finetuned" if scale == "paper" else "trained"
    base = Measurement(cache=_cache(scale))
    recipe = load_recipe(_RECIPES[scale][0], overrides)
    compressed, notes = compression_columns(recipe, paper.PTB_COMPRESSED, series, base, **paper.PTB_SHAPE)
    original = Column(
        "original", series, base, paper=paper.PTB["cache", "test"], paper_digits=paper.PTB_SHAPE["digits"]
    )
    title = "Table 3: test perplexity on Penn Treebank with the cache, and what compression of the gates adds to it"
    finetuned = () if scale == "paper" else ("The paper's models were finetuned before; these are not.",)
    columns = (original, *compressed)
    table = TablePlan(title, METHODS, columns, notes=(*notes, _CACHE_NOTE[scale], *finetuned))
    return Study("table3", title, _plans(scale, seeds, overrides, columns), (table,))


_CACHE_NOTE = {
    "small": "The cache's settings are tuned on the validation set, for each run by itself, uncompressed.",
    "paper": "The cache has the settings of the paper's code.",
}


def _cache(scale: Scale) -> Cache:
    return "recipe" if scale == "paper" else "tuned"


def _plans(scale: Scale, seeds: int, overrides: Sequence[str], columns: Sequence[Column]) -> tuple[Plan, ...]:
    first, second = _RECIPES[scale]
    plans = methods_with_seeds(first, columns, series="trained", seeds=seeds, overrides=overrides)
    if any(column.series == "finetuned" for column in columns):
        plans += methods_with_seeds(
            second, columns, series="finetuned", seeds=seeds, overrides=overrides, starts_from=first
        )
    return tuple(plans)
