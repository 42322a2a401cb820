"""The size–quality curve of a run: measures every preset for its task."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from g2lstm.compression.spec import GROUPS, PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.runs.compressed import Show, compress_timed, measure, write_json
from g2lstm.runs.records import CompressionReport, LeftOut, SweepFile, Uncompressed, without_none
from g2lstm.runs.trained import score
from g2lstm.tasks.trained import Scoring, Trained
from g2lstm.text.lines import sha256_of
from g2lstm.version import __version__

NAME = "sweep.json"
_OTHERS = {  # measured beside the presets
    "int8": "; ".join(f"{group}=int8" for group in GROUPS),
    "int4": "; ".join(f"{group}=int4" for group in GROUPS),
}


def points_for(task: str) -> dict[str, Spec]:
    """What to measure for a run of a task, by name."""
    presets = {name: text for name, text in PRESETS.items() if not name.startswith("paper-") or f"-{task}-" in name}
    return {name: Spec.parse(text) for name, text in (presets | _OTHERS).items()}


class Sweep:
    """A sweep and its file; points that the file already has are not measured again.

    Args:
        trained: the run.
        folder: the folder of sweep.json.
        scoring: how to compute scores.

    Attributes:
        found: what sweep.json holds.
        starts_over: whether the file holds points of other weights or settings, which are dropped.
    """

    def __init__(self, trained: Trained, folder: Path, scoring: Scoring) -> None:
        self.trained, self.scoring = trained, scoring
        self.path = folder / NAME
        self.points = points_for(trained.recipe.task)
        self.found, self.starts_over = self._new(), False
        if self.path.exists():
            earlier = SweepFile.read(self.path, "delete it to measure again")
            emptied = earlier.model_copy(update={"before": None, "points": {}, "left_out": {}})
            self.starts_over = emptied != self.found
            self.found = self.found if self.starts_over else earlier

    def run(self, show: Show) -> Iterator[str]:
        """Measures what is missing; yields the name of each point once it is in the file."""
        missing = [name for name, spec in self.points.items() if not self._has(name, spec)]
        if self.found.before is None:
            before = score(self.trained, self.scoring, partial(show, "scoring the run itself"))
            size = self.trained.run.model_file.stat().st_size
            parameters = sum(parameter.numel() for parameter in self.trained.model.parameters())
            values = {"score": before, "bytes": size, "bits_per_weight": 8 * size / parameters}
            self._keep(before=Uncompressed.model_validate(values))
        for number, name in enumerate(missing):
            show("points", number, len(missing))
            self._measure(name, self.points[name], show)
            yield name
        show("points", len(missing), len(missing))

    def _measure(self, name: str, spec: Spec, show: Show) -> None:
        try:
            compressed = compress_timed(self.trained, spec)
        except G2Error as error:  # such as a rank above that of a small model's matrices
            self._keep(left_out=self.found.left_out | {name: LeftOut(spec=str(spec), reason=str(error))})
            return
        assert self.found.before is not None
        before = without_none(self.found.before.score)
        with tempfile.TemporaryDirectory() as folder:
            report = measure(self.trained, compressed, Path(folder), show, scoring=self.scoring, score_before=before)
        self._keep(points=self.found.points | {name: CompressionReport.model_validate(report)})

    def _has(self, name: str, spec: Spec) -> bool:
        point = self.found.points.get(name) or self.found.left_out.get(name)
        return point is not None and point.spec == str(spec)

    def _keep(self, **values: Any) -> None:
        self.found = self.found.model_copy(update=values)
        write_json(self.path, without_none(self.found))

    def _new(self) -> SweepFile:
        """An empty sweep, with what two points of one curve must have in common."""
        return SweepFile(
            run=self.trained.run.path.absolute().name,
            task=self.trained.recipe.task,
            metric=self.trained.metric.name,
            model_sha256=sha256_of(self.trained.run.model_file),
            split=self.scoring.split,
            cache=self.scoring.cache,
            versions={"g2lstm": __version__, "torch": str(torch.__version__)},
            before=None,
            points={},
            left_out={},
        )
