"""The study that `g2lstm demo` carries out: three methods on embedded text, compressed by the paper's settings."""

from collections.abc import Sequence
from dataclasses import replace

from g2lstm.lab.study import paper
from g2lstm.lab.study.columns import compression_columns
from g2lstm.lab.study.plan import (
    BASELINE,
    METHOD,
    METHODS,
    OURS,
    Column,
    Measurement,
    Study,
    TablePlan,
    check_overrides,
    methods_with_seeds,
)
from g2lstm.tasks.recipes import load_recipe

RECIPE = "demo"
_NAMES = {"sigmoid": "lstm", "sharpened": "sharpened", "gumbel": "g2"}  # of the run directories


def demo(overrides: Sequence[str] = ()) -> Study:
    """One seed of each method.

    Args:
        overrides: of the recipe's keys.
    """
    check_overrides(overrides, {METHOD: "the demo compares all methods; `g2lstm train demo` trains one"})
    recipe = load_recipe(RECIPE, overrides)
    base = Measurement()
    figures: dict[str, dict[str, float]] = {preset: {} for preset in paper.PTB_COMPRESSED}
    compressed, notes = compression_columns(recipe, figures, RECIPE, base, **paper.PTB_SHAPE)
    columns = (
        Column("test perplexity", RECIPE, base),
        *compressed,
        Column("gates beyond 0.1 or 0.9", RECIPE, base, what="saturation"),
    )
    plans = [
        replace(plan, name=_NAMES[plan.row], seed=recipe.train.seed)
        for plan in methods_with_seeds(RECIPE, columns, series=RECIPE, seeds=1, overrides=overrides)
    ]
    title = "One model trained in three ways, and what compression adds to its test perplexity"
    notes = (
        *notes,
        "p: how often the choice of test sentences alone would make G² and the LSTM differ so much. It knows nothing "
        "of other seeds: this shows how it works, and `g2lstm study` compares the methods.",
    )
    return Study(RECIPE, title, tuple(plans), (TablePlan(title, METHODS, columns, ((OURS, BASELINE),), notes=notes),))
