"""What a study consists of: runs to train, how to measure them, the columns of its tables, and the paper's figures."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.tasks.recipes import Recipe, load_recipe
from g2lstm.training.start import with_absolute_paths

METHOD, SEED = "model.method", "train.seed"  # the keys in which runs of one recipe differ
_OURS_ALONE = ("model.tau", "model.noise_rate")  # settings of G² that would change other methods

Scale = Literal["small", "paper"]
Cache = Literal["recipe", "tuned"]  # settings of the cache pointer: the recipe's, or tuned on the validation set


@dataclass(frozen=True)
class Row:
    """A row of a table: one way to train."""

    title: str
    method: str
    against: tuple[str, ...] = ()  # rows to compare it with
    changes: tuple[str, ...] = ()  # overrides that define the row
    starts_from: str | None = None  # the row whose trained weights it starts from


BASELINE, OURS = "sigmoid", "gumbel"
METHODS = {
    "sigmoid": Row("LSTM", "sigmoid"),
    "sharpened": Row("sharpened", "sharpened"),
    "gumbel": Row("G²", "gumbel", ("sigmoid", "sharpened")),
    "binary": Row("binary", "binary", ("sigmoid", "gumbel")),
}


@dataclass(frozen=True)
class Measurement:
    """One way to score a run."""

    split: str = "test"
    eval_gate: str | None = None  # None for the model's own: hard if it was trained with binary gates
    cache: Cache | None = None  # a tuned cache is tuned with the uncompressed model
    compression: str | None = None  # a spec, or the name of a preset

    @property
    def spec(self) -> str | None:
        """The compression in canonical form, so that changing a preset makes a new measurement."""
        return None if self.compression is None else str(Spec.parse(self.compression))

    def name(self, recipe: Recipe) -> str:
        """A file name that says what it is for a model of this recipe: "test-soft-cache_tuned-gates_svd64"."""
        parts = [self.split, self.eval_gate or recipe.model.eval_gate]
        parts += [f"cache_{self.cache}"] if self.cache else []
        parts += [re.sub(r"[=,;]+ *", "_", self.spec.replace(":", ""))] if self.spec else []
        return "-".join(parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    name: str  # of its run directory, inside the folder for all runs; studies share runs of the same name
    recipe: str  # a shipped one
    overrides: tuple[str, ...]
    row: str
    seed: int
    measurements: tuple[Measurement, ...]
    starts_from: str | None = None  # the name of the run whose best weights it starts from
    variant: str = ""  # of the recipe

    @property
    def source(self) -> str:
        """What columns call it: the recipe, with its variant."""
        return "-".join(filter(None, (self.recipe, self.variant)))

    def load(self, out: Path) -> Recipe:
        """The complete recipe, with paths as a run directory has them; `out` is the folder for all runs."""
        overrides = [*self.overrides, f"{SEED}={self.seed}"]
        if self.starts_from is not None:
            overrides.append(f"train.finetune_from={json.dumps(str((out / self.starts_from).absolute()))}")
        return with_absolute_paths(load_recipe(self.recipe, overrides))


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    source: str  # the recipe of the runs that fill it, with its variant: "ptb-300" or "ptb-300-2bits"
    measurement: Measurement = Measurement()
    against: Measurement | None = None  # the measurement that is subtracted
    what: Literal["score", "saturation"] = "score"  # saturation: the share of gates beyond 0.1 or 0.9
    paper: Mapping[str, float] = field(default_factory=dict)  # its figures by row
    digits: int = 2  # of the paper's figures


@dataclass(frozen=True)
class PlannedTable:
    """One table of a study."""

    title: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    rows: Mapping[str, Row] = field(default_factory=lambda: METHODS)


@dataclass(frozen=True)
class Study:
    """Runs and the tables over them; a run that starts from another comes after it."""

    runs: tuple[PlannedRun, ...]
    tables: tuple[PlannedTable, ...]


def plan_runs(
    recipe: str,
    columns: Sequence[Column],
    *,
    seeds: int,
    rows: Mapping[str, Row] = METHODS,
    overrides: Sequence[str] = (),
    starts_from: str | None = None,
    variant: str = "",
) -> list[PlannedRun]:
    """Every row with one recipe, once for each seed 1, 2, ..., with the measurements that the recipe's columns need.

    The user's overrides of temperature and noise are for G² alone. `starts_from` is the recipe of the runs, of the
    same row and seed, that these start from. A variant of a recipe has changes of its own in `overrides`.
    """
    source = "-".join(filter(None, (recipe, variant)))
    mine = [column for column in columns if column.source == source]
    wanted = tuple(dict.fromkeys(one for each in mine for one in (each.against, each.measurement) if one is not None))
    runs = []
    for seed in range(1, seeds + 1):
        for name, row in rows.items():
            given = [each for each in overrides if row.method == OURS or key_of(each) not in _OURS_ALONE]
            changes = (*given, f"{METHOD}={row.method}", *row.changes)
            start = None
            if starts_from is not None or row.starts_from is not None:
                start = f"{starts_from or recipe}-{row.starts_from or name}-seed{seed}"
            run = f"{source}-{name}-seed{seed}"
            runs.append(PlannedRun(run, recipe, changes, name, seed, wanted, start, variant))
    return runs


def check_overrides(overrides: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Raises if an override sets a key that belongs to the study, or its section, and says what to do instead."""
    for key in map(key_of, overrides):
        for name, instead in reserved.items():
            if name == key or name.startswith(f"{key}."):
                raise G2Error(f"--set can't change {key} here: {instead}")


