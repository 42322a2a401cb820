"""The studies by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from g2lstm.errors import G2Error
from g2lstm.lab.study.ablations import ablations
from g2lstm.lab.study.figures import figures
from g2lstm.lab.study.language import table1, table3
from g2lstm.lab.study.plan import METHOD, SEED, Scale, Study, check_overrides, key_of
from g2lstm.lab.study.translation import table2, table4, table5

STUDIES: Mapping[str, Callable[[Scale, int, Sequence[str]], Study]] = MappingProxyType(
    {
        "table1": table1,
        "table2": table2,
        "table3": table3,
        "table4": table4,
        "table5": table5,
        "figures": figures,
        "ablations": ablations,
    }
)
_RESERVED = {
    METHOD: "a study compares methods; --only '*gumbel*' takes those of one",
    SEED: "--seeds N takes the seeds 1 to N",
    "train.finetune_from": "a study knows itself which run starts from which",
}
SCALES: tuple[Scale, ...] = ("small", "paper")


def find_study(name: str, scale: str, seeds: int, overrides: Sequence[str] = ()) -> Study:
    """A study by its name.

    Args:
        name: see `STUDIES`.
        scale: "small" or "paper".
        seeds: how many times each run is trained.
        overrides: keys of every recipe, as `g2lstm train --set` has them.
    """
    if name not in STUDIES:
        raise G2Error(f"there is no study {name!r}; choose one of {', '.join(STUDIES)}")
    check_overrides(overrides, _RESERVED)
    for known in SCALES:
        if scale == known:
            study = STUDIES[name](known, seeds, overrides)
            others = [each for each in overrides if key_of(each) in ("data", "data.name", "data.path")]
            return _on_other_data(study, others) if others else study
    raise G2Error(f"the scale must be one of {', '.join(SCALES)}, got {scale!r}")


def _on_other_data(study: Study, overrides: Sequence[str]) -> Study:
    note = f"Not on what the title says, but with {' and '.join(overrides)}; so the paper's figures are left out."
    tables = tuple(
        replace(table, columns=tuple(replace(one, paper={}) for one in table.columns), notes=(note, *table.notes))
        for table in study.tables
    )
    return replace(study, tables=tables)
