"""Ablations of the method: one idea changed at a time, each variant scored and compressed."""

from collections.abc import Sequence
from typing import NamedTuple

from g2lstm.lab.study.paper import NO_FIGURES, PTB_FIGURES, compression_columns
from g2lstm.lab.study.plan import (
    BASELINE,
    METHODS,
    OURS,
    Column,
    Measurement,
    PlannedTable,
    Scale,
    Study,
    plan_run,
    run_name,
)
from g2lstm.tasks.recipes import Recipe, load_recipe


class _Variant(NamedTuple):
    """A row of the ablations."""

    title: str
    method: str
    changes: tuple[str, ...] = ()  # overrides of the recipe
    against: tuple[str, ...] = ()  # the rows to compare it with
    epochs: int | None = None  # by which to finetune a trained LSTM; None to train from the start


# Eight layers learn nothing without residual connections, and little at the learning rate of a small stack.
_DEEP = {
    "small": ("model.layers=8", "model.residual=true", "train.optimizer.lr=3e-3"),
    "paper": ("model.layers=8", "model.residual=true"),
}
# How to finetune a trained LSTM: at a low rate that decays, or with averaged weights.
_FINETUNE = {"small": "train.optimizer.lr=1e-3", "paper": "train.optimizer.start=asgd"}
_NO_CLOCK = "train.minutes="  # rows are compared by epochs, whatever each of these costs


def ablations(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Gates, temperature, noise, depth, dropout, evaluation, and a trained LSTM finetuned into a G² model."""
    name = "embedded" if scale == "small" else "ptb"
    recipe, base = load_recipe(name, overrides), Measurement()
    compressed, notes = compression_columns(recipe, name, base, NO_FIGURES, **PTB_FIGURES)
    columns = (
        Column("test", name, base),
        *(Column(gate, name, Measurement(eval_gate=gate), base) for gate in ("tempered", "hard")),
        *compressed,
        Column("saturated", name, base, what="saturation"),
    )
    variants = _variants(recipe, _DEEP[scale])
    runs = []
    for seed in range(1, seeds + 1):
        for row, variant in variants.items():  # the LSTM comes before the rows that start from it
            changes, start = variant.changes, None
            if variant.epochs is not None:
                changes = (*changes, _NO_CLOCK, f"train.epochs={variant.epochs}", _FINETUNE[scale])
                start = run_name(name, BASELINE, seed)
            run = plan_run(
                name,
                variant.method,
                seed,
                columns,
                overrides=(_NO_CLOCK, *overrides),
                row=row,
                changes=changes,
                starts_from=start,
            )
            runs.append(run)
    title = f"Ablations: test perplexity of {name}, and what evaluation and compression add to it"
    notes = (
        *notes,
        f"Eight layers have {' and '.join(_DEEP[scale][1:])}.",
        "Hard gates are the sampled ones: three if the output gate is sampled, otherwise two.",
        "Saturated: the share of input and forget gates beyond 0.1 or 0.9, with soft gates, on the validation set.",
    )
    pairs = tuple((row, other) for row, variant in variants.items() for other in variant.against)
    titles = {row: variant.title for row, variant in variants.items()}
    return Study("ablations", title, tuple(runs), (PlannedTable(title, titles, columns, pairs, notes),))


def _variants(recipe: Recipe, deep: tuple[str, ...]) -> dict[str, _Variant]:
    ours, model = (OURS,), recipe.model
    rates = {"weight_dropout": model.weight_dropout}
    rates |= {f"dropout.{name}": rate for name, rate in model.dropout.model_dump().items()}
    half = tuple(f"model.{name}={rate / 2!r}" for name, rate in rates.items())
    rows = {method: _Variant(title, method) for method, title in METHODS.items()}
    rows[OURS] = rows[OURS]._replace(against=(BASELINE,))
    rows["ifo"] = _Variant("G², output gate too", OURS, ("model.gates=ifo",), ours)
    for tau in (0.3, 0.5, 1.2, 2.0):
        rows[f"tau{tau}"] = _Variant(f"G², τ {tau}", OURS, (f"model.tau={tau}",), ours)
    for rate in (0.0, 0.5, 1.0):
        rows[f"noise{rate}"] = _Variant(f"G², noise rate {rate}", OURS, (f"model.noise_rate={rate}",), ours)
    rows["deep-sigmoid"] = _Variant("LSTM, 8 layers", BASELINE, deep)
    rows["deep-gumbel"] = _Variant("G², 8 layers", OURS, deep, ("deep-sigmoid",))
    # Noise regularises too: how each method does with half of the other regularisers.
    rows["less-sigmoid"] = _Variant("LSTM, half the dropout", BASELINE, half, (BASELINE,))
    rows["less-gumbel"] = _Variant("G², half the dropout", OURS, half, (OURS, "less-sigmoid"))
    for epochs in (4, 16):  # those that stay LSTMs show what more training does by itself
        more, converted = f"continued{epochs}", f"converted{epochs}"
        rows[more] = _Variant(f"LSTM, then {epochs} epochs more", BASELINE, epochs=epochs)
        rows[converted] = _Variant(f"LSTM, then {epochs} epochs of G²", OURS, against=(more,), epochs=epochs)
    return rows
