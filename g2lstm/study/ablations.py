"""Ablations of the method on the smallest scale: one thing changed at a time, each scored and compressed."""

from collections.abc import Sequence

from g2lstm.config import Recipe, load_recipe
from g2lstm.study import paper
from g2lstm.study.columns import compression_columns
from g2lstm.study.plan import (
    BASELINE,
    METHOD,
    METHODS,
    OURS,
    Column,
    Measurement,
    Plan,
    Scale,
    Study,
    TablePlan,
    measurements_of,
    overrides_for,
    run_name,
)

_RECIPES = {"small": "embedded", "paper": "ptb"}
# How a trained LSTM is finetuned: at a low rate that falls, or with averaged weights.
_FINETUNE = {"small": "train.optimizer.lr=1e-3", "paper": "train.optimizer.start=asgd"}
# Rows are compared by epochs, whatever each of these costs.
_BUDGET = "train.minutes="
# What each row is called, and what it changes.
_VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{method: (title, (f"{METHOD}={method}",)) for method, title in METHODS.items()},
    "ifo": ("G², output gate too", ("model.gates=ifo",)),
    **{f"tau{tau}": (f"G², τ {tau}", (f"model.tau={tau}",)) for tau in (0.3, 0.5, 1.2, 2.0)},
    **{f"noise{rate}": (f"G², noise rate {rate}", (f"model.noise_rate={rate}",)) for rate in (0.0, 0.5, 1.0)},
    "deep-sigmoid": ("LSTM, 8 layers", (f"{METHOD}={BASELINE}", "model.layers=8")),
    "deep-gumbel": ("G², 8 layers", ("model.layers=8",)),
}
# Noise is a regulariser too: how each method does with half of the others.
_LESS_DROPOUT = {
    "less-sigmoid": ("LSTM, half the dropout", BASELINE),
    "less-gumbel": ("G², half the dropout", OURS),
}
# Trained LSTMs that go on: what each is called, by which method, and for how many epochs. Those that stay LSTMs tell
# what more training does by itself.
_CONTINUED = {
    f"{kind}{epochs}": (f"LSTM, then {epochs} epochs {words}", method, epochs)
    for epochs in (4, 16)
    for kind, words, method in (("continued", "more", BASELINE), ("converted", "of G²", OURS))
}
# Each row and the one that it is to be compared with.
_PAIRS = (
    (OURS, BASELINE),
    *(
        (variant, OURS)
        for variant in ("ifo", "tau0.3", "tau0.5", "tau1.2", "tau2.0", "noise0.0", "noise0.5", "noise1.0")
    ),
    ("deep-gumbel", "deep-sigmoid"),
    ("less-sigmoid", BASELINE),
    ("less-gumbel", OURS),
    ("less-gumbel", "less-sigmoid"),
    *((f"converted{epochs}", f"continued{epochs}") for epochs in (4, 16)),
)


def ablations(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Gates, temperature, noise, evaluation, depth, and a trained LSTM that becomes G² by a short finetune."""
    name = _RECIPES[scale]
    recipe = load_recipe(name, overrides)
    base = Measurement()
    figures: dict[str, dict[str, float]] = {preset: {} for preset in paper.PTB_COMPRESSED}
    compressed, notes = compression_columns(recipe, figures, "ablations", base)
    columns = (
        Column("test", "ablations", base),
        *(Column(gate, "ablations", Measurement(eval_gate=gate), against=base) for gate in ("tempered", "hard")),
        *compressed,
        Column("saturated", "ablations", base, what="saturation"),
    )
    less = _half_the_dropout(recipe)
    variants = _VARIANTS | {
        variant: (words, (f"{METHOD}={method}", *less)) for variant, (words, method) in _LESS_DROPOUT.items()
    }
    plans = [
        _plan(name, variant, (_BUDGET, *_for(changes, overrides), *changes), seed, columns)
        for seed in range(1, seeds + 1)
        for variant, (_, changes) in variants.items()
    ]
    rows = {variant: title for variant, (title, _) in variants.items()}
    for variant, (words, method, epochs) in _CONTINUED.items():
        rows[variant] = words
        changes = (f"{METHOD}={method}", _BUDGET, f"train.epochs={epochs}", _FINETUNE[scale])
        plans += [
            _plan(name, variant, (*_for(changes, overrides), *changes), seed, columns, run_name(name, BASELINE, seed))
            for seed in range(1, seeds + 1)
        ]
    title = f"Ablations: test perplexity of {name}, and what evaluation and compression add to it"
    notes = (*notes, "Saturated: input and forget gates beyond 0.1 or 0.9 in evaluation, soft gates, validation set.")
    return Study("ablations", title, tuple(plans), (TablePlan(title, rows, columns, _PAIRS, notes=notes),))


def _for(changes: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """The user's overrides for a row that changes this, of whatever method it is."""
    method = next((change.partition("=")[2] for change in changes if change.startswith(f"{METHOD}=")), OURS)
    return overrides_for(method, overrides)


def _half_the_dropout(recipe: Recipe) -> tuple[str, ...]:
    model = recipe.model
    rates = {"weight_dropout": model.weight_dropout}
    rates |= {f"dropout.{name}": rate for name, rate in model.dropout.model_dump().items()}
    return tuple(f"model.{name}={rate / 2!r}" for name, rate in rates.items())


def _plan(
    recipe: str,
    variant: str,
    overrides: tuple[str, ...],
    seed: int,
    columns: Sequence[Column],
    starts_from: str | None = None,
) -> Plan:
    measurements = measurements_of(columns, "ablations")
    return Plan(
        run_name(recipe, variant, seed), recipe, overrides, variant, "ablations", seed, measurements, starts_from
    )
