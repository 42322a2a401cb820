"""What studies draw: the paper's Figures 1 to 4, and `bits`, Penn Treebank in few bits per weight."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from g2lstm.errors import G2Error
from g2lstm.lab.study.jobs import Job
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
from g2lstm.look.examine import as_object, examine
from g2lstm.look.pictures.curve import Curve, Dot, draw_bits
from g2lstm.look.pictures.histograms import draw_histograms, draw_sigmoid
from g2lstm.look.pictures.sentence import draw_words
from g2lstm.look.pictures.style import save
from g2lstm.runs.compressed import write_json
from g2lstm.runs.trained import load_as
from g2lstm.tasks.recipes import MT, load_recipe
from g2lstm.tasks.trained import Progress
from g2lstm.training.distill import RATE

if TYPE_CHECKING:
    from g2lstm.lab.study.table import StudyTable


PAIRS = 10_000  # of the training set, as in the paper
_FIRST = "decoder.0"
_WORDS = range(8, 19)  # in a sentence for the heat map


def draw_figures(jobs: Sequence[Job], data_dir: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Draws the figures into figures-RECIPE beside the runs, unless they are newer than the weights; returns the files.

    The gates are those of evaluation, given the target, and counted on pairs of the training set. As in the
    paper, Figures 1, 3 and 4 show the decoder's first layer. Figure 4 shows a pair of the test set: the first whose
    source is neither trivial nor too long for one picture.
    """
    for job in jobs:
        if job.training is None or not (job.path / "model.safetensors").is_file():
            raise G2Error(f"the figures need {job.path}, which is not trained; carry out the whole study")
    folder = jobs[0].path.with_name(f"figures-{jobs[0].run.recipe}")
    names = ("figure1and3-histograms", "figure2-sigmoid", "figure4-words")
    files = [folder / f"{name}.{ending}" for name in names for ending in ("png", "svg")] + [folder / "gates.json"]
    changed = max((job.path / "model.safetensors").stat().st_mtime for job in jobs)
    if all(file.is_file() and file.stat().st_mtime > changed for file in files):
        return files
    models = {METHODS[job.run.row].title: load_as(MT, job.path) for job in jobs}
    pairs = list(zip(*next(iter(models.values())).split("test", data_dir), strict=True))
    source, target = next((pair for pair in pairs if len(pair[0].split()) in _WORDS), pairs[0])
    how = {"split": "train", "samples": PAIRS, "text": source, "target": target}
    found = {
        name: examine(trained, name, data_dir=data_dir, progress=progress, **how)  # type: ignore[arg-type]
        for name, trained in models.items()
    }
    layers = {name: each.numbers["layers"] for name, each in found.items()}
    first = {name: [layer for layer in each if layer["name"] == _FIRST] for name, each in layers.items()}
    readings = {
        name: replace(each.reading, layers=[layer for layer in each.reading.layers if layer.name == _FIRST])
        for name, each in found.items()
        if each.reading is not None
    }
    mode = next(iter(found.values())).numbers["mode"]
    save(draw_histograms(first, mode, "first layer of the decoder"), folder / names[0])
    save(draw_sigmoid(layers, mode), folder / names[1])
    save(draw_words(readings, "target"), folder / names[2])
    write_json(folder / "gates.json", as_object(found))
    return files


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
        name: replace(row, changes=("train.gates.soft_rate=0",)) if name == "binary" else row
        for name, row in rows.items()
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
