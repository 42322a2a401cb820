"""`RunDirectory`: the files of one training run, each written under a temporary name and renamed; none is pickled."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save
from torch import Tensor

from g2lstm.compression.storage import HEADER, parse_header, spec_of
from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, read_json, write_atomically
from g2lstm.recipes.files import read_tables, recipe_to_toml, seal, tables_hash
from g2lstm.recipes.recipe import Recipe
from g2lstm.tasks.recipes import load_recipe
from g2lstm.tasks.registry import TASKS, task_of
from g2lstm.text.tokenize import Tokenizer

TABLE = "compression.json"  # of a compressed run: what compressing gained and cost
_LONGEST = 2**28  # bytes of a file for people and programs
PLAIN, COMPRESSED = 1, 2  # versions of the file of weights; a reader refuses a newer one


class RunDirectory:
    """One run on disk.

    Args:
        path: the folder. `create` makes a new one, `open` an existing one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.model_file = path / "model.safetensors"
        self.metrics_file = path / "metrics.jsonl"
        self.result_file = path / "result.json"
        self.checkpoints = path / "checkpoints"
        self.events = path / "events"
        self.compression_file = path / TABLE

    @classmethod
    def create(cls, path: Path, recipe: Recipe, tokenizers: Mapping[str, Tokenizer]) -> "RunDirectory":
        """A new run; refuses a folder that holds one already.

        Args:
            path: the folder.
            recipe: complete.
            tokenizers: by the names of their files.
        """
        run = cls(path)
        run.check_new()
        for name, tokenizer in tokenizers.items():
            tokenizer.save(path / name)
        run._write(run.recipe_file, seal(recipe_to_toml(recipe)).encode())
        return run

    def check_new(self) -> None:
        """Raises unless a run can begin here."""
        path = self.path
        if self.recipe_file.exists():
            raise G2Error(f"{path} holds a run already; go on with it by --resume, or choose another folder with --out")
        if path.exists() and (not path.is_dir() or self._has_others_files()):
            raise G2Error(f"{path} exists and is not an empty folder; choose another with --out")

    @classmethod
    def open(cls, path: Path, *, task: str | None = None) -> "RunDirectory":
        """An existing run, checked as far as can be without reading its weights.

        Args:
            path: the folder.
            task: refuse a run of another task.
        """
        run = cls(path)
        if not os.path.isfile(run.recipe_file):  # which raises for no name, however strange
            what = "does not exist" if not os.path.exists(path) else "holds no recipe.toml"
            raise G2Error(f"{path} is not a run directory: it {what}; `g2lstm train RECIPE --out {path}` makes one")
        found = read_tables(run.recipe_file).get("task")
        if found is not None and found not in TASKS:
            raise G2Error(f"{path} is a run of task {found!r}, which this g2lstm does not know; install a newer one")
        if task is not None and found is not None and found != task:
            raise G2Error(f"{path} is a run of task {found!r}, and this needs one of task {task!r}")
        return run

    def _has_others_files(self) -> bool:
        """Whether the folder holds more than a start that was cut short may have left behind."""
        names = {item.name for item in self.path.iterdir()}
        first = ("tokenizer*.json", ".tokenizer*.tmp", ".recipe.toml.*.tmp") if ".lock" in names else ()
        return any(not any(fnmatch(name, one) for one in (".lock", *first)) for name in names)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, complete, as it was when it was first asked for."""
        return load_recipe(self.recipe_file)

    @cached_property
    def recipe_hash(self) -> str:
        """Of what recipe.toml said when this was first asked for; a later version's new settings do not change it."""
        return tables_hash(read_tables(self.recipe_file))

    def remember_recipe(self) -> None:
        """Reads recipe.toml once and for all: to whoever edits it from now on, this object does not listen."""
        _ = self.recipe, self.recipe_hash

    def has_checkpoints(self) -> bool:
        """Whether there is one that training could go on from, whole or not."""
        return any(self.checkpoints.glob("step-*.json"))

    @property
    def tokenizer_files(self) -> list[Path]:
        """The files of the tokenizers that its task has."""
        return [self.path / name for name in task_of(self.recipe).trained.tokenizer_files]

    def tokenizers(self) -> list[Tokenizer]:
        """The tokenizers that the model was trained with, in the order of its task."""
        for file in self.tokenizer_files:
            if not file.is_file():
                raise G2Error(f"{self.path} has no {file.name}, so it is incomplete; train it again")
        return [Tokenizer.load(file) for file in self.tokenizer_files]

    def save_weights(self, weights: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Writes the model's weights, those of the best validation so far, and facts about their training."""
        metadata = {**facts, "format": "g2lstm", "version": str(PLAIN), "task": self.recipe.task}
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        self._write(self.model_file, save(plain, metadata))
        for unfinished in self.path.glob(f".{self.model_file.name}.*.tmp"):  # of a process that was killed
            unfinished.unlink()

    def has_weights(self) -> bool:
        """Whether the file of weights is there, and whole as far as its head can tell."""
        with suppress(G2Error):
            return bool(self.training_facts())
        return False

    def load_weights(self) -> dict[str, Tensor]:
        """Reads the weights; a broken or newer file is an error that says so."""
        self._check_plain()
        return load_file(self.model_file)

    def _check_plain(self) -> None:
        if (spec := self.compression) is not None:
            raise G2Error(
                f"the weights in {self.path} are compressed ({spec}) and cannot be trained on; take the run that they "
                "were made from"
            )

    def outline(self) -> dict[str, tuple[list[int], str]]:
        """Shape and type of each of the weights, as the head of their file has them; they themselves are not read."""
        self._check_plain()
        with safetensors.safe_open(self.model_file, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
            return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}

    @property
    def compression(self) -> str | None:
        """The spec that the weights are compressed by; None if they are not."""
        header = self.training_facts().get(HEADER)
        if header is None:
            return None
        try:
            return str(spec_of(parse_header(header)))
        except G2Error as error:
            raise G2Error(f"{self.model_file} cannot be read: {error}; compress the original anew") from None

    def training_facts(self) -> dict[str, str]:
        """What the file of weights says of their training, such as the data's checksum."""
        if not self.model_file.is_file():
            raise G2Error(f"{self.path} holds no trained model yet; train it with `g2lstm train ... --resume`")
        try:
            with safetensors.safe_open(self.model_file, framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
        except (safetensors.SafetensorError, OSError) as error:
            remedy = "Delete it: then `g2lstm train ... --resume` makes it anew from the last checkpoint"
            if self.compression_file.exists():
                remedy = "Compress the original anew"
            raise G2Error(f"{self.model_file} cannot be read: {error}; it is broken. {remedy}") from None
        version = metadata.get("version", "")
        if metadata.get("format") != "g2lstm" or not version.isdecimal() or len(version) > 9:
            raise G2Error(f"{self.model_file} was not written by g2lstm")
        if int(version) > COMPRESSED:
            raise G2Error(
                f"{self.model_file} is of version {version}, this g2lstm reads up to {COMPRESSED}; "
                "install a newer g2lstm"
            )
        return metadata

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        with self.metrics_file.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash cut the last line short
                    file.write(b"\n")
            file.write(json.dumps(values).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that still hold.

        One that a crash cut short, or that says something else, is left out; so are those of steps that were lost in a
        crash and taken again.
        """
        if not self.metrics_file.exists():
            return []
        lines: list[dict[str, Any]] = []
        for text in read_bounded(self.metrics_file, _LONGEST).split(b"\n"):
            with suppress(ValueError):
                if _is_metrics(line := parse_json(text)):
                    while lines and lines[-1]["step"] > line["step"]:
                        lines.pop()
                    lines.append(line)
        return lines

    def results(self) -> list[dict[str, Any]]:
        """The scores so far, each with its signature."""
        if not self.result_file.exists():
            return []
        try:
            found = read_json(self.result_file, _LONGEST)
        except G2Error as error:
            raise G2Error(f"{error}; delete it, and evaluate anew") from None
        scores = found.get("scores") if isinstance(found, dict) else None
        if not isinstance(scores, list) or not all(map(_is_score, scores)):
            raise G2Error(f"{self.result_file} holds no list of scores; delete it, and evaluate anew")
        return scores

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Adds a score; one with the same signature is replaced."""
        kept = [score for score in self.results() if score.get("signature") != result["signature"]]
        self._write(self.result_file, json.dumps({"scores": [*kept, dict(result)]}, indent=2).encode())

    def signature(self, **facts: object) -> str:
        """What a score rests on: versions, recipe, seed, data, and how it was computed."""
        import torch

        from g2lstm.version import __version__

        base = {"recipe": self.recipe_hash, "seed": self.recipe.train.seed, **self._training_length()}
        if self.model_file.is_file() and (spec := self.compression) is not None:
            base["compressed"] = spec
        versions = {"g2lstm": __version__, "torch": torch.__version__}
        return "|".join(f"{key}:{value}" for key, value in (base | facts | versions).items())

    def _training_length(self) -> dict[str, str]:
        """How long the weights were trained, and for how many epochs training was planned if the clock decided that."""
        facts = self.training_facts() if self.model_file.is_file() else {}
        return {name: facts[name] for name in ("steps", "epochs") if name in facts}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process out while this one trains; the system lets go of the lock if it dies."""
        self._check_trainable()
        for name in (".lock", self.metrics_file.name, self.checkpoints.name, self.events.name):
            self.own(name)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            opened = (self.path / ".lock").open("a")
        except OSError as error:
            raise G2Error(f"{self.path} cannot be made or written to: {error.strerror}; choose --out") from None
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise G2Error(f"another process is training in {self.path}; wait for it, or choose --out") from None
            yield

    def own(self, name: str) -> Path:
        """Where something of the run is written; refuses a link, through which it would be written elsewhere."""
        path = self.path / name
        if path.is_symlink():
            raise G2Error(
                f"{path} is a link to {path.readlink()}, and a run is written into its own folder only; delete the "
                "link, or link the whole run directory"
            )
        return path

    def _check_trainable(self) -> None:
        is_compressed = self.compression_file.exists()
        with suppress(G2Error):  # broken weights are no hindrance: training writes its own
            is_compressed = is_compressed or (self.model_file.is_file() and self.compression is not None)
        if is_compressed:
            raise G2Error(
                f"{self.path} is a compressed run, and compressed weights cannot be trained; resume the run that it "
                "was made from, then compress that anew"
            )

    def _write(self, path: Path, content: bytes) -> None:
        with write_atomically(path) as file:
            file.write(content)


def _is_metrics(line: Any) -> bool:
    """Whether these are what training measures: numbers, and of which kind."""
    if not isinstance(line, dict) or not {"kind", "step", "tokens", "seconds"} <= line.keys():
        return False
    return isinstance(line["kind"], str) and all(_is_number(line[name]) for name in line.keys() - {"kind"})


def _is_score(score: Any) -> bool:
    """Whether this is a perplexity or a BLEU with its signature."""
    if not isinstance(score, dict) or not all(
        isinstance(score.get(k), str) for k in ("signature", "split", "eval_gate")
    ):
        return False
    found = [score[name] for name in ("perplexity", "bleu") if name in score]
    return bool(found) and all(map(_is_number, found))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
