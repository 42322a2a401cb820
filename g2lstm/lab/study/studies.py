"""The studies by name: the paper's tables and figures, the ablations, and the demo; each as runs and columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.lab.study.figures import bits
from g2lstm.lab.study.plan import (
    BASELINE,
    FIGURES,
    METHOD,
    METHODS,
    OURS,
    SEED,
    Cache,
    Column,
    Measurement,
    PlannedTable,
    Row,
    Scale,
    Study,
    check_overrides,
    key_of,
    plan_runs,
)
from g2lstm.tasks.recipes import Recipe, load_recipe

_RESERVED = {
    "train.compression": "`g2lstm study bits` compares compressions",
    METHOD: "a study compares methods; --only '*gumbel*' picks one",
    SEED: "--seeds N uses the seeds 1 to N",
    "train.finetune_from": "a study decides which run starts from which",
}
_STARTS = {"ptb-finetune": "ptb", "ptb-small-finetune": "ptb-small"}  # whose best weights are finetuned
_PTB = {"small": "ptb-small", "paper": "ptb"}
_PTB_HIDDEN = 1150  # the width of the paper's language model, which its ranks are for
_CACHE: dict[Scale, Cache] = {"small": "tuned", "paper": "recipe"}
_CACHE_NOTE = {
    "small": "The cache settings are tuned on the validation set, separately for each run, before compression.",
    "paper": "The cache has the settings of the paper's code.",
}


def find_study(name: str, scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """A study by its name, which is one of `STUDIES`; overrides are for every recipe, as for `g2lstm train --set`."""
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


def _study(tables: Sequence[PlannedTable], seeds: int, overrides: Sequence[str]) -> Study:
    """The tables' runs: every row with each recipe, after the runs that they start from."""
    columns = [column for table in tables for column in table.columns]
    starts = [(_STARTS.get(column.source), column.source) for column in columns]
    runs = []
    for recipe in dict.fromkeys(recipe for pair in starts for recipe in pair if recipe is not None):
        how = {"rows": tables[0].rows, "starts_from": _STARTS.get(recipe)}
        runs += plan_runs(recipe, columns, seeds=seeds, overrides=overrides, **how)  # type: ignore[arg-type]
    return Study(tuple(runs), tuple(tables))


