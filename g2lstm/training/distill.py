"""Training from another run: finetuning a compressed one, and sequence-level distillation (Kim and Rush, 2016)."""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, write_whole
from g2lstm.recipes.files import is_own_text, read_tables
from g2lstm.recipes.sections import AdamW
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.recipes import Recipe, load_recipe, parse_recipe
from g2lstm.tasks.trained import Progress
from g2lstm.text.corpus import PairFiles, read_pairs
from g2lstm.text.datasets import SPLITS
from g2lstm.text.lines import sha256_of

RATE = 0.25  # of the learning rate that a run was trained with by AdamW
_PATIENCE = 2


def finetune_recipe(run: RunDirectory, spec: Spec, epochs: int, overrides: Sequence[str] = ()) -> Recipe:
    """The run's own recipe for this many more epochs, from its weights and through a compression.

    AdamW in one cycle, whatever the run was trained with, and the gates that it had in the end.
    """
    tables: dict[str, Any] = run.recipe.model_dump(by_alias=True, exclude_none=True)
    train, before = tables["train"], run.recipe.train.optimizer
    train.pop("minutes", None)
    if train.pop("gates", None) is not None:
        train["gates"] = {"soft_rate": 0.0}
    optimizer = before if isinstance(before, AdamW) else AdamW()
    train |= {
        "epochs": epochs,
        "patience": _PATIENCE,
        "finetune_from": str(run.path),
        "compression": str(spec),
        "optimizer": optimizer.model_dump() | {"lr": optimizer.lr * RATE},
    }
    return parse_recipe(tables, overrides, source=f"to finetune {run.path}")


_AT_ONCE = 1024  # lines; an interruption costs no more
_ORIGIN, _PART = "distilled.json", "train.part"


def student_recipe(teacher: TrainedTranslationModel, student: str, overrides: Sequence[str], folder: Path) -> Recipe:
    """The student's recipe for the pairs in a folder, which are text as the teacher reads and writes it."""
    data = teacher.recipe.data
    own = {"path": json.dumps(str(folder.absolute())), "source": data.source, "target": data.target}
    own |= {"is_tokenized": str(data.is_tokenized).lower(), "lowercase": str(data.lowercase).lower()}
    task = teacher.task if is_own_text(student) else read_tables(student).get("task", teacher.task)
    if task != teacher.task:
        raise G2Error(f"the student's recipe {student} is for task {task!r}; distillation needs one for 'mt'")
    return load_recipe(student, [*overrides, *(f"data.{key}={value}" for key, value in own.items())])


def distil_text(
    teacher: TrainedTranslationModel,
    folder: Path,
    *,
    beam: int | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> PairFiles:
    """Writes the teacher's training sources with its own translations into a folder; the other splits stay as they are.

    An interrupted call continues where it was; `progress` is called with the lines done and the total.
    """
    files = {split: PairFiles(*teacher.files(split, data_dir)) for split in SPLITS}
    ends = (teacher.recipe.data.source, teacher.recipe.data.target)
    new = {split: PairFiles(*(folder / f"{split}.{end}" for end in ends)) for split in SPLITS}
    beam = teacher.recipe.evaluate.beam if beam is None else beam
    origin = {
        "teacher": teacher.run.weights_id,
        "recipe": teacher.run.recipe_hash,
        "source": sha256_of(files["train"].source),
        "beam": beam,
    }
    _begin(folder, origin)
    if os.path.isfile(new["train"].target):
        return new["train"]
    for split, pair in files.items():
        for old, made in zip(pair, new[split], strict=True):
            if made != new["train"].target:
                shutil.copyfile(old, made)
    lines, part = read_pairs(files["train"])[0], folder / _PART
    done = _whole_lines(part)
    with part.open("ab") as file:
        while done < len(lines):
            found = teacher.search(lines[done : done + _AT_ONCE], beam=beam, max_source=None)
            file.write("".join(f"{best[0].text}\n" for best in found).encode())
            file.flush()
            done += len(found)
            if progress is not None:
                progress(done, len(lines))
    part.rename(new["train"].target)
    return new["train"]


def _begin(folder: Path, origin: dict[str, str | int]) -> None:
    """Says in the folder whose translations it holds; raises if they are another's."""
    file = folder / _ORIGIN
    if os.path.isfile(file):
        with suppress(ValueError):  # damaged, so nobody's
            if parse_json(read_bounded(file, 10_000)) == origin:
                return
        raise G2Error(
            f"{folder} holds translations by another teacher, beam or text; choose another --out, or delete it"
        )
    if os.path.exists(folder) and (not os.path.isdir(folder) or any(folder.iterdir())):
        raise G2Error(f"{folder}, where the translations belong, is in use; choose another --out, or delete it")
    write_whole(file, json.dumps(origin).encode())


def _whole_lines(part: Path) -> int:
    """How many lines are finished; what was written of another is cut off."""
    if not os.path.isfile(part):
        return 0
    content = part.read_bytes()
    end = content.rfind(b"\n") + 1
    os.truncate(part, end)
    return content.count(b"\n", 0, end)
