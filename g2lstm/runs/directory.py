"""`RunDirectory`: the files of one run. Each is written under a temporary name and renamed; none is pickled."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.encodings.base import brief
from g2lstm.compression.model import compress, encoded_matrices, install_
from g2lstm.compression.spec import Spec
from g2lstm.compression.storage import HEADER, parse_header
from g2lstm.compression.straight_through import preparations
from g2lstm.errors import G2Error
from g2lstm.files import in_order, read_bounded, write_whole
from g2lstm.recipes.files import read_tables, recipe_to_toml, seal, tables_hash
from g2lstm.recipes.sections import Recipe
from g2lstm.runs.records import MAX_BYTES, CompressionReport, GatesFile, MetricsLine, Result, Score
from g2lstm.runtime.weights import COMPRESSED, PLAIN, check_facts, check_is_run
from g2lstm.tasks.recipes import TASKS, parse_recipe, task_of
from g2lstm.text.lines import sha256_of
from g2lstm.text.tokenize import Tokenizer
from g2lstm.version import __version__


def compressed_weights(model: nn.Module, spec: Spec, facts: Mapping[str, str]) -> bytes:
    """The file of weights of a compressed model, with facts about their training."""
    metadata = {**facts, "version": str(COMPRESSED)}
    return storage.save(encoded_matrices(model), dict(model.named_parameters()), spec, metadata)


class Weights:
    """An open file of weights; `facts` is what it says about their training, such as the checksum of the data."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self.facts: dict[str, str] = file.metadata() or {}
        check_facts(path, self.facts)

    @cached_property
    def spec(self) -> str | None:
        """How the weights are compressed; None if they are not."""
        header = self.facts.get(HEADER)
        try:
            return None if header is None else str(parse_header(header)["spec"])
        except G2Error as error:
            raise G2Error(f"{self.path} can't be read: {error}; compress the original again") from None

    def fill_(self, model: nn.Module) -> None:
        """Puts the weights, which must be uncompressed, fit and be finite, into a model, perhaps on the meta device."""
        if self.spec is not None:
            raise G2Error(
                f"the weights in {self.path.parent} are compressed ({self.spec}) and can't be trained; use the run "
                "they were made from"
            )
        expected = {name: (list(value.shape), "F32") for name, value in model.state_dict().items()}
        slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118, it is no mapping
        self._compare({name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}, expected)
        weights = {name: torch.from_numpy(self._file.get_tensor(name)) for name in slices}
        if wrong := [name for name, value in weights.items() if not value.isfinite().all()]:
            raise G2Error(f"{self.path} is broken: {wrong[0]} is not finite; train the model again")
        model.load_state_dict(weights, assign=next(model.parameters()).is_meta)

    def fill_compressed_(self, model: nn.Module) -> None:
        """Puts compressed weights, which must fit, into a model, perhaps on the meta device."""
        stored = storage.load(self.path, self._file)
        try:
            install_(model, stored.matrices)
        except G2Error as error:
            raise self._does_not_fit(str(error)) from None
        expected = {name: (tuple(value.shape), value.dtype) for name, value in model.named_parameters()}
        self._compare({name: (tuple(value.shape), value.dtype) for name, value in stored.others.items()}, expected)
        model.load_state_dict(model.state_dict() | stored.others, assign=True)

    def _compare(self, found: Mapping[str, tuple[Any, Any]], expected: Mapping[str, tuple[Any, Any]]) -> None:
        """Raises unless both name the same tensors, with the same shapes and types."""
        for name in sorted(expected.keys() | found.keys()):
            got, wanted = (" ".join(map(str, one.get(name, ["none"]))) for one in (found, expected))
            if got != wanted:
                raise self._does_not_fit(f"{brief(name)} has shape {got}, expected {wanted}")

    def _does_not_fit(self, why: str) -> G2Error:
        return G2Error(
            f"{self.path} does not fit the recipe and the tokenizer: {why}; use the ones it was trained with"
        )


