"""Tables 2, 4 and 5: BLEU of the three methods, and what compression does to it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from g2lstm.errors import G2Error
from g2lstm.lab.study import paper
from g2lstm.lab.study.columns import compression_columns
from g2lstm.lab.study.plan import METHODS, Column, Measurement, Scale, Study, TablePlan, methods_with_seeds
from g2lstm.tasks.recipes import load_recipe


class _Data(NamedTuple):
    recipe: str
    title: str
    bleu: Mapping[str, float]  # the paper's, by method
    compressed: Mapping[str, Mapping[str, float]]  # the paper's, by preset and method
    notes: tuple[str, ...] = ()


_NONE: dict[str, Mapping[str, float]] = {preset: {} for preset in paper.IWSLT14_COMPRESSED}
_IWSLT = "IWSLT'14 German to English"
_MULTI30K = _Data("multi30k-small", "Multi30k German to English", {}, _NONE)
_IWSLT_SMALL = _Data("iwslt14-small", _IWSLT, paper.BLEU["iwslt14"], paper.IWSLT14_COMPRESSED)
_IWSLT_PAPER = _IWSLT_SMALL._replace(recipe="iwslt14")
_WMT = _Data(
    "wmt14",
    "WMT'14 English to German",
    paper.BLEU["wmt14"],
    paper.WMT14_COMPRESSED,
    (
        "BLEU of WMT'14 is that of plain text, tokenised by sacreBLEU (13a); the paper's is that of tokenised text, by "
        "multi-bleu. The two scores cannot be compared, their differences roughly.",
    ),
)


def table2(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """The test sets side by side."""
    sets = (_MULTI30K, _IWSLT_SMALL) if scale == "small" else (_WMT, _IWSLT_PAPER)
    columns = [Column(data.title, data.recipe, paper=data.bleu) for data in sets]
    plans = [
        plan
        for data in sets
        for plan in methods_with_seeds(data.recipe, columns, series=data.recipe, seeds=seeds, overrides=overrides)
    ]
    title = "Table 2: BLEU on the test set (higher is better)"
    table = TablePlan(title, METHODS, tuple(columns), notes=tuple(note for data in sets for note in data.notes))
    return Study("table2", title, tuple(plans), (table,))


def table4(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """IWSLT'14 compressed; at small scale Multi30k too, whose training set is whole everywhere."""
    return _compression(4, (_MULTI30K, _IWSLT_SMALL) if scale == "small" else (_IWSLT_PAPER,), seeds, overrides)


def table5(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """WMT'14 compressed, at the paper's scale only."""
    if scale == "small":
        raise G2Error(
            "table5 is of WMT'14, whose 4.5M pairs no hour on two cores is enough for, and of a few thousand of them "
            "a model learns too little to be worth compressing; use --scale paper, or table4 for a small scale"
        )
    return _compression(5, (_WMT,), seeds, overrides)


def _compression(number: int, sets: Sequence[_Data], seeds: int, overrides: Sequence[str]) -> Study:
    tables, plans = [], []
    for data in sets:
        base = Measurement()
        recipe = load_recipe(data.recipe, overrides)
        compressed, notes = compression_columns(recipe, data.compressed, data.recipe, base)
        columns = (Column("original", data.recipe, base, paper=data.bleu), *compressed)
        title = f"Table {number}: {data.title}, test BLEU, and what compression of the gates adds to it"
        tables.append(TablePlan(title, METHODS, columns, notes=(*data.notes, *notes)))
        plans += methods_with_seeds(data.recipe, columns, series=data.recipe, seeds=seeds, overrides=overrides)
    return Study(f"table{number}", tables[0].title, tuple(plans), tuple(tables))
