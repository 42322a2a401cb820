"""Ablations of the method on the smallest scale: one idea changed at a time, each scored and compressed."""

from collections.abc import Sequence
from typing import NamedTuple

from g2lstm.lab.study import paper
from g2lstm.lab.study.columns import compression_columns
from g2lstm.lab.study.plan import (
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
from g2lstm.tasks.recipes import Recipe, load_recipe

_RECIPES = {"small": "embedded", "paper": "ptb"}
# How a trained LSTM is finetuned: at a low rate that falls, or with averaged weights.
_FINETUNE = {"small": "train.optimizer.lr=1e-3", "paper": "train.optimizer.start=asgd"}
# Eight layers learn nothing unless their inputs go round them, and little at the rate of a small stack.
_DEEP = {
    "small": ("model.layers=8", "model.residual=true", "train.optimizer.lr=3e-3"),
    "paper": ("model.layers=8", "model.residual=true"),
}
# Rows are compared by epochs, whatever each of these costs.
_BUDGET = "train.minutes="


class _Row(NamedTuple):
    title: str
    method: str
    changes: tuple[str, ...] = ()  # of the recipe's keys
    against: tuple[str, ...] = ()  # rows that it is compared with
    epochs: int | None = None  # for which a trained LSTM goes on; None for a training of its own


def ablations(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Gates, temperature, noise, depth, dropout, evaluation, and a trained LSTM that becomes G² by a short finetune."""
    name = _RECIPES[scale]
    recipe = load_recipe(name, overrides)
    base = Measurement()
    figures: dict[str, dict[str, float]] = {preset: {} for preset in paper.PTB_COMPRESSED}
    compressed, notes = compression_columns(recipe, figures, "ablations", base, **paper.PTB_SHAPE)
    columns = (
        Column("test", "ablations", base),
        *(Column(gate, "ablations", Measurement(eval_gate=gate), against=base) for gate in ("tempered", "hard")),
        *compressed,
        Column("saturated", "ablations", base, what="saturation"),
    )
    rows = _rows(recipe, _DEEP[scale])
    plans = [
        Plan(
            run_name(name, variant, seed),
            name,
            (
                _BUDGET,
                *overrides_for(row.method, overrides),
                f"{METHOD}={row.method}",
                *row.changes,
                *(() if row.epochs is None else (_BUDGET, f"train.epochs={row.epochs}", _FINETUNE[scale])),
            ),
            variant,
            "ablations",
            seed,
            measurements_of(columns, "ablations"),
            None if row.epochs is None else run_name(name, BASELINE, seed),
        )
        for seed in range(1, seeds + 1)
        for variant, row in rows.items()  # the LSTM comes before the rows that go on from it
    ]
    title = f"Ablations: test perplexity of {name}, and what evaluation and compression add to it"
    notes = (
        *notes,
        f"Eight layers have {' and '.join(_DEEP[scale][1:])}.",
        "Hard are the gates that are sampled: three where the output gate is too, else two.",
        "Saturated: input and forget gates beyond 0.1 or 0.9 in evaluation, soft gates, validation set.",
    )
    pairs = tuple((variant, other) for variant, row in rows.items() for other in row.against)
    table = TablePlan(title, {variant: row.title for variant, row in rows.items()}, columns, pairs, notes)
    return Study("ablations", title, tuple(plans), (table,))


def _rows(recipe: Recipe, deep: tuple[str, ...]) -> dict[str, _Row]:
    ours, half = (OURS,), _half_the_dropout(recipe)
    rows = {method: _Row(title, method) for method, title in METHODS.items()}
    rows[OURS] = rows[OURS]._replace(against=(BASELINE,))
    rows["ifo"] = _Row("G², output gate too", OURS, ("model.gates=ifo",), ours)
    rows |= {f"tau{tau}": _Row(f"G², τ {tau}", OURS, (f"model.tau={tau}",), ours) for tau in (0.3, 0.5, 1.2, 2.0)}
    for rate in (0.0, 0.5, 1.0):
        rows[f"noise{rate}"] = _Row(f"G², noise rate {rate}", OURS, (f"model.noise_rate={rate}",), ours)
    rows["deep-sigmoid"] = _Row("LSTM, 8 layers", BASELINE, deep)
    rows["deep-gumbel"] = _Row("G², 8 layers", OURS, deep, ("deep-sigmoid",))
    # Noise is a regulariser too: how each method does with half of the others.
    rows["less-sigmoid"] = _Row("LSTM, half the dropout", BASELINE, half, (BASELINE,))
    rows["less-gumbel"] = _Row("G², half the dropout", OURS, half, (OURS, "less-sigmoid"))
    for epochs in (4, 16):  # those that stay LSTMs tell what more training does by itself
        more, converted = f"continued{epochs}", f"converted{epochs}"
        rows[more] = _Row(f"LSTM, then {epochs} epochs more", BASELINE, epochs=epochs)
        rows[converted] = _Row(f"LSTM, then {epochs} epochs of G²", OURS, against=(more,), epochs=epochs)
    return rows


def _half_the_dropout(recipe: Recipe) -> tuple[str, ...]:
    model = recipe.model
    rates = {"weight_dropout": model.weight_dropout}
    rates |= {f"dropout.{name}": rate for name, rate in model.dropout.model_dump().items()}
    return tuple(f"model.{name}={rate / 2!r}" for name, rate in rates.items())
