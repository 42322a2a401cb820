"""What a task is: one kind of model, from its recipe to a model that learns.

`Trained` is what comes out of it. Nothing outside this package asks which task it is dealing with: it calls a method of
a `Task`, a `Learner` or a `Trained`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import psutil
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from g2lstm.errors import G2Error
from g2lstm.nn.gate import Gates
from g2lstm.nn.record import GateRecord, evaluating, record_gates
from g2lstm.recipes.sections import ModelSection, Recipe
from g2lstm.tasks.cross_entropy import Guide
from g2lstm.tasks.model import TokenModel
from g2lstm.tasks.trained import Trained
from g2lstm.text.corpus import TokenStream
from g2lstm.text.tokenize import Tokenizer

BINS = 20  # of the histograms that training keeps
_GATES = ("input", "forget")
_TOKENS = {"bpe": "sub-words", "word": "words", "character": "characters"}
_TOKENIZER_KEYS = {"vocabulary", "joint", "min_frequency", "lowercase", "is_tokenized"}  # of `data` in a recipe

RecipeT = TypeVar("RecipeT", bound=Recipe)
ModelT = TypeVar("ModelT", bound=TokenModel)
TrainedT = TypeVar("TrainedT", bound=Trained, covariant=True)


class StepLoss(NamedTuple):
    """The loss of one batch."""

    total: Tensor  # (), to be differentiated
    nats: float  # -log p per token, without regularisers or smoothing; the mean over processes is that of the batch
    tokens: int  # predicted in this batch, by all processes together


class Validation(NamedTuple):
    """What a validation found."""

    loss: float  # nats per token
    scores: dict[str, float]  # for people, by name
    criterion: float  # chooses the best model and drives the trigger: lower is better, then lower loss
    gates: Mapping[str, list[int]] = MappingProxyType({})  # by gate, counts of values in each twentieth from 0 to 1


class ValidationBatch(NamedTuple):
    """What the model made of a batch of the validation text."""

    features: Tensor  # (T, B, E)
    targets: Tensor  # (T, B), negative where nothing is predicted
    is_token: Mapping[str, Tensor] = MappingProxyType({})  # (T, B), false at padding; by the LSTMs that read padding


class TrainingData(NamedTuple):
    """The data of a training run; what the corpora are depends on the task."""

    tokenizers: tuple[Tokenizer, ...]
    train: Any
    valid: Any


class _Unfilled(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules made in this block have weights with shapes but without values.

    Initialisers do nothing: to fill a tensor without values, torch would import its compiler, which takes a second.
    """
    with torch.device("meta"), _Unfilled():
        yield


