"""The studies by name: the paper's tables and figures, and the demo; each as runs and columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from g2lstm.errors import G2Error
from g2lstm.lab.study import paper
from g2lstm.lab.study.ablations import ablations
from g2lstm.lab.study.paper import NO_FIGURES, PTB_FIGURES, compression_columns
from g2lstm.lab.study.plan import (
    BASELINE,
    METHOD,
    METHODS,
    OURS,
    SEED,
    Cache,
    Column,
    Measurement,
    PlannedTable,
    Scale,
    Study,
    check_overrides,
    key_of,
    methods_with_seeds,
)
from g2lstm.tasks.recipes import load_recipe

_RESERVED = {
    METHOD: "a study compares methods; --only '*gumbel*' picks one",
    SEED: "--seeds N uses the seeds 1 to N",
    "train.finetune_from": "a study decides which run starts from which",
}
_STARTS = {"ptb-finetune": "ptb", "ptb-small-finetune": "ptb-small"}  # whose best weights are finetuned

_PTB = {"small": "ptb-small", "paper": "ptb"}
_CACHE: dict[Scale, Cache] = {"small": "tuned", "paper": "recipe"}
_CACHE_NOTE = {
    "small": "The cache settings are tuned on the validation set, for each run by itself, before compression.",
    "paper": "The cache has the settings of the paper's code.",
}


def find_study(name: str, scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """A study by its name.

    Args:
        name: see `STUDIES`.
        scale: "small" or "paper".
        seeds: how many times to train each run.
        overrides: keys of every recipe, as for `g2lstm train --set`.
    """
    if name not in STUDIES:
        raise G2Error(f"there is no study {name!r}; choose one of {', '.join(STUDIES)}")
    check_overrides(overrides, _RESERVED)
    study = STUDIES[name](scale, seeds, overrides)
    changes = [each for each in overrides if key_of(each) in ("data", "data.name", "data.path")]
    if not changes:
        return study
    note = f"This is not the data of the title, but {' and '.join(changes)}, so the paper's figures are left out."
    tables = [
        replace(table, columns=tuple(replace(one, paper={}) for one in table.columns), notes=(note, *table.notes))
        for table in study.tables
    ]
    return replace(study, tables=tuple(tables))


def _study(name: str, tables: Sequence[PlannedTable], seeds: int, overrides: Sequence[str]) -> Study:
    """The tables' runs: three methods with each recipe, after the runs that they start from."""
    columns = [column for table in tables for column in table.columns]
    starts = {column.recipe: _STARTS.get(column.recipe) for column in columns}
    recipes = dict.fromkeys(recipe for pair in starts.items() for recipe in reversed(pair) if recipe is not None)
    runs = [
        run
        for recipe in recipes
        for run in methods_with_seeds(
            recipe, columns, seeds=seeds, overrides=overrides, starts_from=_STARTS.get(recipe)
        )
    ]
    return Study(name, tables[0].title, tuple(runs), tuple(tables))


