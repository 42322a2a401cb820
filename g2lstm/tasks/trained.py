"""A trained model, whatever its task: how it scores and reads, and what other programs must know about it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.record import lstms, record_gates
from g2lstm.recipes.sections import Recipe
from g2lstm.tasks.model import TokenModel
from g2lstm.tasks.reading import Encoded, Reading, in_mode, layer_readings
from g2lstm.text.clean import check_unicode
from g2lstm.text.datasets import folder_of
from g2lstm.text.lines import read_pieces, sha256_of
from g2lstm.text.tokenize import Tokenizer

if TYPE_CHECKING:
    from g2lstm.export.part import Exporter

Progress: TypeAlias = Callable[[int, int], None]  # how much is done, and the total

WORDS = range(8, 19)  # in an example sentence, which is neither trivial nor too long to take in


@dataclass(frozen=True)
class Metric:
    """The number that a task's models are judged by."""

    name: str  # its key in results
    title: str  # its name for people
    higher_is_better: bool

    def change(self, before: float, after: float) -> str:
        """How much a score has changed, in points if higher is better and otherwise in per cent."""
        return f"{after - before:+.2f}" if self.higher_is_better else f"{100 * (after / before - 1):+.2f} %"


def _only_for(task: str, default: Any = None) -> Any:
    return field(default=default, metadata={"task": task})


@dataclass(frozen=True)
class Scoring:
    """How to score a split; where a value is None, the recipe decides.

    Attributes:
        split: "train", "valid" or "test".
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        cache: mix in the cache pointer; this and the next four are for language models.
        cache_window: the number of past steps that the cache sees.
        cache_theta: how sharply the cache prefers similar states.
        cache_lambda: the cache's share of the probability.
        tune_cache: find the best settings of the cache on the validation split.
        beam: the number of hypotheses to follow; this and the next are for translation.
        length_penalty: scores are divided by the length raised to this power.
        source, reference: files to score instead of a split; also for translation.
        save: a file for the translations.
        samples: score only this many windows of text or sentences, from the start.
        by_sentence: also list what each sentence adds to the sums behind the score.
        data_dir: a folder that holds the named data sets.
        prepared: a folder for prepared texts; None for the user's cache.
    """

    split: str = "valid"
    eval_gate: str | None = None
    cache: bool = _only_for("lm", False)
    cache_window: int | None = _only_for("lm")
    cache_theta: float | None = _only_for("lm")
    cache_lambda: float | None = _only_for("lm")
    tune_cache: bool = _only_for("lm", False)
    beam: int | None = _only_for("mt")
    length_penalty: float | None = _only_for("mt")
    source: Path | None = field(default=None, metadata={"task": "mt"})
    reference: Path | None = field(default=None, metadata={"task": "mt"})
    save: Path | None = field(default=None, metadata={"task": "mt"})
    samples: int | None = None
    by_sentence: bool = False
    data_dir: Path | None = None
    prepared: Path | None = None


class SplitScore(NamedTuple):
    """A score, without the signature that only a run can give it."""

    values: dict[str, Any]  # what goes into `result.json`
    facts: dict[str, str]  # what the signature says besides the facts of the run
    by_sentence: list[list[float]] | list[list[int]] | None  # what each sentence contributes, if asked for


class Pass(NamedTuple):
    """One call of the model on a part of a split."""

    done: int  # windows or pairs so far
    total: int
    is_token: dict[str, Tensor]  # (T, B), false where there is padding; by the names of LSTMs that read padding
    tokens: dict[str, Tensor]  # (T, B), what was read; by side


class Passes(NamedTuple):
    """A split that is ready to be read."""

    unit: str  # what is counted: "windows", each of which continues the last, or "pairs"
    sha256: str  # of the text
    read: Callable[[int, int], Iterator[Pass]]  # this many at most, chosen by this seed; the mode is the model's own


class SpeedTest(NamedTuple):
    """A short job that shows how fast a model is in use."""

    job: Callable[[], object]
    size: int  # how many of `unit` a job does
    unit: str
    how: str