def key_of(override: str) -> str:
    """The key that an override sets."""
    return override.partition("=")[0].strip()


def _by_method(sigmoid: float, sharpened: float, gumbel: float) -> dict[str, float]:
    return {"sigmoid": sigmoid, "sharpened": sharpened, "gumbel": gumbel}


# The paper's figures (Li et al., ICML 2018).
FIGURES: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "ptb": {  # Table 1, perplexity; "cache" is after finetuning
        "trained valid": _by_method(60.7, 61.6, 60.4),
        "trained test": _by_method(58.8, 59.4, 58.2),
        "finetuned valid": _by_method(60.0, 59.9, 58.5),
        "finetuned test": _by_method(57.3, 57.5, 56.1),
        "cache valid": _by_method(53.9, 53.9, 52.9),
        "cache test": _by_method(52.8, 53.2, 52.1),
    },
    "bleu": {  # Table 2
        "wmt14": _by_method(21.89, 21.64, 22.43),
        "iwslt14": _by_method(31.00, 29.73, 31.95),
    },
    "ptb compressed": {  # Tables 3 to 5: what compression of the gates' weights changes, by preset
        "paper-lm-round": _by_method(0.4, 0.3, 0.1),
        "paper-lm-clip": _by_method(0.8, 0.4, 0.7),
        "paper-lm-svd128": _by_method(3.8, 1.4, 1.2),
        "paper-lm-svd64": _by_method(12.7, 6.8, 3.9),
    },
    "iwslt14 compressed": {
        "paper-mt-round": _by_method(-2.35, -2.65, -0.51),
        "paper-mt-clip": _by_method(-9.03, -4.59, -0.51),
        "paper-mt-svd32": _by_method(-0.48, -0.53, -0.33),
        "paper-mt-svd16": _by_method(-1.44, -0.91, -0.67),
    },
    "wmt14 compressed": {
        "paper-mt-round": _by_method(-5.67, -4.79, -2.28),
        "paper-mt-clip": _by_method(-5.86, -4.92, -2.14),
        "paper-mt-svd32": _by_method(-0.74, -0.66, -0.27),
        "paper-mt-svd16": _by_method(-1.90, -1.77, -0.51),
    },
}
