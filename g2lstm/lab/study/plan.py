"""What a study is made of: runs to train, measurements of each, and the columns of its tables. Only data."""

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

METHODS = {"sigmoid": "LSTM", "sharpened": "sharpened", "gumbel": "G²"}
BASELINE, OURS = "sigmoid", "gumbel"
METHOD, SEED = "model.method", "train.seed"  # the keys in which runs of one recipe differ
_OURS_ALONE = ("model.tau", "model.noise_rate")  # settings of G² that would change a baseline

Scale = Literal["small", "paper"]
Cache = Literal["recipe", "tuned"]


@dataclass(frozen=True)
class Measurement:
    """One way to score a run.

    Attributes:
        split: "test" or "valid".
        eval_gate: how gates are computed.
        cache: for a language model, the cache pointer with the settings of the "recipe", or "tuned" on the validation
            set with the uncompressed model; None for no cache.
        compression: a spec, or the name of a preset.
    """

    split: str = "test"
    eval_gate: str = "soft"
    cache: Cache | None = None
    compression: str | None = None

    @property
    def spec(self) -> str | None:
        """The compression in canonical form, so that a preset that changes is another measurement."""
        return None if self.compression is None else str(Spec.parse(self.compression))

    @property
    def name(self) -> str:
        """A file name that says what it is: "test-soft-cache_tuned-gates_svd64"."""
        parts = [self.split, self.eval_gate]
        parts += [f"cache_{self.cache}"] if self.cache else []
        parts += [re.sub(r"[=,;]+ *", "_", self.spec.replace(":", ""))] if self.spec else []
        return "-".join(parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
        name: its run directory, inside the folder for all runs; studies share runs of the same name.
        recipe: the name of a shipped recipe; it fills the columns of this recipe.
        overrides: of the recipe's keys.
        row: the row of the tables that it belongs to.
        seed: of the training.
        measurements: what the tables need.
        starts_from: the name of the run whose best weights it begins with.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...]
    row: str
    seed: int
    measurements: tuple[Measurement, ...]
    starts_from: str | None = None

    def load(self, out: Path) -> Recipe:
        """The complete recipe, with paths as a run directory has them.

        Args:
            out: the folder for all runs.
        """
        overrides = [*self.overrides, f"{SEED}={self.seed}"]
        if self.starts_from is not None:
            overrides.append(f"train.finetune_from={json.dumps(str((out / self.starts_from).absolute()))}")
        return with_absolute_paths(load_recipe(self.recipe, overrides))


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: its heading.
        recipe: of the runs that fill it.
        measurement: what it shows of them.
        against: another measurement, from which it shows the difference.
        what: "score", or "saturation", the share of gates beyond 0.1 or 0.9.
        paper: the paper's figures by row.
        digits: how many decimal places these have.
    """

    title: str
    recipe: str
    measurement: Measurement = Measurement()
    against: Measurement | None = None
    what: Literal["score", "saturation"] = "score"
    paper: Mapping[str, float] = field(default_factory=dict)
    digits: int = 2


@dataclass(frozen=True)
class PlannedTable:
    """One table of a study.

    Attributes:
        title: above it.
        rows: from the rows of the runs to what the table calls them.
        columns: from left to right.
        pairs: rows whose difference is tested for significance, the first minus the second.
        notes: below it.
    """

    title: str
    rows: Mapping[str, str]
    columns: tuple[Column, ...]
    pairs: tuple[tuple[str, str], ...] = ((OURS, BASELINE), (OURS, "sharpened"))
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Runs and tables.

    Attributes:
        name: on the command line.
        title: in words.
        runs: a run that starts from another comes after it.
        tables: over the runs' directories.
    """

    name: str
    title: str
    runs: tuple[PlannedRun, ...]
    tables: tuple[PlannedTable, ...]


def plan_run(
    recipe: str,
    method: str,
    seed: int,
    columns: Sequence[Column],
    *,
    overrides: Sequence[str] = (),
    row: str | None = None,
    changes: Sequence[str] = (),
    starts_from: str | None = None,
) -> PlannedRun:
    """A run of a method, with the measurements that the columns of its recipe need.

    Args:
        recipe: a shipped one.
        method: of its gates.
        seed: of the training.
        columns: of all tables.
        overrides: the user's; temperature and noise are settings of G² alone.
        row: the row that it belongs to; by default the method.
        changes: overrides that define the row, after the user's.
        starts_from: the name of the run that it starts from.
    """
    mine = [column for column in columns if column.recipe == recipe]
    wanted = [one for column in mine for one in (column.against, column.measurement) if one is not None]
    given = [each for each in overrides if method == OURS or key_of(each) not in _OURS_ALONE]
    return PlannedRun(
        run_name(recipe, row or method, seed),
        recipe,
        (*given, f"{METHOD}={method}", *changes),
        row or method,
        seed,
        tuple(dict.fromkeys(wanted)),
        starts_from,
    )


def methods_with_seeds(
    recipe: str, columns: Sequence[Column], *, seeds: int, overrides: Sequence[str] = (), starts_from: str | None = None
) -> list[PlannedRun]:
    """The three methods with one recipe, once for each seed 1, 2, ...

    Args:
        recipe: a shipped one.
        columns: of all tables.
        seeds: how many.
        overrides: the user's.
        starts_from: the recipe of the runs, of the same method and seed, that these start from.
    """
    runs = []
    for seed in range(1, seeds + 1):
        for method in METHODS:
            start = None if starts_from is None else run_name(starts_from, method, seed)
            runs.append(plan_run(recipe, method, seed, columns, overrides=overrides, starts_from=start))
    return runs


def check_overrides(overrides: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Raises for an override of a key that belongs to the study, or of the section that holds it.

    Args:
        overrides: the user's.
        reserved: from such keys to why they can't be set, or what to do instead.
    """
    for override in overrides:
        key = key_of(override)
        for name, instead in reserved.items():
            if name == key or name.startswith(f"{key}."):
                raise G2Error(f"--set can't change {key} here: {instead}")


def key_of(override: str) -> str:
    """The key that an override sets."""
    return override.partition("=")[0].strip()


def run_name(recipe: str, row: str, seed: int) -> str:
    """The name of a run's directory: "ptb-small-gumbel-seed1"."""
    return f"{recipe}-{row}-seed{seed}"
