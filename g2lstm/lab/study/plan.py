"""What a study is made of: runs to train, measurements of each, and the columns of its tables. Data only."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.tasks.recipes import Recipe, load_recipe

METHODS = {"sigmoid": "LSTM", "sharpened": "sharpened", "gumbel": "G²"}
BASELINE, OURS = "sigmoid", "gumbel"
METHOD, SEED = "model.method", "train.seed"  # keys that tell runs of one recipe apart
_OF_OURS = ("model.tau", "model.noise_rate")  # settings of G² that would make another baseline of a baseline

Scale = Literal["small", "paper"]
Cache = Literal["recipe", "tuned"]


@dataclass(frozen=True)
class Measurement:
    """One way to score a run.

    Attributes:
        split: "test" or "valid".
        eval_gate: how gates are computed.
        cache: for a language model, the cache pointer with the settings of the "recipe", or "tuned" on the validation
            set by the uncompressed model; None for none.
        compression: a spec, or the name of a preset.
    """

    split: str = "test"
    eval_gate: str = "soft"
    cache: Cache | None = None
    compression: str | None = None

    @property
    def spec(self) -> str | None:
        """The compression in its canonical form, so that a preset that changes is another measurement."""
        return None if self.compression is None else str(Spec.parse(self.compression))

    @property
    def name(self) -> str:
        """What it is, fit for the name of a file: "test-soft-cache_tuned-gates_svd64"."""
        parts = [self.split, self.eval_gate]
        parts += [f"cache_{self.cache}"] if self.cache else []
        parts += [re.sub(r"[=,;]+ *", "_", self.spec.replace(":", ""))] if self.spec else []
        return "-".join(parts)


@dataclass(frozen=True)
class Plan:
    """One run of a study.

    Attributes:
        name: of its run directory, below that of all studies; studies share runs of one name.
        recipe: a shipped one, by name.
        overrides: of its keys.
        row: which row of the tables it belongs to.
        series: which columns of the tables it fills.
        seed: of the training.
        measurements: what its tables need.
        starts_from: the name of the run whose best weights it begins with.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...]
    row: str
    series: str
    seed: int
    measurements: tuple[Measurement, ...]
    starts_from: str | None = None

    def load(self, out: Path) -> Recipe:
        """The recipe, complete, with paths as a run directory has them.

        Args:
            out: the folder of all runs.
        """
        overrides = [*self.overrides, f"{SEED}={self.seed}"]
        if self.starts_from is not None:
            overrides.append(f"train.finetune_from={json.dumps(str((out / self.starts_from).absolute()))}")
        recipe = load_recipe(self.recipe, overrides)
        if recipe.data.path is None:
            return recipe
        data = recipe.data.model_copy(update={"path": str(Path(recipe.data.path).expanduser().absolute())})
        return recipe.model_copy(update={"data": data})


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: its heading.
        series: of the runs that fill it.
        measurement: what it shows of them.
        against: another measurement: the difference from it is shown.
        what: "score", or "saturation", the share of gates beyond 0.1 or 0.9.
        paper: the paper's figures by row.
        paper_digits: that these have after the point.
    """

    title: str
    series: str
    measurement: Measurement = Measurement()
    against: Measurement | None = None
    what: Literal["score", "saturation"] = "score"
    paper: Mapping[str, float] = field(default_factory=dict)
    paper_digits: int = 2


@dataclass(frozen=True)
class TablePlan:
    """One table of a study.

    Attributes:
        title: above it.
        rows: by the name that plans have; what the table calls them.
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
        name: as the command has it.
        title: in words.
        plans: a run that starts from another comes after it.
        tables: over the runs' directories.
    """

    name: str
    title: str
    plans: tuple[Plan, ...]
    tables: tuple[TablePlan, ...]


def measurements_of(columns: Sequence[Column], series: str) -> tuple[Measurement, ...]:
    """What the columns need of the runs of a series, each once."""
    mine = [column for column in columns if column.series == series]
    wanted = [one for column in mine for one in (column.against, column.measurement) if one is not None]
    return tuple(dict.fromkeys(wanted))


def methods_with_seeds(
    recipe: str,
    columns: Sequence[Column],
    *,
    series: str,
    seeds: int,
    overrides: Sequence[str] = (),
    starts_from: str | None = None,
) -> list[Plan]:
    """The three methods by one recipe, once for each seed.

    Args:
        recipe: a shipped one.
        columns: of the tables that these runs fill.
        series: see `Plan`.
        seeds: how many: 1, 2, ...
        overrides: see `Plan`; before the method's own, which a row is called by.
        starts_from: the recipe of the runs, of the same method and seed, that these start from.
    """
    return [
        Plan(
            run_name(recipe, method, seed),
            recipe,
            (*overrides_for(method, overrides), f"{METHOD}={method}"),
            method,
            series,
            seed,
            measurements_of(columns, series),
            None if starts_from is None else run_name(starts_from, method, seed),
        )
        for seed in range(1, seeds + 1)
        for method in METHODS
    ]


def overrides_for(method: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Those that a run of this method has: temperature and noise are settings of G²."""
    return tuple(each for each in overrides if method == OURS or key_of(each) not in _OF_OURS)


def check_overrides(overrides: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Raises for an override of a key that belongs to the study, or of the section that holds it.

    Args:
        overrides: as the user gave them.
        reserved: such keys, and what to do instead of setting them.
    """
    for override in overrides:
        key = key_of(override)
        for name, instead in reserved.items():
            if name == key or name.startswith(f"{key}."):
                raise G2Error(f"{key} cannot be set here: {instead}")


def key_of(override: str) -> str:
    """The key that an override sets."""
    return override.partition("=")[0].strip()


def run_name(recipe: str, variant: str, seed: int) -> str:
    """The name of a run's directory: "ptb-small-gumbel-seed1"."""
    return f"{recipe}-{variant}-seed{seed}"