class Learner(ABC):
    """A model, its data and its loss; with several processes, each reads its own part of every batch."""

    model: TokenModel  # its weights are trained and saved
    module: nn.Module  # around the model: its forward call makes the loss, so that DDP can wrap it
    observed = 0  # the batch of a validation whose gates are counted

    def __init__(
        self,
        recipe: Recipe,
        model: TokenModel,
        data: TrainingData,
        *,
        teacher: TokenModel | None = None,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.recipe, self.model, self.tokenizers = recipe, model, data.tokenizers
        self.teacher = teacher
        self.device, self.rank, self.world_size = torch.device(device), rank, world_size
        self._take(data)

    @abstractmethod
    def _take(self, data: TrainingData) -> None:
        """Gets ready to read the data from its beginning, and makes `module`."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Facts about the training data, to be kept with the weights."""

    @property
    def remarks(self) -> list[str]:
        """What the user should know before training begins, one line each."""
        return []

    def summary(self, layers: str, *valid: TokenStream) -> str:
        """What is about to be trained, in one line; the validation texts go with the tokenizers."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        sizes = " and ".join(f"{len(tokenizer):,}" for tokenizer in self.tokenizers)
        both = [*zip(self.tokenizers, valid, strict=True)]
        unknown = sum(int(text.counts(len(tokenizer))[tokenizer.unk_id]) for tokenizer, text in both)
        share, wanted = unknown / sum(map(len, valid)), self.recipe.data.vocabulary or 0
        short = any(one.kind == "bpe" and 2 * len(one) < wanted for one in self.tokenizers)
        limits = {"minute": self.recipe.train.minutes, "epoch": self.recipe.train.epochs}
        ends = " or ".join(
            f"{limit:g} {unit}{'' if limit == 1 else 's'}" for unit, limit in limits.items() if limit is not None
        )
        return (
            f"{parameters:,} parameters, {layers}, {sizes} {_TOKENS[self.tokenizers[0].kind]}"
            f"{f' ({wanted:,} were wanted, but the text has no more)' if short else ''}, "
            f"{share:.1%} of the validation text unknown; {ends}{' at most' if ' or ' in ends else ''}"
        )

    @abstractmethod
    def next_batch(self) -> Any | None:
        """The next batch of this epoch, a named tuple of tensors and numbers; None at its end."""

    @abstractmethod
    def start_epoch(self) -> None:
        """Goes back to the beginning of the data."""

    @property
    @abstractmethod
    def epoch_progress(self) -> float:
        """The share of the epoch that has been handed out, in [0, 1]."""

    def rate_scale(self, batch: Any) -> float:
        """The factor of the learning rate for this batch."""
        return 1.0

    def guide(self, features: Tensor) -> Guide:
        """What the loss needs of the teacher, from its features (N, E)."""
        assert self.teacher is not None
        assert self.recipe.train.teacher is not None
        weight, bias = self.teacher.output_weight.detach(), self.teacher.softmax_bias.detach()
        return Guide(features, weight, bias, self.recipe.train.teacher.share)

    @abstractmethod
    def loss(self, module: nn.Module, batch: Any) -> StepLoss:
        """The loss, through `module`, which may be `self.module` wrapped."""

    @torch.no_grad()
    def validate(self) -> Validation:
        """Evaluates the model as it is: its loss and scores, and how binary the gates are in one of the batches."""
        nats, tokens = 0.0, 0
        gates: GateRecord | None = None
        with evaluating(self.model):
            batches = self._validation_batches()
            for index in count():
                with record_gates(self.model) if index == self.observed else nullcontext(gates) as gates:
                    batch = next(batches, None)
                if batch is None:
                    break
                if index == self.observed and gates is not None:
                    for name, is_token in batch.is_token.items():
                        gates[name][-1] = gates[name][-1].known(is_token.to(self.device))
                targets = batch.targets.to(self.device)
                losses = self.model.token_losses(batch.features[targets >= 0], targets[targets >= 0])
                nats += losses.sum(dtype=torch.float64).item()
                tokens += len(losses)
            scores, criterion = self._judge(nats / tokens)
        return Validation(nats / tokens, {**scores, **saturation(gates)}, criterion, histograms(gates))

    @torch.no_grad()
    def validation_loss(self, most: int | None = None) -> float:
        """Nats per token on the validation text, or on the batches with its first `most` tokens."""
        nats, tokens = 0.0, 0
        with evaluating(self.model):
            for batch in self._validation_batches():
                targets = batch.targets.to(self.device)
                losses = self.model.token_losses(batch.features[targets >= 0], targets[targets >= 0])
                nats += losses.sum(dtype=torch.float64).item()
                tokens += len(losses)
                if most is not None and tokens >= most:
                    break
        return nats / tokens

    @abstractmethod
    def _validation_batches(self) -> Iterator[ValidationBatch]:
        """Reads the validation text."""

    @abstractmethod
    def _judge(self, loss: float) -> tuple[dict[str, float], float]:
        """The scores of a model with this validation loss, and the criterion."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position in the data, and what this process carries from batch to batch: tensors, numbers, strings."""

    @abstractmethod
    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Goes to a saved position: one state for each process that saved it, in order; the number may differ now."""


class Task(ABC, Generic[RecipeT, ModelT, TrainedT]):
    """One kind of model."""

    recipe: type[RecipeT]
    model: type[ModelT]
    trained: type[TrainedT]
    learns: type[Learner]

    def module(self, recipe: RecipeT, *vocabularies: int) -> ModelT:
        """The model with fresh weights from torch's generator, however large, for vocabularies of these sizes."""
        return self.model(*vocabularies, **self.arguments(recipe.model))

    def arguments(self, section: ModelSection) -> dict[str, Any]:
        """The arguments of the model: the keys of the recipe, where `dropout.input` is called `input_dropout`."""
        keys = section.model_dump()
        return {f"{name}_dropout": probability for name, probability in keys.pop("dropout").items()} | keys

    def build(self, recipe: RecipeT, *vocabularies: int) -> ModelT:
        """The model with fresh weights; raises if they would not fit into memory, before they exist."""
        weights = self.count_weights(recipe, *vocabularies)
        memory = psutil.virtual_memory().total
        if 4 * weights > memory:
            raise G2Error(
                f"the model of this recipe has {weights:,} weights, which take {4 * weights / 1e9:,.0f} GB, and this "
                f"machine has {memory / 1e9:,.0f} GB of memory; choose smaller sizes: model.hidden, model.embedding, "
                "model.layers or data.vocabulary"
            )
        return self.module(recipe, *vocabularies)

    def count_weights(self, recipe: RecipeT, *vocabularies: int) -> int:
        """The number of weights, without making them."""
        with without_memory():
            return sum(parameter.numel() for parameter in self.module(recipe, *vocabularies).parameters())

    def complete(self, tables: dict[str, Any]) -> None:
        """Adds to a new recipe, in place, what a look at the text decides and the recipe does not say."""
        return

    @abstractmethod
    def train_tokenizers(self, files: Any, kind: str, **settings: Any) -> Sequence[Tokenizer]:
        """New tokenizers for the files of the training split; settings are those of `prepare_tokenizer`."""

    @abstractmethod
    def tokenise(self, files: Any, *tokenizers: Tokenizer) -> Any:
        """The tokens of one split."""

    def prepare(self, recipe: RecipeT, data_dir: Path | None, tokenizers: Sequence[Tokenizer] | None) -> TrainingData:
        """Prepares the data of a recipe for training; the test split too, so that its faults show before hours pass.

        Given tokenizers are used instead of training new ones.
        """
        data, files = recipe.data, recipe.data.files(data_dir)
        if tokenizers is None:
            settings = data.model_dump(include=_TOKENIZER_KEYS)
            tokenizers = self.train_tokenizers(files["train"], data.tokenizer, **settings)
        train, valid, _ = (self.tokenise(files[split], *tokenizers) for split in ("train", "valid", "test"))
        return TrainingData(tuple(tokenizers), train, valid)

    def learner(
        self,
        recipe: RecipeT,
        data: TrainingData,
        *,
        teacher: TokenModel | None = None,
        device: torch.device | str = "cpu",
        **process: int,
    ) -> Learner:
        """A new model with its data, from `prepare`, ready for the training loop; `process` knows its rank."""
        model = self.build(recipe, *map(len, data.tokenizers)).to(device)
        return self.learns(recipe, model, data, teacher=teacher, device=device, **process)

    @abstractmethod
    def weights_per_token(self, recipe: RecipeT, words: int) -> int:
        """The number of weights that each token is multiplied by, with a vocabulary of this many words."""


def shown_perplexity(nats: float) -> float:
    """E to the mean nats per token, for curves: capped, because a picture can't show a number of 300 digits."""
    return math.exp(min(nats, 200.0))


def saturation(record: Mapping[str, list[Gates]] | None) -> dict[str, float]:
    """The share of values below 0.1 or above 0.9, by LSTM and gate: {"saturation/layers.0/input": 0.31, ...}."""
    shares, edge = {}, BINS // 10
    for name, calls in (record or {}).items():
        for gate in _GATES:
            counts = _histogram(calls, gate)
            outside = counts[:edge].sum() + counts[-edge:].sum()
            shares[f"saturation/{name}/{gate}"] = int(outside) / max(int(counts.sum()), 1)
    return shares


def histograms(record: Mapping[str, list[Gates]] | None) -> dict[str, list[int]]:
    """For each gate of all LSTMs together, how many values are in each twentieth from 0 to 1."""
    calls = list(chain.from_iterable((record or {}).values()))
    return {gate: _histogram(calls, gate).tolist() for gate in _GATES}


def _histogram(calls: Sequence[Gates], gate: str) -> Tensor:
    """Counts (BINS,) of the values, without padding."""
    counts = torch.zeros(BINS, dtype=torch.int64)
    for value in chain.from_iterable(getattr(call, gate) for call in calls):
        bins = (value[value.isfinite()] * BINS).int().clamp_(max=BINS - 1)
        counts += torch.bincount(bins, minlength=BINS).cpu()
    return counts
