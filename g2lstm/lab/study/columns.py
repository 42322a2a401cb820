"""Columns that several studies have: the scores after each compression of the gates."""

from collections.abc import Mapping

from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.lab.study import paper
from g2lstm.lab.study.plan import Column, Measurement
from g2lstm.tasks.recipes import Recipe


def compression_columns(
    recipe: Recipe,
    figures: Mapping[str, Mapping[str, float]],
    series: str,
    base: Measurement,
    *,
    digits: int = 2,
    paper_hidden: int | None = None,
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """What each compression changes, in the paper's order; of a narrower language model also at proportional ranks.

    Args:
        recipe: of the runs.
        figures: the paper's, by preset and method; an empty table for each where its data were others.
        series: of the runs.
        base: how the uncompressed model was measured.
        digits: after the point, in the paper's figures.
        paper_hidden: the width that the paper's ranks are for; a model of another width also gets ranks in proportion.

    Returns:
        the columns, and notes on them.
    """
    narrowest = min(recipe.model.embedding, recipe.model.hidden)
    columns, notes = [], []
    ranks: list[int] = []
    for preset, by_method in figures.items():
        steps = Spec.parse(preset).gates
        assert steps is not None
        if steps.rank is not None:
            ranks.append(steps.rank)
            if steps.rank > narrowest:
                notes.append(f"A rank of {steps.rank} is more than layers {narrowest} wide have.")
                continue
        columns.append(_column(PRESETS[preset], series, base, by_method, digits))
    hidden = recipe.model.hidden
    if paper_hidden is not None and hidden != paper_hidden:
        own = list(dict.fromkeys(paper.proportional_rank(rank, hidden) for rank in ranks))
        columns += [_column(f"gates=svd:{rank}", series, base, {}, digits) for rank in own if rank <= narrowest]
        listed, theirs = (" and ".join(map(str, each)) for each in (own, ranks))
        notes.append(f"Ranks {listed} are to layers {hidden} wide what the paper's {theirs} are to its {paper_hidden}.")
    return tuple(columns), tuple(notes)


def _column(spec: str, series: str, base: Measurement, figures: Mapping[str, float], digits: int) -> Column:
    measurement = Measurement(base.split, base.eval_gate, base.cache, spec)
    title = spec.removeprefix("gates=").replace(",", ", ").replace(":", " ")
    return Column(title, series, measurement, against=base, paper=figures, paper_digits=digits)