TABLE = "compression.json"  # of a compressed run: what compression saves and costs
_LEFT_AT_START = re.compile(r"\.lock|tokenizer.*\.json|\.(tokenizer|recipe).*\.tmp")  # by one that was interrupted


class RunDirectory:
    """One run on disk; see `create` for a new run and `open` for an existing one."""

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
        """Starts a new run; refuses a folder that already holds one. The tokenizers are by file name."""
        run = cls(path)
        run.check_new()
        for name, tokenizer in tokenizers.items():
            tokenizer.save(path / name)
        write_whole(run.recipe_file, seal(recipe_to_toml(recipe)).encode())
        return run

    def check_new(self) -> None:
        """Raises unless a run can begin here."""
        path = self.path
        if self.recipe_file.exists():
            raise G2Error(f"{path} already holds a run; continue it with --resume, or choose another folder with --out")
        names = [item.name for item in path.iterdir()] if path.is_dir() else [path.name] if path.exists() else []
        if names and (".lock" not in names or not all(_LEFT_AT_START.fullmatch(name) for name in names)):
            raise G2Error(f"{path} exists and is not an empty folder; choose another one with --out")

    @classmethod
    def open(cls, path: Path, *, task: str | None = None) -> "RunDirectory":
        """Opens an existing run, of this task if one is given, and checks all but its weights."""
        run = cls(path)
        check_is_run(path)
        found = run._tables.get("task")
        if isinstance(found, str) and found not in TASKS:
            raise G2Error(f"{path} is a run of task {found!r}, which this g2lstm does not know; install a newer one")
        if task is not None and isinstance(found, str) and found != task:
            is_a, needed = (TASKS[name].trained for name in (found, task))
            raise G2Error(
                f"{path} is a {is_a.title}, and this needs a {needed.title}; use it with `g2lstm {is_a.uses[0]}`"
            )
        return run

    @cached_property
    def _tables(self) -> dict[str, Any]:
        """What recipe.toml said when it was first read; later edits change nothing for this object."""
        return read_tables(self.recipe_file)

    @cached_property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return parse_recipe(self._tables, source=str(self.recipe_file), is_run=True)

    @cached_property
    def recipe_hash(self) -> str:
        """A hash of what recipe.toml says, so that settings added by a later version do not change it."""
        return tables_hash(self._tables)

    def has_checkpoints(self) -> bool:
        """Whether there is a checkpoint, intact or not."""
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

    def save_weights(self, model: nn.Module, facts: Mapping[str, str]) -> None:
        """Writes the weights of the best validation so far, with facts about their training.

        Those of a model that is prepared for compression are compressed.
        """
        metadata = {**facts, "format": "g2lstm", "task": self.recipe.task}
        if prepared := preparations(model):
            content = compressed_weights(compress(model), prepared[0].spec, metadata)
        else:
            plain = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
            content = in_order(save(plain, metadata | {"version": str(PLAIN)}))
        write_whole(self.model_file, content)
        for unfinished in self.path.glob(f".{self.model_file.name}.*.tmp"):  # left by a process that was killed
            unfinished.unlink()

    @contextmanager
    def open_weights(self) -> Iterator[Weights]:
        """The file of weights, open for reading."""
        if not self.model_file.is_file():
            raise G2Error(f"{self.path} has no trained model yet; train it with `g2lstm train ... --resume`")
        try:
            opened = safetensors.safe_open(self.model_file, framework="np")
        except (safetensors.SafetensorError, OSError) as error:
            remedy = "Delete it: then `g2lstm train ... --resume` restores it from the last checkpoint"
            if self.compression_file.exists():
                remedy = "Compress the original again"
            raise G2Error(f"{self.model_file} can't be read: {error}; it is broken. {remedy}") from None
        with opened as file:
            yield Weights(self.model_file, file)

    def has_weights(self) -> bool:
        """Whether there is a file of weights that is as long as its header says."""
        with suppress(G2Error):
            return bool(self.training_facts())
        return False

    def training_facts(self) -> dict[str, str]:
        """What the file of weights says about their training, such as the checksum of the data."""
        with self.open_weights() as weights:
            return weights.facts

    @property
    def weights_id(self) -> str | None:
        """Identifies the weights by sixteen hexadecimal digits; None if there are none."""
        return sha256_of(self.model_file)[:16] if self.model_file.is_file() else None

    @property
    def compression(self) -> str | None:
        """The spec that the weights are compressed by; None if they are not."""
        with self.open_weights() as weights:
            return weights.spec

    def compression_report(self) -> CompressionReport | None:
        """What compression saves and costs; None for a run that is not compressed."""
        if not self.compression_file.is_file():
            return None
        return CompressionReport.read(self.compression_file, "compress the original again")

    def gate_counts(self) -> GatesFile | None:
        """What `g2lstm gates` counted; None if it has not."""
        path = self.path / "gates" / "gates.json"
        return GatesFile.read(path, f"write it again with `g2lstm gates {self.path}`") if path.exists() else None

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        with self.metrics_file.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash cut the last line short
                    file.write(b"\n")
            file.write(json.dumps(values).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, each with its kind and numbers by name.

        Lines that a crash cut short or that hold something else are left out, and so are lines of updates that were
        lost in a crash and repeated.
        """
        if not self.metrics_file.exists():
            return []
        lines: list[dict[str, Any]] = []
        for text in read_bounded(self.metrics_file, MAX_BYTES).split(b"\n"):
            with suppress(ValueError):
                line = dict(MetricsLine.model_validate_json(text))
                while lines and lines[-1]["step"] > line["step"]:
                    lines.pop()
                lines.append(line)
        return lines

    def results(self) -> list[Score]:
        """The scores so far."""
        if not self.result_file.exists():
            return []
        return Result.read(self.result_file, "delete it, and evaluate again").scores

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Adds a score; it replaces one with the same signature."""
        others = [score for score in self.results() if score.signature != result["signature"]]
        kept = [score.model_dump(exclude_unset=True) for score in others]
        write_whole(self.result_file, json.dumps({"scores": [*kept, dict(result)]}, indent=2).encode())

    def signature(self, **facts: object) -> str:
        """How a score was obtained, for people to read: versions, recipe, seed, data and options."""
        base: dict[str, object] = {"recipe": self.recipe_hash, "seed": self.recipe.train.seed}
        if self.model_file.is_file():
            with self.open_weights() as weights:
                base |= {name: weights.facts[name] for name in ("steps", "epochs") if name in weights.facts}
                base |= {} if weights.spec is None else {"compressed": weights.spec}
        versions = {"g2lstm": __version__, "torch": torch.__version__}
        return "|".join(f"{key}:{value}" for key, value in (base | facts | versions).items())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training here; the system releases the lock if this one dies."""
        is_compressed = self.compression_file.exists()
        with suppress(G2Error):  # missing or broken weights do not matter: training writes its own
            is_compressed = is_compressed or self.compression is not None
        if is_compressed and self.recipe.train.compression is None:
            raise G2Error(
                f"{self.path} is a compressed run, and compressed weights can't be trained; resume the run it was "
                "made from, then compress that again"
            )
        for name in (".lock", self.metrics_file.name, self.checkpoints.name, self.events.name):
            self.own(name)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", blocking=False).acquire()
        except Timeout:
            raise G2Error(f"another process is training in {self.path}; wait for it, or choose another --out") from None
        except OSError as error:
            raise G2Error(f"{self.path} can't be made or written to: {error.strerror}; choose another --out") from None
        with lock:
            yield

    def own(self, name: str) -> Path:
        """The path of a file of the run that is about to be written; refuses a link, which would lead elsewhere."""
        path = self.path / name
        if path.is_symlink():
            raise G2Error(
                f"{path} is a link to {path.readlink()}, but a run is only written into its own folder; delete "
                "the link, or link the whole run directory"
            )
        return path
