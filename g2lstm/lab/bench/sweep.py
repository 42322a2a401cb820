"""The size-quality curve of a run: every preset that fits its task measured, one after the other, and kept."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from g2lstm.compression.spec import GROUPS, PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.runs.compressed import Show, compress_timed, measure, write_json
from g2lstm.runs.trained import score
from g2lstm.tasks.trained import Scoring, Trained
from g2lstm.version import __version__

NAME = "sweep.json"
_OTHERS = {  # measured beside the presets
    "int8": "; ".join(f"{group}=int8" for group in GROUPS),
    "int4": "; ".join(f"{group}=int4" for group in GROUPS),
}


def points_for(task: str) -> dict[str, Spec]:
    """What is measured of a run of a task, by name."""
    presets = {name: text for name, text in PRESETS.items() if not name.startswith("paper-") or f"-{task}-" in name}
    return {name: Spec.parse(text) for name, text in (presets | _OTHERS).items()}


class Sweep:
    """A sweep and its file; what the file has already is not measured again.

    Args:
        trained: the run.
        folder: where sweep.json is, or will be.
        scoring: how scores are computed.
    """

    def __init__(self, trained: Trained, folder: Path, scoring: Scoring) -> None:
        self.trained, self.scoring = trained, scoring
        self.path = folder / NAME
        self.metric = trained.metric.name
        self.points = points_for(trained.recipe.task)
        self.found = {**self._settings(), "before": None, "points": {}, "left_out": {}}
        earlier = self._read()
        self.is_anew = earlier is not None and any(earlier.get(key) != value for key, value in self._settings().items())
        if earlier is not None and not self.is_anew:
            self.found = earlier

    def run(self, show: Show) -> Iterator[str]:
        """Measures what is missing; yields the name of each point when it is in the file."""
        missing = [name for name, spec in self.points.items() if not self._has(name, spec)]
        if self.found["before"] is None:
            before = score(self.trained, self.scoring, partial(show, "scoring the run itself"))
            size = self.trained.run.model_file.stat().st_size
            parameters = sum(parameter.numel() for parameter in self.trained.model.parameters())
            self._keep("before", {"score": before, "bytes": size, "bits_per_weight": 8 * size / parameters})
        for number, name in enumerate(missing):
            show("points", number, len(missing))
            self._measure(name, self.points[name], show)
            yield name
        show("points", len(missing), len(missing))

    def _measure(self, name: str, spec: Spec, show: Show) -> None:
        try:
            compressed = compress_timed(self.trained, spec)
        except G2Error as error:  # such as a rank that a small model's matrices do not have
            self._keep("left_out", self.found["left_out"] | {name: {"spec": str(spec), "reason": str(error)}})
            return
        before = self.found["before"]["score"]
        with tempfile.TemporaryDirectory() as folder:
            report = measure(self.trained, compressed, Path(folder), show, scoring=self.scoring, score_before=before)
        self._keep("points", self.found["points"] | {name: report})

    def _has(self, name: str, spec: Spec) -> bool:
        point = self.found["points"].get(name) or self.found["left_out"].get(name)
        return point is not None and point["spec"] == str(spec)

    def _keep(self, key: str, value: Any) -> None:
        self.found[key] = value
        write_json(self.path, self.found)

    def _settings(self) -> dict[str, Any]:
        """What must be the same for two points to be of one curve."""
        content = self.trained.run.model_file.read_bytes()
        return {
            "run": self.trained.run.path.absolute().name,
            "task": self.trained.recipe.task,
            "metric": self.metric,
            "model_sha256": hashlib.sha256(content).hexdigest(),
            "split": self.scoring.split,
            "cache": self.scoring.cache,
            "versions": {"g2lstm": __version__, "torch": str(torch.__version__)},
        }

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            shape = (found["before"], found["points"], found["left_out"])
        except (OSError, ValueError, KeyError, TypeError):
            raise G2Error(f"{self.path} cannot be read; delete it, and measure anew") from None
        if not isinstance(shape[1], dict) or not isinstance(shape[2], dict):
            raise G2Error(f"{self.path} holds no sweep; delete it, and measure anew")
        return found
