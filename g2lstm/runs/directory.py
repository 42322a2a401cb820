"""`RunDirectory`: the files of one training run, each written under a temporary name and renamed; none is pickled."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save
from torch import Tensor

from g2lstm.compression.header import ENTRY, parse_header, spec_of
from g2lstm.config import Recipe, load_recipe, recipe_hash, recipe_to_toml
from g2lstm.config.load import TASKS, task_of
from g2lstm.config.sealed import seal
from g2lstm.data.cache import write_atomically
from g2lstm.data.tokenize import Tokenizer
from g2lstm.errors import G2Error

TABLE = "compression.json"  # of a compressed run: what compressing gained and cost
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
        if not run.recipe_file.is_file():
            what = "does not exist" if not path.exists() else "holds no recipe.toml"
            raise G2Error(f"{path} is not a run directory: it {what}; `g2lstm train RECIPE --out {path}` makes one")
        found = task_of(run.recipe_file)
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

    @property
    def recipe(self) -> Recipe:
        """The recipe, complete."""
        return load_recipe(self.recipe_file)

    def tokenizer(self, name: str = "tokenizer.json") -> Tokenizer:
        """A tokenizer that the model was trained with, by the name of its file."""
        if not (self.path / name).is_file():
            raise G2Error(f"{self.path} holds no {name}; it is incomplete, train it anew")
        return Tokenizer.load(self.path / name)

    def save_weights(self, weights: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Writes the model's weights, those of the best validation so far, and facts about their training."""
        metadata = {**facts, "format": "g2lstm", "version": str(PLAIN), "task": self.recipe.task}
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        self._write(self.model_file, save(plain, metadata))
        for unfinished in self.path.glob(f".{self.model_file.name}.*.tmp"):  # of a process that was killed
            unfinished.unlink()

    def load_weights(self) -> dict[str, Tensor]:
        """Reads the weights; a broken or newer file is an error that says so."""
        if (spec := self.compression) is not None:
            raise G2Error(
                f"the weights in {self.path} are compressed ({spec}) and cannot be trained on; take the run that they "
                "were made from"
            )
        return load_file(self.model_file)

    @property
    def compression(self) -> str | None:
        """The spec that the weights are compressed by; None if they are not."""
        header = self.training_facts().get(ENTRY)
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
        if metadata.get("format") != "g2lstm" or not version.isdigit():
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
        """All lines of metrics.jsonl; a last line that a crash cut short is left out."""
        if not self.metrics_file.is_file():
            return []
        lines = []
        for text in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                continue
        return lines

    def results(self) -> list[dict[str, Any]]:
        """The scores so far, each with its signature."""
        if not self.result_file.exists():
            return []
        try:
            scores = json.loads(self.result_file.read_text(encoding="utf-8"))["scores"]
        except (OSError, json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
            raise G2Error(f"{self.result_file} cannot be read; delete it, and evaluate anew") from None
        if not isinstance(scores, list) or not all(isinstance(score, dict) for score in scores):
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

        recipe = self.recipe
        base = {"recipe": recipe_hash(recipe), "seed": recipe.train.seed, **self._training_length()}
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
