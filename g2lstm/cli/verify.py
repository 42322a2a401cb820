"""`g2lstm verify`: whether the scores of a run are what they claim to be."""

from functools import partial
from typing import Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import UNKNOWN, DataDir, Json, Run, console, print_json, say, table
from g2lstm.errors import G2Error

_VERDICTS = {
    "same": "same",
    "rounding": "same, up to rounding",
    "different": "DIFFERENT",
    "elsewhere": "computed elsewhere",
    "not recorded": "was not recorded",
}


def verify(
    run: Run,
    split: Annotated[str | None, typer.Option(help="Only the scores of this split; all by default.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compute the scores in a run's result.json once more, and compare them and all that they rest on.

    That is the recipe, the weights, the tokenizers, the text (which is encoded anew), the versions, the number of
    threads, the processor and the kernel. Another machine may round differently; that alone is no reason for doubt. The
    exit code is 0 if every score holds, and 2 if one does not.

    Example: `g2lstm verify runs/ptb-small --split test`
    """
    from g2lstm.runs.trained import load
    from g2lstm.runs.verify import verify as compare

    trained = load(run)
    scores = [score for score in trained.run.results() if split in (None, score.split)]
    if not scores:
        which = "" if split is None else f" of the split {split!r}"
        raise G2Error(f"{run} has no score{which} to verify; make one with `g2lstm eval {run}`")
    with bar() as show:
        found = [
            compare(trained, each, data_dir=data_dir, progress=partial(show, f"score {number} of {len(scores)}"))
            for number, each in enumerate(scores, start=1)
        ]
    if as_json:
        holds = all(each.holds for each in found)
        print_json({"run": str(run), "holds": holds, "scores": [each.to_json() for each in found]})
    else:
        for each in found:
            rows = [[c.what, *map(_shown, (c.recorded, c.found)), _VERDICTS[c.verdict]] for c in each.checks]
            console().print(table(("", "recorded", "now", ""), rows, left=4, title=each.signature))
            say("the score holds" if each.holds else "the score does not hold")
    wrong = [each.signature for each in found if not each.holds]
    if wrong:
        raise G2Error(f"{len(wrong)} of {len(found)} scores of {run} do not hold; the first is {wrong[0]}")


def _shown(value: str | float | None) -> str:
    return UNKNOWN if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
