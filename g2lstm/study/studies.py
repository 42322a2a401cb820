"""The studies by name."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from g2lstm.errors import G2Error
from g2lstm.study.ablations import ablations
from g2lstm.study.figures import figures
from g2lstm.study.language import table1, table3
from g2lstm.study.plan import METHOD, SEED, Scale, Study, check_overrides
from g2lstm.study.translation import table2, table4, table5

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
            return STUDIES[name](known, seeds, overrides)
    raise G2Error(f"the scale must be one of {', '.join(SCALES)}, got {scale!r}")
