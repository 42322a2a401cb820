"""The study `bits`: Penn Treebank in few bits per weight, as papers on quantised LSTMs do it; and its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from g2lstm.lab.study.plan import (
    BASELINE,
    METHODS,
    OURS,
    Column,
    Measurement,
    PlannedTable,
    Row,
    Scale,
    Study,
    plan_runs,
)
from g2lstm.look.pictures.bits import Curve, Dot, draw_bits
from g2lstm.look.pictures.style import save
from g2lstm.tasks.recipes import load_recipe
from g2lstm.training.finetune import RATE

if TYPE_CHECKING:
    from g2lstm.lab.study.table import StudyTable

RECIPE = "ptb-300"
SPECS: Mapping[str, str] = {"4": "levels:16", "3": "int3", "2": "int2", "1.6": "levels:3"}  # for all matrices, by bits
EPOCHS = 4  # of a finetune
# What others report for one layer of 300 units and windows of 35 words; they quantise activations too.
OTHERS = (
    Dot("Xu et al., 2018: 3 bits (full: 89.8)", 3.0, 87.9),
    Dot("HitNet, 2018: ternary (full: 97.2)", 1.6, 110.3),
)
_OTHERS_NOTE = (
    "Others report, for weights and activations in few bits: 89.8 in full and 87.9 with 3 bits by alternating "
    "quantisation (Xu et al., ICLR 2018, as cited in Table 3 of doi:10.1155/2022/9485933); 97.2 in full and 110.3 with "
    "three levels (HitNet, Wang et al., NeurIPS 2018, abstract)."
)


def bits(scale: Scale, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """Full weights and 4, 3, 2 and 1.6 bits, without and with a finetune; both scales are the same."""
    rows = {name: METHODS[name] for name in (BASELINE, OURS, "binary")}
    rows[OURS] = replace(rows[OURS], against=(BASELINE,))
    plain = [Column("full", RECIPE)]
    plain += [Column(f"{n} bits", RECIPE, Measurement(compression=spec)) for n, spec in SPECS.items()]
    tuned = [Column(title, f"{RECIPE}-{variant}") for title, variant, _ in _variants()]
    runs = plan_runs(RECIPE, plain, seeds=seeds, rows=rows, overrides=overrides)
    recipe = load_recipe(RECIPE, overrides)
    more = [f"train.epochs={EPOCHS}", f"train.optimizer.lr={recipe.train.optimizer.lr * RATE!r}"]
    for _, variant, compression in _variants():
        changes = [*overrides, *more, *compression]
        how = {"rows": _from_the_start(rows), "starts_from": RECIPE, "variant": variant}
        runs += plan_runs(RECIPE, tuned, seeds=seeds, overrides=changes, **how)  # type: ignore[arg-type]
    title = "Penn Treebank, one layer of 300 units: test perplexity by bits per weight"
    specs = ", ".join(f"{n} bits: {spec}" for n, spec in SPECS.items())
    note = f"All matrices are compressed ({specs}); each row has a scale of 16 bits, biases are kept."
    notes = (
        note,
        f"A finetune has {EPOCHS} epochs, with full weights too; see `g2lstm compress --help`.",
        _OTHERS_NOTE,
    )
    tables = (
        PlannedTable(f"{title}, as trained", tuple(plain), (note,), rows),
        PlannedTable(f"{title}, finetuned", tuple(tuned), notes, rows),
    )
    return Study(tuple(runs), tables)


def _variants() -> list[tuple[str, str, list[str]]]:
    """The title, name and changes of each finetune."""
    full: list[tuple[str, str, list[str]]] = [("full", "finetuned", [])]
    return full + [(f"{n} bits", f"{n}bits", [f"train.compression={spec}"]) for n, spec in SPECS.items()]


def _from_the_start(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Binary gates that a run has already learnt are there from the first update on."""
    return {
        name: replace(row, changes=("train.gates.start=0",)) if name == "binary" else row for name, row in rows.items()
    }


def draw_league(tables: "Sequence[StudyTable]", out: Path) -> list[Path]:
    """Draws perplexity against bits into `out`; nothing if there is nothing to draw."""
    curves: list[Curve] = []
    for table, when in zip(tables, ("as trained", "finetuned"), strict=False):
        for name, cells in table.rows:
            full, *few = (cell.values for cell in cells)
            points = [(float(n), values) for n, values in zip(SPECS, few, strict=True) if values]
            if points:
                curves.append(Curve(f"{name}, {when}", points, full))
    return save(draw_bits(curves, OTHERS), out / "bits") if curves else []
