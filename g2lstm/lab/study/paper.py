"""The paper's own figures (Li et al., ICML 2018), by table, and the columns of compressed models that show them."""

from collections.abc import Mapping
from dataclasses import replace

from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.lab.study.plan import Column, Measurement
from g2lstm.tasks.recipes import Recipe

# Table 1: perplexity on Penn Treebank, by stage and split, and method; "cache" is after finetuning.
PTB = {
    ("trained", "valid"): {"sigmoid": 60.7, "sharpened": 61.6, "gumbel": 60.4},
    ("trained", "test"): {"sigmoid": 58.8, "sharpened": 59.4, "gumbel": 58.2},
    ("finetuned", "valid"): {"sigmoid": 60.0, "sharpened": 59.9, "gumbel": 58.5},
    ("finetuned", "test"): {"sigmoid": 57.3, "sharpened": 57.5, "gumbel": 56.1},
    ("cache", "valid"): {"sigmoid": 53.9, "sharpened": 53.9, "gumbel": 52.9},
    ("cache", "test"): {"sigmoid": 52.8, "sharpened": 53.2, "gumbel": 52.1},
}

# Table 2: BLEU, by data set and method.
BLEU = {
    "wmt14": {"sigmoid": 21.89, "sharpened": 21.64, "gumbel": 22.43},
    "iwslt14": {"sigmoid": 31.00, "sharpened": 29.73, "gumbel": 31.95},
}

# Tables 3 to 5: what compression of the gates' weights changes, by preset and method.
PTB_COMPRESSED = {
    "paper-lm-round": {"sigmoid": 0.4, "sharpened": 0.3, "gumbel": 0.1},
    "paper-lm-clip": {"sigmoid": 0.8, "sharpened": 0.4, "gumbel": 0.7},
    "paper-lm-svd128": {"sigmoid": 3.8, "sharpened": 1.4, "gumbel": 1.2},
    "paper-lm-svd64": {"sigmoid": 12.7, "sharpened": 6.8, "gumbel": 3.9},
}
IWSLT14_COMPRESSED = {
    "paper-mt-round": {"sigmoid": -2.35, "sharpened": -2.65, "gumbel": -0.51},
    "paper-mt-clip": {"sigmoid": -9.03, "sharpened": -4.59, "gumbel": -0.51},
    "paper-mt-svd32": {"sigmoid": -0.48, "sharpened": -0.53, "gumbel": -0.33},
    "paper-mt-svd16": {"sigmoid": -1.44, "sharpened": -0.91, "gumbel": -0.67},
}
WMT14_COMPRESSED = {
    "paper-mt-round": {"sigmoid": -5.67, "sharpened": -4.79, "gumbel": -2.28},
    "paper-mt-clip": {"sigmoid": -5.86, "sharpened": -4.92, "gumbel": -2.14},
    "paper-mt-svd32": {"sigmoid": -0.74, "sharpened": -0.66, "gumbel": -0.27},
    "paper-mt-svd16": {"sigmoid": -1.90, "sharpened": -1.77, "gumbel": -0.51},
}

PTB_HIDDEN = 1150  # the width that the paper's ranks of a language model are for
PTB_FIGURES = {"digits": 1, "paper_hidden": PTB_HIDDEN}  # for `compression_columns`
NO_FIGURES: Mapping[str, Mapping[str, float]] = {preset: {} for preset in PTB_COMPRESSED}  # for other data


def compression_columns(
    recipe: Recipe,
    name: str,
    base: Measurement,
    figures: Mapping[str, Mapping[str, float]],
    *,
    digits: int = 2,
    paper_hidden: int | None = None,
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Columns for each compression of the gates, in the paper's order; and notes on them.

    Args:
        recipe: of the runs.
        name: of that recipe.
        base: the measurement before compression.
        figures: the paper's, by preset and method.
        digits: how many decimal places these have.
        paper_hidden: the width that the paper's ranks are for; a model of another width also gets ranks in proportion.
    """

    def column(spec: str, by_method: Mapping[str, float]) -> Column:
        title = spec.removeprefix("gates=").replace(",", ", ").replace(":", " ")
        return Column(title, name, replace(base, compression=spec), base, paper=by_method, digits=digits)

    hidden, narrowest = recipe.model.hidden, min(recipe.model.embedding, recipe.model.hidden)
    columns, notes, ranks = [], [], []
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
        notes.append(f"Ranks {listed} are to layers {hidden} wide what the paper's {theirs} are to its {paper_hidden}.")
    return tuple(columns), tuple(notes)
