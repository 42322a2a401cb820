"""Ablations of the method on the smallest scale: one thing changed at a time, each scored and compressed."""

from collections.abc import Sequence

from g2lstm.config import load_recipe
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
# Trained LSTMs that go on: what each is called, by which method, and for how many epochs. The first tells what more
# training does by itself.
_CONTINUED = {
    "continued16": ("LSTM, then 16 epochs more", BASELINE, 16),
    "converted4": ("LSTM, then 4 epochs of G²", OURS, 4),
    "converted16": ("LSTM, then 16 epochs of G²", OURS, 16),
}
_PAIRS = ((OURS, BASELINE), ("ifo", OURS), ("deep-gumbel", "deep-sigmoid"), ("converted16", "continued16"))


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
        Column("gates beyond 0.1/0.9", "ablations", base, what="saturation"),
    )
    plans = [
        _plan(name, variant, (_BUDGET, *overrides, *changes), seed, columns)
        for seed in range(1, seeds + 1)
        for variant, (_, changes) in _VARIANTS.items()
    ]
    rows = {variant: title for variant, (title, _) in _VARIANTS.items()}
    for variant, (words, method, epochs) in _CONTINUED.items():
        rows[variant] = words
        changes = (f"{METHOD}={method}", _BUDGET, f"train.epochs={epochs}", _FINETUNE[scale])
        plans += [
            _plan(name, variant, (*overrides, *changes), seed, columns, run_name(name, BASELINE, seed))
            for seed in range(1, seeds + 1)
        ]
    title = f"Ablations: test perplexity of {name}, and what evaluation and compression add to it"
    notes = (*notes, "Saturation is that of the input and forget gates in evaluation, soft gates, validation set.")
    return Study("ablations", title, tuple(plans), (TablePlan(title, rows, columns, _PAIRS, notes=notes),))


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