def table1(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Perplexity on Penn Treebank: trained, finetuned, and with the cache."""
    first = _PTB[scale]
    stages: list[tuple[str, str, Cache | None, str]] = [
        ("", first, None, "trained"),
        (", finetuned", f"{first}-finetune", None, "finetuned"),
        (", finetuned, cache", f"{first}-finetune", _CACHE[scale], "cache"),
    ]
    columns = [
        Column(f"{split}{title}", recipe, Measurement(split, cache=cache), paper=paper.PTB[stage, split], digits=1)
        for title, recipe, cache, stage in stages
        for split in ("valid", "test")
    ]
    notes = [_CACHE_NOTE[scale]]
    if scale == "small":
        notes.append("With the cache, the validation scores are on the text that the cache was tuned on.")
    title = "Table 1: perplexity on Penn Treebank (lower is better)"
    return _study("table1", [PlannedTable(title, METHODS, tuple(columns), notes=tuple(notes))], seeds, overrides)


def table3(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Penn Treebank after each compression, with the cache; at small scale without finetuning."""
    recipe = load_recipe(_PTB[scale], overrides)
    name = f"{_PTB[scale]}-finetune" if scale == "paper" else _PTB[scale]
    base = Measurement(cache=_CACHE[scale])
    compressed, notes = compression_columns(recipe, name, base, paper.PTB_COMPRESSED, **PTB_FIGURES)
    original = Column("original", name, base, paper=paper.PTB["cache", "test"], digits=1)
    notes = (*notes, _CACHE_NOTE[scale])
    if scale == "small":
        notes = (*notes, "The paper's models were finetuned before compression; these are not.")
    title = "Table 3: test perplexity on Penn Treebank with the cache, and what compressing the gates adds to it"
    return _study("table3", [PlannedTable(title, METHODS, (original, *compressed), notes=notes)], seeds, overrides)


class _Pairs(NamedTuple):
    """A data set of translation, and the paper's figures for it."""

    recipe: str
    title: str
    bleu: Mapping[str, float]  # by method
    compressed: Mapping[str, Mapping[str, float]]  # by preset and method
    notes: tuple[str, ...] = ()


_MULTI30K = _Pairs("multi30k-small", "Multi30k German to English", {}, {name: {} for name in paper.IWSLT14_COMPRESSED})
_IWSLT = _Pairs("iwslt14", "IWSLT'14 German to English", paper.BLEU["iwslt14"], paper.IWSLT14_COMPRESSED)
_WMT_NOTE = (
    "BLEU on WMT'14 is that of plain text, tokenised by sacreBLEU (13a); the paper's is that of tokenised text, by "
    "multi-bleu. The scores are not comparable; their differences are, roughly."
)
_WMT = _Pairs("wmt14", "WMT'14 English to German", paper.BLEU["wmt14"], paper.WMT14_COMPRESSED, (_WMT_NOTE,))
_SMALL_PAIRS = (_MULTI30K, _IWSLT._replace(recipe="iwslt14-small"))


def table2(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """BLEU on the test sets, side by side."""
    sets = _SMALL_PAIRS if scale == "small" else (_WMT, _IWSLT)
    columns = tuple(Column(data.title, data.recipe, paper=data.bleu) for data in sets)
    notes = tuple(note for data in sets for note in data.notes)
    title = "Table 2: BLEU on the test set (higher is better)"
    return _study("table2", [PlannedTable(title, METHODS, columns, notes=notes)], seeds, overrides)


def table4(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """IWSLT'14 compressed; at small scale also Multi30k, whose training set is complete everywhere."""
    return _compressed_pairs(4, _SMALL_PAIRS if scale == "small" else (_IWSLT,), seeds, overrides)


def table5(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """WMT'14 compressed, at the paper's scale only."""
    if scale == "small":
        raise G2Error(
            "table5 is about WMT'14: its 4.5M pairs take far more than an hour on two cores, and a few thousand of "
            "them teach a model too little to be worth compressing; use --scale paper, or table4 for a small scale"
        )
    return _compressed_pairs(5, (_WMT,), seeds, overrides)


def _compressed_pairs(number: int, sets: Sequence[_Pairs], seeds: int, overrides: Sequence[str]) -> Study:
    tables, base = [], Measurement()
    for data in sets:
        compressed, notes = compression_columns(load_recipe(data.recipe, overrides), data.recipe, base, data.compressed)
        columns = (Column("original", data.recipe, base, paper=data.bleu), *compressed)
        title = f"Table {number}: {data.title}, test BLEU, and what compressing the gates adds to it"
        tables.append(PlannedTable(title, METHODS, columns, notes=(*data.notes, *notes)))
    return _study(f"table{number}", tables, seeds, overrides)


def figures(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """The runs that Figures 1 to 4 need: those of table 4, without the sharpened ones."""
    if seeds != 1:
        raise G2Error("the figures show one model of each kind, with seed 1; leave out --seeds")
    recipe = "multi30k-small" if scale == "small" else "iwslt14"
    runs = methods_with_seeds(recipe, (), seeds=1, overrides=overrides)
    return Study("figures", f"Figures 1 to 4, {recipe}", tuple(run for run in runs if run.row in (BASELINE, OURS)), ())


def demo(overrides: Sequence[str] = ()) -> Study:
    """What `g2lstm demo` carries out: one run of each method on embedded text, compressed with the paper's settings.

    Args:
        overrides: of the recipe's keys.
    """
    check_overrides(overrides, {METHOD: "the demo compares all methods; `g2lstm train demo` trains one"})
    recipe, base = load_recipe("demo", overrides), Measurement()
    compressed, notes = compression_columns(recipe, "demo", base, NO_FIGURES, **PTB_FIGURES)
    columns = (
        Column("test perplexity", "demo", base),
        *compressed,
        Column("gates beyond 0.1 or 0.9", "demo", base, what="saturation"),
    )
    directories = {"sigmoid": "lstm", "sharpened": "sharpened", "gumbel": "g2"}
    runs = [
        replace(run, name=directories[run.row], seed=recipe.train.seed)
        for run in methods_with_seeds("demo", columns, seeds=1, overrides=overrides)
    ]
    notes = (
        *notes,
        "p: how often the choice of test sentences alone would make G² and the LSTM differ this much. It says nothing "
        "about other seeds: the demo shows how things work, and `g2lstm study` compares the methods.",
    )
    title = "One model trained in three ways, and what compression adds to its test perplexity"
    return Study("demo", title, tuple(runs), (PlannedTable(title, METHODS, columns, ((OURS, BASELINE),), notes),))


STUDIES: Mapping[str, Callable[[Scale, int, Sequence[str]], Study]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "figures": figures,
    "ablations": ablations,
}