class Trained(ABC):
    """A trained model with its tokenizers, in evaluation mode.

    Attributes:
        recipe: how it was trained.
        model: the module.
        tokenizers: convert between text and token ids; by the names of their files.
        facts: what the file of weights says about its training; empty for a model that was not loaded.
        run: the `RunDirectory` that it was loaded from, set by `g2lstm.load`; None for a model in training.
    """

    task: ClassVar[str]  # what recipes call it
    title: ClassVar[str]  # what people call such a model
    metric: ClassVar[Metric]
    tokenizer_files: ClassVar[tuple[str, ...]]  # in a run directory
    sides: ClassVar[tuple[str, ...]]  # what the text of each tokenizer is called
    uses: ClassVar[tuple[str, ...]] = ()  # the methods that most people want
    recipe: Recipe
    model: TokenModel

    def __init__(self, recipe: Recipe, model: TokenModel, *tokenizers: Tokenizer) -> None:
        self.recipe = recipe
        self.model = model
        self.tokenizers = dict(zip(self.tokenizer_files, tokenizers, strict=True))
        self.facts: Mapping[str, str] = {}
        self.run: Any = None  # runs stand above tasks, so their type is not known here

    def __repr__(self) -> str:
        model = self.recipe.model
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        sizes = " and ".join(f"{len(each):,}" for each in self.tokenizers.values())
        where = "" if self.run is None else f" from {self.run.path}"
        return (
            f"<{type(self).__name__}{where}: method {model.method}, {model.layers} layers, {parameters:,} parameters, "
            f"{sizes} tokens>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Says what the model can do instead."""
            uses = f"; it has {' and '.join(self.uses)}" if self.uses else ""
            raise AttributeError(f"a {self.title} has no {name!r}{uses}", name=name, obj=self)

    def describe(self) -> dict[str, Any]:
        """What a program on another machine must know to use the model: special tokens, and how to search.

        A text begins after the token that ends the previous text, so one id serves for both.
        """
        tokens = {}
        for side, (file, tokenizer) in zip(self.sides, self.tokenizers.items(), strict=True):
            special = {"begin": tokenizer.eos_id, "end": tokenizer.eos_id, "unknown": tokenizer.unk_id}
            tokens[side] = {"tokenizer": file, "kind": tokenizer.kind, "size": len(tokenizer), **special}
        return {"tokens": tokens}

    def onnx_exporter(self) -> "Exporter":
        """How `export_onnx` writes the model with its tokenizers; needs the extra `export`."""
        model: Any = self.model
        exporter: Exporter = model.onnx_exporter()
        exporter.files = {name: tokenizer.to_json().encode() for name, tokenizer in self.tokenizers.items()}
        exporter.facts = self.describe()
        return exporter

    def token_texts(self) -> dict[str, list[bytes]]:
        """What each token adds to a text, by the side that it belongs to; for programs without tokenizers."""
        each = zip(self.sides, self.tokenizers.values(), strict=True)
        return {side: [one.bytes_of(token) for token in range(len(one))] for side, one in each}

    def score_split(self, how: Scoring, progress: Progress | None = None) -> SplitScore:
        """Scores a split of the model's own data; `progress` gets the tokens or sentences done, and the total."""
        self.check_scoring(how)
        layers = lstms(self.model)
        if not layers and how.eval_gate not in (None, "soft"):  # after `freeze_`
            raise G2Error(
                f"the layers of this model are torch.nn.LSTMs, which have soft gates, not {how.eval_gate}; load the "
                "run again"
            )
        gate = how.eval_gate or (layers[0].eval_gate if layers else "soft")
        is_given = how.source is not None
        files: Any = (how.source, how.reference) if is_given else self.files(how.split, how.data_dir)
        split = "given" if is_given else how.split
        hashes = "+".join(sha256_of(file)[:8] for file in ([files] if isinstance(files, Path) else files))
        values, facts, by_sentence = self._score(files, how, gate, progress)
        data = f"{(not is_given and self.recipe.data.name) or 'own'}/{hashes}"
        return SplitScore(
            {**values, "split": split, "eval_gate": gate},
            {"data": data, "split": split, "gate": gate, **facts},
            by_sentence,
        )

    def tune(self, how: Scoring, progress: Progress | None = None) -> Scoring:
        """The same scoring, with any settings to be tuned set to the best for the validation split."""
        return how

    @abstractmethod
    def _score(self, files: Any, how: Scoring, eval_gate: str, progress: Progress | None) -> SplitScore:
        """The score of a split's files, without what is the same for all tasks."""

    def check_scoring(self, how: Scoring) -> None:
        """Raises for options that belong to another task."""
        wrong = [
            f"--{one.name.replace('_', '-')}"
            for one in fields(how)
            if one.metadata.get("task", self.task) != self.task and getattr(how, one.name) not in (None, False)
        ]
        if wrong:
            run = "this" if self.run is None else self.run.path
            raise G2Error(f"{', '.join(wrong)} can't be used here: {run} is a {self.title}")
        if (how.source is None) != (how.reference is None):
            raise G2Error("a test set of your own needs both --source and --reference")

    def read(
        self,
        text: str,
        *,
        target: str | None = None,
        eval_gate: str | None = None,
        training: bool = False,
        seed: int = 0,
    ) -> Reading:
        """Reads a text and keeps the gates; a translation model also translates it, unless a target is given.

        Make one call at a time per model, because its mode changes during the call.

        Args:
            text: at most 1000 tokens, tokenised as the training text was.
            target: a translation that the decoder reads instead of its own, so that models can be compared.
            eval_gate: "soft", "tempered" or "hard"; None for the model's own.
            training: show the gates as they are in training, with noise. Translations are still made without noise.
            seed: seeds noise and dropout.
        """
        check_unicode(text)
        ids, tokens, more = self._encode(text, target, eval_gate)
        model = self.model
        with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
            predicted = self._forward(ids)
        unknown = {
            side: [place for place, token in enumerate(ids[side]) if token == tokenizer.unk_id]
            for side, tokenizer in zip(self.sides, self.tokenizers.values(), strict=True)
        }
        return Reading(tokens, layer_readings(model, record), mode, unknown, **more, **predicted)

    @abstractmethod
    def _encode(self, text: str, target: str | None, eval_gate: str | None) -> Encoded:
        """A text in the form that the model takes."""

    @abstractmethod
    def _forward(self, ids: Mapping[str, list[int]]) -> dict[str, Any]:
        """Runs the model over a text; returns what a `Reading` has besides the gates."""

    def files(self, split: str, data_dir: Path | None = None) -> Any:
        """The text file, or pair of files, of a split of the data that the model was trained on."""
        files = self.recipe.data.files(data_dir)
        if split not in files:
            raise G2Error(f"there is no split {split!r}; choose one of {', '.join(files)}")
        return files[split]

    @abstractmethod
    def passes(self, split: str, data_dir: Path | None = None) -> Passes:
        """A split of the model's own data, ready to be read as in training."""

    @abstractmethod
    def speed_test(self, how: Scoring | None) -> SpeedTest | None:
        """A speed test; None if it needs a text and `how` is not given."""

    def examples(self, count: int, data_dir: Path | None = None) -> list[str]:
        """Example sentences: from the validation text, or made up if that text is missing."""
        return example_sentences(self.recipe, count, data_dir) or self._made_up(count)

    def _made_up(self, count: int) -> list[str]:
        return []


def example_sentences(recipe: Recipe, count: int, data_dir: Path | None = None) -> list[str]:
    """The first sentences of the validation text that are neither short nor long; none if that text is missing."""
    file = validation_files(recipe, data_dir)[0]
    if not file.is_file():
        return []
    lines = (piece.text.strip() for piece in islice(read_pieces(file), 1000))
    return list(islice((line for line in lines if len(line.split()) in WORDS), count))


def validation_files(recipe: Recipe, data_dir: Path | None = None) -> list[Path]:
    """The files of the validation text, whether they exist or not; nothing is downloaded."""
    data, folder = recipe.data, Path("unknown")
    with suppress(G2Error):  # a text that is gone, or a set that this version does not know
        if data.name is None:
            files = data.files()["valid"]
            return [files] if isinstance(files, Path) else list(files)
        folder = folder_of(data.name, data_dir)
    return [folder / f"valid.{ending}" for ending in data.endings]
