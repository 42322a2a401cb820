"""`verify`: computes a score of a run again, and compares it and all that it rests on with its result.json."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.runs.records import Score, machine
from g2lstm.runs.trained import score
from g2lstm.tasks.trained import Progress, Scoring, Trained

_ROUNDING = 1e-5  # the largest relative difference that counts as rounding
_BASIS = {"recipe": "recipe", "weights": "weights", "tokenizers": "tokenizers", "data": "text"}
_NUMBERS = ("perplexity", "bits_per_character", "unknown_share", "tokens", "bleu", "chrf", "sentences")


@dataclass(frozen=True)
class Check:
    """One thing that was compared."""

    what: str
    recorded: str | float | None  # None if an earlier version did not record it
    found: str | float | None
    verdict: str  # "same", "rounding", "different", "elsewhere" or "not recorded"


@dataclass(frozen=True)
class Verified:
    """A score of result.json, and how it compares."""

    signature: str
    checks: list[Check]

    @property
    def holds(self) -> bool:
        """Whether nothing is different; another machine, by itself, is no reason for doubt."""
        return all(check.verdict != "different" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"signature": self.signature, "holds": self.holds, "checks": [asdict(check) for check in self.checks]}


def verify(
    trained: Trained, recorded: Score, *, data_dir: Path | None = None, progress: Progress | None = None
) -> Verified:
    """Scores a run again as a recorded score says, from the text itself: prepared tokens are not trusted."""
    if recorded.dynamic is not None:
        raise G2Error(
            "dynamic evaluation can't be verified: this g2lstm has none; verify the other scores with --split"
        )
    with TemporaryDirectory() as folder:
        how = Scoring(
            recorded.split,
            recorded.eval_gate,
            beam=recorded.beam,
            length_penalty=recorded.length_penalty,
            data_dir=data_dir,
            prepared=Path(folder),
            **_cache_of(recorded),
        )
        found = score(trained, how, progress)
    known = recorded.model_dump()
    checks = [_compared(title, known.get(name), found.get(name)) for name, title in _BASIS.items()]
    before = recorded.machine or {}
    checks += [_compared(name, before.get(name), now, "elsewhere") for name, now in machine().items()]
    checks += [_compared(name, known.get(name), found[name]) for name in _NUMBERS if name in found]
    return Verified(recorded.signature, checks)


def _cache_of(recorded: Score) -> Mapping[str, Any]:
    if recorded.cache is None:
        return {}
    try:
        window, theta, share = recorded.cache.split(",")
        return {"cache_window": int(window), "cache_theta": float(theta), "cache_lambda": float(share)}
    except ValueError:
        raise G2Error(f"result.json has a cache of {recorded.cache!r:.80}, which is not window,theta,lambda") from None


def _compared(what: str, recorded: Any, found: Any, if_not: str = "different") -> Check:
    verdict = "same" if recorded == found else "not recorded" if recorded is None else if_not
    if verdict == if_not and isinstance(found, float) and isinstance(recorded, float):
        verdict = "rounding" if math.isclose(recorded, found, rel_tol=_ROUNDING) else if_not
    return Check(what, recorded, found, verdict)