def _compressed(
    recipe: Recipe, original: Column, figures: Mapping[str, Mapping[str, float]], paper_hidden: int | None = None
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """A column for the original and one for each compression of the gates, in the paper's order; and notes on them.

    The figures are by preset and method. If a model is not as wide as the paper's, it also gets ranks in proportion.
    """

    def column(spec: str, by_method: Mapping[str, float]) -> Column:
        title, base = spec.removeprefix("gates=").replace(",", ", ").replace(":", " "), original.measurement
        measurement = replace(base, compression=spec)
        return replace(original, title=title, measurement=measurement, against=base, paper=by_method)

    hidden, narrowest = recipe.model.hidden, min(recipe.model.embedding, recipe.model.hidden)
    columns, notes, ranks = [original], [], []
    for preset, by_method in figures.items():
        operations = Spec.parse(preset).gates
        if operations is not None and (rank := dict(operations.numbers).get("svd")) is not None:
            ranks.append(int(rank))
            if rank > narrowest:
                notes.append(f"Rank {rank} is left out: the layers are only {narrowest} wide.")
                continue
        columns.append(column(PRESETS[preset], by_method))
    if paper_hidden is not None and hidden != paper_hidden:
        own = list(dict.fromkeys(max(1, round(rank * hidden / paper_hidden)) for rank in ranks))
        columns += [column(f"gates=svd:{rank}", {}) for rank in own if rank <= narrowest]
        listed, theirs = (" and ".join(map(str, each)) for each in (own, ranks))
        notes.append(f"Ranks {listed} of layers {hidden} wide correspond to the paper's {theirs} of {paper_hidden}.")
    return tuple(columns), tuple(notes)


_HARD_NOTE = "The binary model's gates are hard in every measurement; the others' are soft unless it says hard."


def _hard(original: Column) -> Column:
    """What forcing the gates to 0 or 1 changes; without the cache, which would be tuned anew for other gates."""
    own = replace(original.measurement, cache=None)
    title = "hard gates" if original.measurement.cache is None else "hard gates, no cache"
    return replace(original, title=title, measurement=replace(own, eval_gate="hard"), against=own, paper={})


def _without_figures(name: str) -> dict[str, Mapping[str, float]]:
    return {preset: {} for preset in FIGURES[name]}  # for other data than the paper's


def table1(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Perplexity on Penn Treebank: trained, finetuned, and with the cache."""
    first = _PTB[scale]
    stages: dict[str, tuple[str, str, Cache | None]] = {
        "trained": (first, "", None),
        "finetuned": (f"{first}-finetune", ", finetuned", None),
        "cache": (f"{first}-finetune", ", finetuned, cache", _CACHE[scale]),
    }
    columns = []
    for stage, (recipe, title, cache) in stages.items():
        for split in ("valid", "test"):
            figures = FIGURES["ptb"][f"{stage} {split}"]
            columns.append(Column(f"{split}{title}", recipe, Measurement(split, cache=cache), paper=figures, digits=1))
    notes = [_CACHE_NOTE[scale]]
    if scale == "small":
        notes.append("Validation scores with the cache are on the same text that the cache was tuned on.")
    title = "Table 1: perplexity on Penn Treebank (lower is better)"
    return _study([PlannedTable(title, tuple(columns), tuple(notes))], seeds, overrides)


def table3(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Penn Treebank after each compression, with the cache; at small scale without finetuning."""
    name = f"{_PTB[scale]}-finetune" if scale == "paper" else _PTB[scale]
    measurement = Measurement(cache=_CACHE[scale])
    original = Column("original", name, measurement, paper=FIGURES["ptb"]["cache test"], digits=1)
    recipe = load_recipe(_PTB[scale], overrides)
    columns, notes = _compressed(recipe, original, FIGURES["ptb compressed"], _PTB_HIDDEN)
    columns, notes = (*columns, _hard(original)), (*notes, _HARD_NOTE, _CACHE_NOTE[scale])
    if scale == "small":
        notes = (*notes, "The paper's models were finetuned before compression; these are not.")
    title = "Table 3: test perplexity on Penn Treebank with the cache, and what compressing the gates adds to it"
    return _study([PlannedTable(title, columns, notes)], seeds, overrides)


_PAIRS = {  # translation data sets by recipe: the title, and the name in the paper's figures
    "multi30k-small": ("Multi30k German to English", None),
    "iwslt14-small": ("IWSLT'14 German to English", "iwslt14"),
    "iwslt14": ("IWSLT'14 German to English", "iwslt14"),
    "wmt14": ("WMT'14 English to German", "wmt14"),
}
_SMALL_PAIRS = ("multi30k-small", "iwslt14-small")
_WMT_NOTE = (
    "Our BLEU on WMT'14 is for plain text, tokenised by sacreBLEU (13a); the paper's is multi-bleu on tokenised text. "
    "The scores are not comparable; their differences are, roughly."
)


def _bleu(recipe: str, title: str) -> Column:
    name = _PAIRS[recipe][1]
    return Column(title, recipe, paper={} if name is None else FIGURES["bleu"][name])


def table2(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """BLEU on the test sets, side by side."""
    recipes = _SMALL_PAIRS if scale == "small" else ("wmt14", "iwslt14")
    columns = tuple(_bleu(recipe, _PAIRS[recipe][0]) for recipe in recipes)
    title = "Table 2: BLEU on the test set (higher is better)"
    notes = (_WMT_NOTE,) if "wmt14" in recipes else ()
    return _study([PlannedTable(title, columns, notes)], seeds, overrides)


def table4(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """IWSLT'14 compressed; at small scale also Multi30k, whose training set is complete everywhere."""
    return _compressed_pairs("4", _SMALL_PAIRS if scale == "small" else ("iwslt14",), seeds, overrides)


def table5(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """WMT'14 compressed, at the paper's scale only."""
    if scale == "small":
        raise G2Error(
            "table5 is about WMT'14: its 4.5M pairs take far more than an hour on two cores, and a few thousand of "
            "them teach a model too little to be worth compressing; use --scale paper, or table4 for a small scale"
        )
    return _compressed_pairs("5", ("wmt14",), seeds, overrides)


def _compressed_pairs(number: str, recipes: Sequence[str], seeds: int, overrides: Sequence[str]) -> Study:
    tables = []
    for recipe in recipes:
        title, name = _PAIRS[recipe]
        figures = _without_figures("iwslt14 compressed") if name is None else FIGURES[f"{name} compressed"]
        columns, notes = _compressed(load_recipe(recipe, overrides), _bleu(recipe, "original"), figures)
        columns, notes = (*columns, _hard(columns[0])), (*notes, _HARD_NOTE)
        title = f"Table {number}: {title}, test BLEU, and what compressing the gates adds to it"
        tables.append(PlannedTable(title, columns, (_WMT_NOTE, *notes) if name == "wmt14" else notes))
    return _study(tables, seeds, overrides)


def figures(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """The runs that Figures 1 to 4 need: the runs of table 4, without sharpened gates."""
    if seeds != 1:
        raise G2Error("the figures show one model of each kind, with seed 1; leave out --seeds")
    recipe = "multi30k-small" if scale == "small" else "iwslt14"
    rows = {name: METHODS[name] for name in (BASELINE, OURS, "binary")}
    runs = plan_runs(recipe, (), seeds=1, rows=rows, overrides=overrides)
    return Study(tuple(runs), ())


# Eight layers learn nothing without residual connections, and little at the learning rate of a small stack.
_DEEP = {
    "small": ("model.layers=8", "model.residual=true", "train.optimizer.lr=3e-3"),
    "paper": ("model.layers=8", "model.residual=true"),
}
# How to finetune a trained LSTM: at a low rate that decays, or with averaged weights.
_FINETUNE = {"small": "train.optimizer.lr=1e-3", "paper": "train.optimizer.start=asgd"}
_NO_CLOCK = "train.minutes="  # rows are compared after the same epochs, whatever an epoch costs


def ablations(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Gates, temperature, noise, depth, dropout, evaluation, and a trained LSTM finetuned into a G² model."""
    name = "embedded" if scale == "small" else "ptb"
    recipe, test = load_recipe(name, overrides), Column("test", name)
    (_, *compressed), notes = _compressed(recipe, test, _without_figures("ptb compressed"), _PTB_HIDDEN)
    gates = [Column(gate, name, Measurement(eval_gate=gate), test.measurement) for gate in ("tempered", "hard")]
    columns = (test, *gates, *compressed, Column("saturated", name, what="saturation"))
    notes = (
        *notes,
        f"Eight layers have {' and '.join(_DEEP[scale][1:])}.",
        "Hard gates are the sampled ones: three if the output gate is sampled, otherwise two.",
        "Saturated: the share of input and forget gates below 0.1 or above 0.9 in evaluation, on the validation set.",
        _HARD_NOTE,
    )
    title = f"Ablations: test perplexity of {name}, and what evaluation and compression add to it"
    table = PlannedTable(title, columns, notes, _variants(recipe, _DEEP[scale], _FINETUNE[scale]))
    return _study([table], seeds, (_NO_CLOCK, *overrides))


def _variants(recipe: Recipe, deep: tuple[str, ...], finetune: str) -> dict[str, Row]:
    ours, model = (OURS,), recipe.model
    rates = {"weight_dropout": model.weight_dropout}
    rates |= {f"dropout.{name}": rate for name, rate in model.dropout.model_dump().items()}
    half = tuple(f"model.{name}={rate / 2!r}" for name, rate in rates.items())
    rows = METHODS | {OURS: replace(METHODS[OURS], against=(BASELINE,))}
    rows["binary-from-start"] = Row(
        "binary from the start", "binary", ("binary",), ("train.gates.soft_rate=0", "model.noise_rate=0.2")
    )
    rows["ifo"] = Row("G², output gate too", OURS, ours, ("model.gates=ifo",))
    for tau in (0.3, 0.5, 1.2, 2.0):
        rows[f"tau{tau}"] = Row(f"G², τ {tau}", OURS, ours, (f"model.tau={tau}",))
    for rate in (0.0, 0.5, 1.0):
        rows[f"noise{rate}"] = Row(f"G², noise rate {rate}", OURS, ours, (f"model.noise_rate={rate}",))
    rows["deep-sigmoid"] = Row("LSTM, 8 layers", BASELINE, (), deep)
    rows["deep-gumbel"] = Row("G², 8 layers", OURS, ("deep-sigmoid",), deep)
    # Noise regularises too: how each method does with half of the other regularisers.
    rows["less-sigmoid"] = Row("LSTM, half the dropout", BASELINE, (BASELINE,), half)
    rows["less-gumbel"] = Row("G², half the dropout", OURS, (OURS, "less-sigmoid"), half)
    for epochs in (4, 16):  # rows that stay LSTMs show what more training alone does
        changes, more = (_NO_CLOCK, f"train.epochs={epochs}", finetune), f"continued{epochs}"
        rows[more] = Row(f"LSTM, then {epochs} epochs more", BASELINE, (), changes, BASELINE)
        rows[f"converted{epochs}"] = Row(f"LSTM, then {epochs} epochs of G²", OURS, (more,), changes, BASELINE)
    return rows


def demo(overrides: Sequence[str] = ()) -> Study:
    """What `g2lstm demo` carries out: one run of each method on embedded text, compressed with the paper's settings."""
    check_overrides(overrides, {METHOD: "the demo compares all methods; `g2lstm train demo` trains one"})
    recipe = load_recipe("demo", overrides)
    columns, notes = _compressed(
        recipe, Column("test perplexity", "demo"), _without_figures("ptb compressed"), _PTB_HIDDEN
    )
    columns = (*columns, _hard(columns[0]), Column("gates beyond 0.1 or 0.9", "demo", what="saturation"))
    directories = {BASELINE: "lstm", OURS: "g2", "binary": "binary"}
    rows = {name: METHODS[name] for name in directories}
    rows |= {OURS: replace(METHODS[OURS], against=(BASELINE,)), "binary": replace(METHODS["binary"], against=())}
    runs = [
        replace(run, name=directories[run.row], seed=recipe.train.seed)
        for run in plan_runs("demo", columns, seeds=1, rows=rows, overrides=overrides)
    ]
    notes = (
        *notes,
        _HARD_NOTE,
        "p: how often the choice of test sentences alone would make G² and the LSTM differ this much. It says nothing "
        "about other seeds: the demo shows how things work, and `g2lstm study` compares the methods.",
    )
    title = "One model trained in three ways, and what compression adds to its test perplexity"
    return Study(tuple(runs), (PlannedTable(title, columns, notes, rows),))


STUDIES: Mapping[str, Callable[[Scale, int, Sequence[str]], Study]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "figures": figures,
    "ablations": ablations,
    "bits": bits,
}
